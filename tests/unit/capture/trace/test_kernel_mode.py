"""The kernels that a pass comes down to: which, whence, in whose name, and at what time."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.models import Written
from tests.unit.capture.trace.test_tracing import flow, values
from tests.versions import needs_torch
from torchglass.capture.trace.assemble import CapturedPass, assemble, capturing
from torchglass.capture.trace.pass_recorder import tracing
from torchglass.capture.trace.replay import validate
from torchglass.errors import TorchglassError
from torchglass.records.trace import OpRecord


def forward_of(model: nn.Module, *args: Any) -> CapturedPass:
    with torch.no_grad(), tracing(model, level="aten") as recorder:
        model(*args)
    return assemble(recorder)


def step_of(model: nn.Module, *args: Any) -> CapturedPass:
    with tracing(model, level="aten") as recorder:
        model(*args).sum().backward()
    return assemble(recorder)


def kernels(captured: CapturedPass, phase: str = "forward") -> list[str]:
    ops = captured.trace.ops
    return [op.function for op in ops if op.kind == "op" and op.phase == phase]


def path(captured: CapturedPass, op: OpRecord) -> str | None:
    return None if op.call is None else captured.trace.calls[op.call].path


def test_a_linear_layer_is_a_transpose_and_a_matmul_kernel() -> None:
    captured = forward_of(nn.Linear(4, 3), torch.randn(2, 4))

    assert flow(captured) == [
        "input_1_0",
        "t_1_1",
        "addmm_1_2 < input_1_0, t_1_1",
        "output_1_3 < addmm_1_2",
    ]
    assert [operand.parameter for op in captured.trace.ops[1:3] for operand in op.operands] == [
        "weight",
        "bias",
        "",
        "",
    ]


def test_ops_called_from_cpp_are_recorded() -> None:
    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(x, x, x)

    attention = forward_of(Written(forward), torch.randn(1, 2, 3, 8))
    recurrent = forward_of(nn.GRU(4, 5), torch.randn(3, 1, 4))

    assert kernels(attention) == ["_scaled_dot_product_flash_attention_for_cpu"]
    assert Counter(kernels(recurrent))["addmm"] == 4


def test_inference_mode_gives_the_same_kernels() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.MultiheadAttention(4, 1))
    model.forward = lambda x: model[2](*[model[1](model[0](x))] * 3)[0]  # type: ignore[method-assign]
    x = torch.randn(2, 1, 4)

    plain = kernels(forward_of(model, x))
    with torch.inference_mode():
        captured = forward_of(model, x)

    assert "addmm" in plain
    assert kernels(captured) == plain


def test_an_op_with_both_a_kernel_and_a_formula_runs_its_kernel() -> None:
    captured = step_of(nn.Sequential(nn.Linear(4, 4), nn.SiLU()), torch.randn(2, 4))

    assert "silu_backward" in kernels(captured, "backward")


def test_the_fused_encoder_layer_is_one_kernel() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()

    captured = forward_of(layer, torch.randn(1, 3, 8))

    assert kernels(captured) == ["_transformer_encoder_layer_fwd"]


def test_parents_are_followed_through_views_and_writes() -> None:
    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        view = y[:2]
        y.add_(1)
        return view + 1

    captured = forward_of(Written(forward), torch.ones(3, 4))

    assert "add_2_4 < slice_1_2, add_1_3" in flow(captured)
    assert values(captured)["mul_1_1"].eq(2).all()


def test_undeclared_writes_of_batch_norm_are_known() -> None:
    model = nn.BatchNorm1d(4)

    captured = forward_of(model, torch.randn(3, 4))

    norm = next(op for op in captured.trace.ops if op.function == "native_batch_norm")
    assert norm.writes
    assert validate(captured, perturb=False)


def test_backward_kernels_belong_to_their_forward_modules() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))

    captured = step_of(model, torch.randn(2, 4))

    backward = [op for op in captured.trace.ops if op.phase == "backward"]
    places = list(dict.fromkeys(path(captured, op) for op in backward))
    assert places == [None, "2", "1", "0"]
    assert [op.function for op in backward if path(captured, op) == "1"] == [
        "detach",
        "threshold_backward",
    ]


def test_a_backward_kernel_has_its_saved_forward_tensors_as_parents() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Sigmoid(), nn.Linear(5, 3, bias=False))

    captured = step_of(model, torch.randn(2, 4))

    ops = captured.trace.ops
    derivative = next(op for op in ops if op.function == "sigmoid_backward")
    gradient, unpacked = (ops[parent] for parent in derivative.parents)
    (saved,) = (ops[parent] for parent in unpacked.parents)
    (made,) = (ops[parent] for parent in saved.parents)
    assert gradient.function == "mm"
    assert (unpacked.phase, saved.phase, made.phase) == ("backward", "forward", "forward")
    assert made.function == "sigmoid"


def test_each_backward_kernel_has_its_own_call_site() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = self.layer(x).tanh()
        return x

    model = Written(forward, layer=nn.Linear(4, 4))

    captured = step_of(model, torch.randn(2, 4, requires_grad=True))

    of_input, of_weight, *again = [op.site for op in captured.trace.ops if op.function == "mm"]
    assert of_input != of_weight
    assert again == [of_input, of_weight]


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.exp()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0].mul(2)


def test_the_backward_of_a_custom_function_belongs_where_it_was_applied() -> None:
    inner = Written(lambda self, x: Doubled.apply(x))  # type: ignore[no-untyped-call]
    model = nn.Sequential(nn.Linear(4, 4), inner)

    captured = step_of(model, torch.randn(2, 4))

    doubling = next(op for op in captured.trace.ops if op.function == "mul")
    assert doubling.phase == "backward"
    assert path(captured, doubling) == "1"
    assert doubling.source is not None
    assert doubling.source.function == "backward"


def test_the_backward_of_a_slice_assignment_belongs_to_its_line() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[:, 0] = 1
        return y

    model = nn.Sequential(nn.Linear(4, 4), Written(forward), nn.ReLU())

    captured = step_of(model, torch.randn(2, 4))

    backward = [op for op in captured.trace.ops if op.phase == "backward"]
    places = [path(captured, op) for op in backward]
    assert places == sorted(places, key=lambda place: {None: 0, "2": 1, "1": 2, "0": 3}[place])
    assert "1" in places


def test_a_double_backward_belongs_to_where_its_node_was_created() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        energy = self.layer(x).pow(2).sum()
        (force,) = torch.autograd.grad(energy, x, create_graph=True)
        return force

    model = nn.Sequential(Written(forward, layer=nn.Linear(4, 4)))

    captured = step_of(model, torch.randn(2, 4, requires_grad=True))

    backward = [op for op in captured.trace.ops if op.phase == "backward"]
    places = {path(captured, op) for op in backward if op.function == "mm"}
    assert places == {"0.layer"}


def test_the_backward_of_a_forward_before_the_block_belongs_to_no_call() -> None:
    model = nn.Linear(4, 4)
    loss = model(torch.randn(2, 4)).sum()

    with tracing(model, level="aten") as recorder:
        loss.backward()

    captured = assemble(recorder)
    assert {op.call for op in captured.trace.ops} == {None}
    assert "mm" in kernels(captured, "backward")


def test_optimizer_kernels_are_marked() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)

    with tracing(model, level="aten") as recorder:
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()

    assert kernels(assemble(recorder), "optimizer") == ["add_", "add_"]


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.ReLU(inplace=True), nn.Linear(8, 2)),
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.GELU()),
        nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 3), nn.MaxPool1d(2), nn.Flatten()),
    ],
)
def test_a_training_step_replays_bit_for_bit(model: nn.Module) -> None:
    captured = step_of(model, torch.randn(4, 4))

    validation = validate(captured, perturb=False)

    assert validation, validation
    assert not validation.skipped


def test_only_selected_kernels_are_saved_and_all_parents_are_known() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    x = torch.randn(2, 4)

    with capturing(model, save=None, level="aten") as tape:
        model(x).sum().backward()

    assert not tape.captured.tensors
    assert "thresholdbackward_1_10 < expand_1_8, detach_2_9" in flow(tape.captured)


def test_a_kernel_remembers_the_line_that_led_to_it() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)  # type: ignore[no-any-return]

    model = Written(forward, layers=nn.Sequential(nn.Linear(4, 4)))

    captured = step_of(model, torch.randn(2, 4))
    with torch.inference_mode():
        apart = forward_of(model, torch.randn(2, 4))

    line = forward.__code__.co_firstlineno + 1
    ops = [*captured.trace.ops, *apart.trace.ops]
    sources = {op.source for op in ops if op.call is not None}
    assert {(source.file, source.line) for source in sources if source} == {(__file__, line)}


def test_the_kernel_that_failed_is_named() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(4, 2))
    x = torch.randn(3, 4)

    with pytest.raises(RuntimeError), tracing(model, level="aten") as recorder:
        model(x)

    trace = assemble(recorder).trace
    assert trace.failed is not None
    assert trace.failed.function == "addmm"
    assert [op.function for op in trace.ops] == ["input", "t", "addmm", "t"]


def test_a_pass_can_be_stopped_and_edited_between_two_kernels() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    x = torch.randn(2, 4)

    with torch.no_grad(), tracing(model, level="aten", stop_after=2) as cut:
        model(x)
    with torch.no_grad(), tracing(model, level="aten", edits={2: torch.zeros_like}):
        changed = model(x)

    assert kernels(assemble(cut)) == ["t", "addmm", "relu"]
    assert torch.equal(changed, model[2](torch.zeros(2, 4)))


def test_gradients_are_refused_at_aten_level() -> None:
    with (
        pytest.raises(TorchglassError, match="backward"),
        tracing(nn.Linear(2, 2), level="aten", gradients=True),
    ):
        pass


FIRST_COMPILED_IN_THE_BLOCK = """
import sys, torch
from torch import nn
from torchglass.capture.trace.pass_recorder import tracing

class Branch(nn.Linear):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda y: nn.Linear.forward(self, y), torch.sin, (x,))

plain, branch = nn.Linear(4, 4), Branch(4, 4)
with tracing(plain, level="aten"):
    plain(torch.randn(2, 4)).sum().backward()
assert "torch._dynamo" not in sys.modules
with tracing(branch, level="aten"):
    branch(torch.ones(2, 4)).sum().backward()
traced = branch.weight.grad
branch.zero_grad()
branch(torch.ones(2, 4)).sum().backward()
assert torch.equal(traced, branch.weight.grad)
"""


@needs_torch(2, 7, "torch.cond has gradients below a dispatch mode")
@pytest.mark.slow
def test_tracing_does_not_import_dynamo_and_allows_importing_it_mid_pass() -> None:
    program = [sys.executable, "-W", "error", "-c", FIRST_COMPILED_IN_THE_BLOCK]

    ran = subprocess.run(program, capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stderr

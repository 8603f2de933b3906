"""What a pass leaves in its records: every op, its parents, its values, and nothing behind."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import torchglass as tg
from tests.models import Written
from torchglass.analyse.trace import OpLabels
from torchglass.capture.trace.assemble import CapturedPass, assemble
from torchglass.capture.trace.pass_recorder import TracedCall, tracing
from torchglass.capture.trace.replay import validate


def capture(model: nn.Module, *args: Any, **kwargs: Any) -> CapturedPass:
    with tracing(model) as recorder:
        model(*args, **kwargs)
    return assemble(recorder)


def flow(captured: CapturedPass) -> list[str]:
    """Each op with its parents: "add_1_2 < mul_1_1, input_1_0"."""
    ops = captured.trace.ops
    names = [str(label) for label in OpLabels(ops)]
    return [
        name + (" < " + ", ".join(names[parent] for parent in op.parents) if op.parents else "")
        for name, op in zip(names, ops, strict=True)
    ]


def values(captured: CapturedPass) -> dict[str, torch.Tensor]:
    names = [str(label) for label in OpLabels(captured.trace.ops)]
    return {names[op]: tensor for (op, output), tensor in captured.tensors.items() if not output}


def test_an_op_knows_its_parents() -> None:
    model = Written(lambda self, x: torch.relu(x) + x * 2)

    assert flow(capture(model, torch.randn(3))) == [
        "input_1_0",
        "relu_1_1 < input_1_0",
        "mul_1_2 < input_1_0",
        "add_1_3 < relu_1_1, mul_1_2",
        "output_1_4 < add_1_3",
    ]


def test_a_write_through_the_base_reaches_a_view_made_before_it() -> None:
    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        view = y[:2]
        y.add_(1)
        return view + 1

    captured = capture(Written(forward), torch.ones(3, 4))

    assert "add_2_4 < getitem_1_2, add_1_3" in flow(captured)


def test_all_writes_into_different_parts_of_a_view_are_its_parents() -> None:
    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        flat = y.view(-1)
        y[0].add_(1)
        y[1].add_(1)
        return flat * 3

    captured = capture(Written(forward), torch.ones(3, 4))

    assert "mul_2_7 < view_1_2, add_1_4, add_2_6" in flow(captured)


def test_a_write_to_columns_outside_a_strided_view_is_not_its_parent() -> None:
    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        even = y[:, ::2]
        y[:, 1::2].add_(1)
        return even * 3

    captured = capture(Written(forward), torch.ones(3, 4))

    assert "mul_2_5 < getitem_1_2" in flow(captured)


def test_a_write_outside_a_view_is_not_its_parent() -> None:
    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        top = y[:1]
        y[2:].add_(1)
        return top + 1

    captured = capture(Written(forward), torch.ones(3, 4))

    assert "add_2_5 < getitem_1_2" in flow(captured)


def test_the_parents_of_a_view_are_only_overlapping_writes() -> None:
    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[0].add_(1)
        y[1].add_(1)
        return y[1] + y.sum()

    captured = capture(Written(forward), torch.ones(3, 4))

    assert "getitem_3_6 < mul_1_1, add_2_5" in flow(captured)
    assert "sum_1_7 < mul_1_1, add_1_3, add_2_5" in flow(captured)


def test_a_full_overwrite_replaces_earlier_writes_as_parent() -> None:
    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        whole = y.view(-1)
        y[0].add_(1)
        y[0].add_(1)
        y[1].add_(1)
        torch.mul(y, 2, out=y)
        return whole + 1

    captured = capture(Written(forward), torch.ones(3, 4))

    assert "mul_2_9 < mul_1_1, add_2_6, add_3_8" in flow(captured)
    assert "add_4_10 < view_1_2, mul_2_9" in flow(captured)


def test_a_tensor_filled_row_by_row_has_each_write_as_a_parent_once() -> None:
    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        rows = torch.zeros(20, 4)
        for row in range(20):
            rows[row].add_(x)
        return rows

    ops = capture(Written(forward), torch.ones(4)).trace.ops

    assert sum(len(operand.writers) for op in ops for operand in op.operands) == 20
    assert len(ops[-1].parents) == 1 + 20


def test_a_write_through_a_view_reaches_the_base() -> None:
    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[0].mul_(3)
        return y + 0

    captured = capture(Written(forward), torch.ones(3, 4))

    assert "add_1_4 < mul_1_1, mul_2_3" in flow(captured)


def test_tensors_are_listed_by_op_and_output_in_the_order_of_the_pass() -> None:
    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        left, right = x.chunk(2)
        return left.add_(right)

    captured = capture(Written(forward), torch.arange(4.0))

    assert list(captured.tensors) == [(0, 0), (1, 0), (1, 1), (2, 0), (3, 0)]
    assert len(captured.tensors) == 5
    assert [tensor.tolist() for tensor in captured.tensors.values()] == [
        [0, 1, 2, 3],
        [0, 1],
        [2, 3],
        [2, 4],
        [2, 4],
    ]
    assert (1, 2) not in captured.tensors
    assert (1, -1) not in captured.tensors
    assert (4, 0) not in captured.tensors


def test_tensors_not_selected_by_name_are_freed() -> None:
    made: list[weakref.ref[torch.Tensor]] = []

    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        made.append(weakref.ref(y))
        return torch.tanh(y.add(1).relu_())

    trace = tg.trace(Written(forward), torch.ones(3), save="tanh_1")

    assert made[0]() is None
    assert len(trace.saved_tensors) == 1


def test_saved_values_are_from_the_time_of_the_op() -> None:
    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[0] = 7
        y.relu_()
        torch.add(y, 1, out=y)
        return y

    saved = values(capture(Written(forward), torch.tensor([-1.0, -2.0])))

    assert saved["input_1_0"].tolist() == [-1, -2]
    assert saved["mul_1_1"].tolist() == [-2, -4]
    assert saved["setitem_1_2"].tolist() == [7, -4]
    assert saved["relu_1_3"].tolist() == [7, 0]
    assert saved["add_1_4"].tolist() == [8, 1]


def test_an_input_modified_by_the_model_is_saved_unmodified() -> None:
    x = torch.tensor([-1.0, 2.0])

    saved = values(capture(nn.ReLU(inplace=True), x))

    assert saved["input_1_0"].tolist() == [-1, 2]
    assert x.tolist() == [0, 2]


def test_assigning_data_does_not_change_saved_values() -> None:
    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y, z = x * 2, x + 5
        y.data = z
        return y * z

    captured = capture(Written(forward), torch.ones(3))

    assert flow(captured) == [
        "input_1_0",
        "mul_1_1 < input_1_0",
        "add_1_2 < input_1_0",
        "data_1_3 < mul_1_1, add_1_2",
        "mul_2_4 < data_1_3, add_1_2",
        "output_1_5 < mul_2_4",
    ]
    assert values(captured)["mul_1_1"].tolist() == [2, 2, 2]
    assert values(captured)["data_1_3"].tolist() == [6, 6, 6]
    assert validate(captured)


def test_a_parameter_keeps_its_value_from_before_its_data_was_assigned() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.weight.data = torch.zeros(3)
        product: torch.Tensor = x * self.weight
        return product

    captured = capture(Written(forward, weight=nn.Parameter(torch.ones(3))), torch.ones(3))

    before = captured.held("weight")
    assert before is not None
    assert before.tolist() == [1, 1, 1]
    assert validate(captured)


def test_overwriting_a_whole_storage_keeps_all_saved_results() -> None:
    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        part = y[1:]
        y.relu_()
        part.add_(1)
        return y.add_(1)

    saved = values(capture(Written(forward), torch.tensor([-1.0, -1.0, 1.0])))

    assert saved["mul_1_1"].tolist() == [-2, -2, 2]
    assert saved["getitem_1_2"].tolist() == [-2, 2]
    assert saved["relu_1_3"].tolist() == [0, 0, 2]
    assert saved["add_1_4"].tolist() == [1, 3]
    assert saved["add_2_5"].tolist() == [1, 2, 4]


def test_an_op_that_is_not_overwritten_is_saved_without_a_copy() -> None:
    captured = capture(nn.Sequential(nn.Linear(4, 4), nn.Flatten()), torch.randn(2, 4))

    saved = values(captured)

    assert saved["flatten_1_2"].data_ptr() == saved["linear_1_1"].data_ptr()


def test_a_loop_rolls_up_into_passes() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.zeros(5)
        for part in range(2):
            hidden = torch.tanh(self.inner(x[part]) + self.outer(hidden))
        return hidden

    model = Written(forward, inner=nn.Linear(4, 5), outer=nn.Linear(5, 5))

    names = [str(label) for label in OpLabels(capture(model, torch.randn(2, 4)).trace.ops)]

    once = ["getitem_1_2", "linear_1_3", "linear_2_4", "add_1_5", "tanh_1_6"]
    first, second = ([f"{name}:{number}" for name in once] for number in (1, 2))
    assert names == ["input_1_0", "zeros_1_1", *first, *second, "output_1_7"]


def test_residuals_over_a_list_of_layers_are_not_a_loop() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x

    model = Written(forward, layers=nn.ModuleList(nn.Linear(4, 4) for _ in range(3)))

    assert all(label.passes == 1 for label in OpLabels(capture(model, torch.randn(4)).trace.ops))


def test_a_module_called_at_two_lines_is_two_layers_unless_it_has_parameters() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = self.act(self.fc(x))
        x = x + 1
        return self.act(self.fc(x))  # type: ignore[no-any-return]

    model = Written(forward, fc=nn.Linear(4, 4), act=nn.ReLU())

    names = [str(label) for label in OpLabels(capture(model, torch.randn(4)).trace.ops)]

    assert names[1:-1] == ["linear_1_1:1", "relu_1_2", "add_1_3", "linear_1_1:2", "relu_2_4"]


def test_an_op_with_several_outputs_is_one_op() -> None:
    captured = capture(nn.LSTM(4, 5), torch.randn(7, 2, 4))

    lstm = next(op for op in captured.trace.ops if op.type == "lstm")

    assert [value.spec.shape for value in lstm.outputs] == [(7, 2, 5), (1, 2, 5), (1, 2, 5)]
    assert [operand.parameter for operand in lstm.operands if operand.parameter] == [
        "weight_ih_l0",
        "weight_hh_l0",
        "bias_ih_l0",
        "bias_hh_l0",
    ]


def test_attention_is_traced_into_its_inner_ops() -> None:
    attention = nn.MultiheadAttention(8, 2)
    query = torch.randn(3, 1, 8)

    types = [op.type for op in capture(attention, query, query, query).trace.ops]

    assert types.count("linear") == 2
    assert types.count("bmm") == 2
    assert "softmax" in types
    assert "multiheadattentionforward" not in types


def test_the_fused_encoder_layer_stays_fused() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(1, 3, 8)

    with torch.no_grad():
        plain = layer(x)
        captured = capture(layer, x)

    types = [op.type for op in captured.trace.ops if op.kind == "op"]
    assert types == ["transformerencoderlayerfwd"]
    assert torch.equal(captured.tensors[captured.trace.ops[1].id, 0], plain)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_a_scripted_module_is_one_op() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    model = nn.Sequential(nn.Linear(4, 4), scripted)

    assert flow(capture(model, torch.randn(2, 4))) == [
        "input_1_0",
        "linear_1_1 < input_1_0",
        "sequential_1_2 < linear_1_1",
        "output_1_3 < sequential_1_2",
    ]


@pytest.mark.parametrize(
    "transform",
    [
        lambda x: torch.vmap(lambda row: row.sin() * 2)(x),
        lambda x: torch.func.grad(lambda y: y.sin().sum())(x),
        lambda x: torch.func.jacrev(torch.sin)(x),
    ],
)
def test_ops_inside_a_transform_are_traced_and_connected(
    transform: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    captured = capture(Written(lambda self, x: transform(x)), torch.randn(3, 4))

    lines = flow(captured)
    assert "sin_1_1 < input_1_0" in lines
    assert " < " in lines[-1]


@pytest.mark.parametrize("level", ["torch", "aten"])
@pytest.mark.parametrize(
    "transform",
    [
        lambda model: torch.vmap(model),
        lambda model: torch.vmap(model, in_dims=1),
        lambda model: torch.vmap(model, in_dims=-1),
        lambda model: torch.vmap(torch.vmap(model, in_dims=1), in_dims=1),
        lambda model: torch.vmap(torch.vmap(model), in_dims=2),
        lambda model: torch.vmap(torch.vmap(model, in_dims=1)),
    ],
)
def test_outputs_of_a_model_inside_vmap_are_the_batched_ones(
    transform: Callable[[nn.Module], Callable[..., Any]], level: Any
) -> None:
    model = Written(lambda self, x: (x.sin(), x.cos() * 2, x.sum()))

    with tg.tracing(model, level=level) as trace:
        outputs = transform(model)(torch.randn(2, 3, 4))

    assert len(trace.outputs) == 3
    for seen, output in zip(trace.outputs, outputs, strict=True):
        assert seen.tensor is not None
        assert torch.equal(seen.tensor, output)


def test_declared_mutations_of_an_op_are_trusted() -> None:
    with torch.library._scoped_library("torchglass_test", "DEF") as library:
        library.define("increment(Tensor(a!) x) -> ()")

        def increment(x: torch.Tensor) -> None:
            x.add_(1)

        library.impl("increment", increment, "CompositeExplicitAutograd")

        def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            torch.ops.torchglass_test.increment(y)
            return y * 3

        with torch.no_grad():
            captured = capture(Written(forward), torch.ones(2))

    assert "mul_2_3 < increment_1_2" in flow(captured)
    assert values(captured)["mul_1_1"].tolist() == [2, 2]


def test_arguments_and_results_in_containers_have_addresses() -> None:
    model = Written(lambda self, pair, *, scale: {"a": pair[0] * scale, "b": [pair[1]]})

    captured = capture(model, (torch.ones(2), torch.ones(3)), scale=torch.ones(2))

    addresses = [(op.kind, op.function) for op in captured.trace.ops if op.kind != "op"]
    assert addresses == [
        ("input", "args.0.0"),
        ("input", "args.0.1"),
        ("input", "kwargs.scale"),
        ("output", "a"),
        ("output", "b.0"),
    ]


def test_an_op_remembers_the_line_that_called_it() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).relu()  # type: ignore[no-any-return]

    model = Written(forward, layers=nn.Sequential(nn.Linear(4, 4)))

    ops = capture(model, torch.randn(4)).trace.ops

    line = forward.__code__.co_firstlineno + 1
    assert [(op.source.line, op.source.function) for op in ops if op.source] == [
        (line, "forward"),
        (line, "forward"),
    ]


def test_a_call_has_the_op_that_produced_its_output() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Identity(), nn.ReLU(inplace=True))

    captured = capture(model, torch.randn(4))

    returned = {
        call.path: [captured.trace.ops[value.op].type for value in call.outputs if value.op]
        for call in captured.trace.calls
    }
    assert returned == {"": ["relu"], "0": ["linear"], "1": ["linear"], "2": ["relu"]}


def test_outputs_gradients_and_random_state_match_an_untraced_run() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.ReLU(inplace=True), nn.Linear(8, 2))
    x = torch.randn(3, 4)

    def run(observed: bool) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(0)
        model.zero_grad()
        if observed:
            with tracing(model):
                output = model(x)
        else:
            output = model(x)
        output.sum().backward()
        grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        return (output.detach(), torch.rand(3), *grads)

    plain, observed = run(False), run(True)

    assert all(torch.equal(one, other) for one, other in zip(plain, observed, strict=True))


def test_a_failed_forward_keeps_the_ops_before_the_error() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(4, 2))

    x = torch.randn(3, 4)

    with tracing(model) as recorder, pytest.raises(RuntimeError, match="cannot be multiplied"):
        model(x)

    assert flow(assemble(recorder)) == [
        "input_1_0",
        "linear_1_1 < input_1_0",
        "relu_1_2 < linear_1_1",
    ]


def test_a_user_function_mode_sees_the_same_as_without_a_trace() -> None:
    seen: list[str] = []

    class Mode(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)), torch.ones(3, 4)
    with Mode():
        model(x)
    plain = seen.copy()
    seen.clear()
    with Mode(), tracing(model):
        model(x)

    assert seen == plain


class Speechless(Exception):
    def __str__(self) -> str:
        raise ValueError


def test_an_exception_whose_str_raises_propagates() -> None:
    with pytest.raises(Speechless), tracing(nn.ReLU()) as recorder:
        raise Speechless

    assert recorder.error == "Speechless"


def test_two_simultaneous_traces_both_record_everything() -> None:
    inner, outer = nn.Linear(4, 4), nn.Sequential(nn.ReLU())
    x = torch.randn(4)

    with tracing(outer) as of_outer, tracing(inner) as of_inner:
        outer(inner(x))

    assert [op.type for op in assemble(of_inner).trace.ops if op.kind == "op"] == ["linear", "relu"]
    assert [op.type for op in assemble(of_outer).trace.ops if op.kind == "op"] == ["linear", "relu"]


def test_an_error_caught_by_the_model_did_not_end_the_pass() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        with contextlib.suppress(RuntimeError):
            x @ x
        raise KeyError("a")

    model = Written(forward)
    x = torch.randn(2, 3)

    with tracing(model) as recorder, pytest.raises(KeyError):
        model(x)

    assert assemble(recorder).trace.failed is None


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
def test_a_lazy_batch_norm_initializes_its_buffers_during_a_trace() -> None:
    captured = capture(nn.Sequential(nn.LazyBatchNorm2d()), torch.randn(1, 2, 3, 3))

    assert "batchnorm" in [op.type for op in captured.trace.ops]


def test_the_source_line_of_an_op_is_never_in_torchglass() -> None:
    trace = tg.trace(nn.Sequential(nn.Linear(4, 4)), torch.randn(4))

    source = trace["linear"].source
    assert source is not None
    assert source.file == __file__


def test_a_replay_does_not_modify_user_buffers() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.seen[:2].add_(x.sum())
        return x + self.seen.sum()  # type: ignore[no-any-return]

    model = Written(forward)
    model.register_buffer("seen", torch.zeros(4))
    captured = capture(model, torch.ones(3))
    before = torch.as_tensor(model.seen).clone()

    validation = validate(captured)

    assert validation
    assert torch.equal(torch.as_tensor(model.seen), before)


def test_a_user_dispatch_mode_does_not_see_our_copies() -> None:
    class Listing(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.seen: list[str] = []

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.seen.append(str(func))
            return func(*args, **(kwargs or {}))

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    x = torch.randn(2, 4)
    with Listing() as plain:
        model(x)

    with Listing() as observed:
        capture(model, x)

    assert observed.seen == plain.seen


def test_torch_cond_is_not_traced_into() -> None:
    def forward(self: Any, x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    x = torch.ones(3)

    captured = capture(Written(forward), x)

    assert torch.equal(captured.tensors[captured.trace.ops[-1].id, 0], torch.sin(x))


@pytest.mark.parametrize("observed", [False, True], ids=["alone", "with another observer"])
def test_a_module_call_knows_the_line_that_made_it(observed: bool) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.ReLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.layer(x)
            y: torch.Tensor = self.layer(x)
            return y

    model = Twice()
    with tg.record(model) if observed else contextlib.nullcontext(), tracing(model) as recorder:
        model(torch.ones(2))

    calls = [event for event in recorder.events if isinstance(event, TracedCall)]
    first, second = (call.chain for call in calls if call.module is model.layer)
    assert first[0] is second[0] is Twice.forward.__code__
    assert first != second

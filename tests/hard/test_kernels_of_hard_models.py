"""A training step whose kernels are traced is a plain one, and each kernel has its place in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention.flex_attention import flex_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from tests.hard import forwards
from tests.hard.steps import KNOWN_WARNINGS, tensors
from tests.models import Written
from torchglass import Trace, tracing


def train(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """What a training step makes: outputs, gradients, buffers."""
    made = tensors(model(x))
    losses = [tensor.abs().sum() for tensor in made if tensor.requires_grad]
    if losses:
        torch.autograd.backward(losses)
    gradients = [tensor.grad for tensor in (x, *model.parameters()) if tensor.grad is not None]
    return [*made, *gradients, *model.buffers()]


def step(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """All that a training step leaves behind, random numbers included."""
    torch.manual_seed(1)
    return [*train(model, x.clone().requires_grad_()), torch.rand(3)]


def traced_step(model: nn.Module, x: torch.Tensor) -> tuple[list[torch.Tensor], Trace]:
    torch.manual_seed(1)
    x = x.clone().requires_grad_()
    with tracing(model, level="aten") as passed:
        left = train(model, x)
    return [*left, torch.rand(3)], passed


def kernels(passed: Trace) -> list[str]:
    ops = passed.record.ops
    return [op.function for op in ops if op.kind == "op" and op.phase == "forward"]


def from_nowhere(passed: Trace) -> list[str]:
    """The kernels of the model that took a tensor of which nothing is known."""
    return [
        op.function
        for op in passed.record.ops
        for operand in op.operands
        if not (operand.parents or operand.parameter or operand.buffer)
        if op.call is not None and op.function != "lift_fresh"
    ]


@pytest.mark.parametrize("name", [pytest.param(n, marks=KNOWN_WARNINGS) for n in forwards.NAMES])
def test_tracing_the_kernels_of_a_training_step_does_not_change_it(name: str) -> None:
    x = torch.randn(4, 4)
    plain = step(forwards.make(name), x)

    traced, _ = traced_step(forwards.make(name), x)

    assert len(plain) == len(traced)
    assert all(map(torch.equal, plain, traced))


NOT_TO_BE_REPLAYED = {
    "jagged": "it views a tensor that torch has made for all of them",
    "lstm": "its kernel computes otherwise where no gradient is wanted, as in a replay",
}


@pytest.mark.parametrize("name", [n for n in forwards.NAMES if n not in NOT_TO_BE_REPLAYED])
def test_every_kernel_of_a_training_step_replays_from_its_parents(name: str) -> None:
    _, passed = traced_step(forwards.make(name), torch.randn(4, 4))

    validation = passed.validate(perturb=False)

    assert validation, validation
    assert from_nowhere(passed) == []


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_segment_is_recorded_again_when_recomputed(reentrant: bool) -> None:
    segment = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    model = Written(
        lambda self, x: checkpoint(self.segment, x, use_reentrant=reentrant),
        {"segment": segment},
    )

    _, passed = traced_step(model, torch.randn(4, 4))

    trace = passed.record
    runs = [trace.calls[op.call] for op in trace.ops if op.function == "tanh" and op.call]
    assert [(call.path, call.number) for call in runs] == [("segment.1", 1), ("segment.1", 2)]


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.trace.*` is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    "translate",
    [
        torch.jit.script,
        lambda model: torch.jit.trace(model, torch.randn(2, 4)),  # type: ignore[no-untyped-call]
    ],
    ids=["script", "trace"],
)
def test_a_module_without_python_code_shows_its_kernels(
    translate: Callable[[nn.Module], nn.Module],
) -> None:
    inner = translate(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU()))
    model = nn.Sequential(nn.Linear(4, 4), inner)
    x = torch.randn(2, 4)

    with torch.no_grad(), tracing(model, level="aten") as passed:
        model(x)

    assert kernels(passed) == ["t", "addmm"] + ["t", "addmm", "relu"] * 2
    assert all(op.passes == 1 for op in passed.ops)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_stays_compiled_and_shows_the_kernels_of_its_graph(backend: str) -> None:
    plain = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    compiled: Any = torch.compile(plain, backend=backend)
    x = torch.randn(2, 4)
    expected = step(plain, x)
    plain.zero_grad(set_to_none=True)

    left, passed = traced_step(compiled, x)

    assert all(map(torch.equal, left, expected))
    ran = {(op.phase, op.function) for op in passed.record.ops}
    assert {("forward", "addmm"), ("forward", "relu")} <= ran
    assert {("backward", "threshold_backward"), ("backward", "mm")} <= ran


def branch(self: Any, x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda y: self.fc(y).sin(), lambda y: y.cos(), (x,))


def loop(self: Any, x: torch.Tensor) -> Any:
    from torch._higher_order_ops import while_loop

    _, doubled = while_loop(  # type: ignore[no-untyped-call]
        lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (torch.tensor(0), x.detach())
    )
    return doubled


@pytest.mark.parametrize(("forward", "name"), [(branch, "cond"), (loop, "while_loop")])
def test_a_higher_order_op_is_one_kernel_and_works_unchanged(
    forward: Callable[..., Any], name: str
) -> None:
    x = torch.ones(4, 4)
    plain = step(Written(forward, {"fc": fixed_layer()}), x)

    left, passed = traced_step(Written(forward, {"fc": fixed_layer()}), x)

    assert all(map(torch.equal, left, plain))
    assert name in kernels(passed)


def fixed_layer() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 4)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
def test_flex_attention_works_unchanged() -> None:
    def forward(self: Any, x: torch.Tensor) -> Any:
        return flex_attention(x, x, x)

    model = Written(forward, {})
    x = torch.randn(1, 2, 16, 16)
    plain = model(x)

    with tracing(model, level="aten") as passed:
        attended = model(x)

    assert torch.equal(attended, plain)
    assert "flex_attention" in kernels(passed)


def test_kernels_on_fake_tensors_are_recorded() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    with FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.randn(2, 4)
        with tracing(model, level="aten") as passed:
            model(x)

    assert kernels(passed)[:3] == ["t", "addmm", "relu"]


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors_use_their_own_kernels(layout: torch.layout) -> None:
    def forward(self: Any, x: torch.Tensor) -> Any:
        nested = torch.nested.nested_tensor([x[:1], x[1:]], layout=layout)
        return torch.nested.to_padded_tensor(self.fc(nested), 0.0)

    model = Written(forward, {"fc": nn.Linear(4, 4)})
    x = torch.randn(4, 4)

    with torch.inference_mode():
        plain = model(x)
        with tracing(model, level="aten") as passed:
            padded = model(x)

    assert torch.equal(padded, plain)
    assert "linear" in kernels(passed)


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode of the user's own."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("outer_first", [True, False])
def test_a_user_mode_sees_the_same_ops_as_without_tracing(outer_first: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))
    x = torch.randn(2, 4)
    with Counting() as plain:
        model(x)

    ours, theirs = tracing(model, level="aten"), Counting()
    with ours if outer_first else theirs, theirs if outer_first else ours:
        model(x)

    assert theirs.seen == plain.seen


def test_make_fx_inside_a_trace_gives_the_same_graph() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    x = torch.randn(2, 4)
    plain = str(make_fx(model)(x).graph)

    with tracing(model, level="aten"):
        traced = str(make_fx(model)(x).graph)

    assert traced == plain

"""An inspected training step is a plain one: the same numbers, and nothing left on the model."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.hard import forwards, steps
from tests.hard.steps import anatomy, assert_same, go_back, left_by_step
from tests.inspections import read_inspection
from torchglass import InspectorGadgets, inspect

pytestmark = steps.KNOWN_WARNINGS


@pytest.mark.parametrize("name", forwards.NAMES)
def test_inspecting_a_training_step_does_not_change_it(name: str) -> None:
    plain = left_by_step(forwards.make(name))
    model = forwards.make(name)

    inspected = left_by_step(model, InspectorGadgets(model))

    assert_same(plain, inspected)


@pytest.mark.parametrize("name", forwards.NAMES)
def test_an_inspection_of_a_hard_model_round_trips_and_leaves_nothing_on_it(
    name: str, tmp_path: Path
) -> None:
    model = forwards.make(name)
    model(torch.randn(4, 4))
    before = anatomy(model)

    with InspectorGadgets(model) as inspector:
        go_back(model(torch.randn(4, 4)))

    (result,) = inspector.results.values()
    assert anatomy(model) == before
    file = result.save(tmp_path / "inspection.json")
    assert read_inspection(file).record == result.record
    assert str(result)
    assert result.record.modules[0].latest is not None


@pytest.mark.parametrize("name", forwards.NAMES)
def test_the_self_times_of_a_hard_model_add_up(name: str) -> None:
    model = forwards.make(name)

    with InspectorGadgets(model) as inspector:
        go_back(model(torch.randn(4, 4)))

    (result,) = inspector.results.values()
    root, every = result.record.modules[0], [m for m in result.record.modules if m.calls]
    assert root.forward is not None
    assert sum(m.forward.self_ns for m in every if m.forward) == root.forward.total_ns
    if root.backward is not None:
        assert sum(m.backward.self_ns for m in every if m.backward) == root.backward.total_ns


@pytest.mark.parametrize("name", forwards.NAMES)
def test_training_after_an_inspection_is_unchanged(name: str) -> None:
    steps.assert_training_goes_on_after(
        name, lambda model: inspect(model, torch.zeros(4, 4), backward=True)
    )


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_recomputation_is_part_of_the_backward(reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))
            self.head = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> Any:
            return self.head(checkpoint(self.inner, x, use_reentrant=reentrant))

    torch.manual_seed(0)
    model = Checkpointed()
    x = torch.randn(3, 4, requires_grad=True)
    model(x).sum().backward()
    plain = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()

    with InspectorGadgets(model) as inspector:
        model(x).sum().backward()

    result = inspector.results["Checkpointed"]
    again = [call.recomputed for call in result["inner.0"].calls]
    assert again == [False, True]
    assert result["inner.0"].record.backward is not None
    assert result["inner"].info["backward_latency"] <= result[""].info["backward_latency"]
    assert all(
        torch.equal(one, p.grad)
        for one, p in zip(plain, model.parameters(), strict=True)
        if p.grad is not None
    )


def test_a_compiled_model_is_one_call_and_runs_unchanged() -> None:
    model = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), backend="eager")
    x = torch.randn(4, 4)
    plain = model(x)

    with InspectorGadgets(model) as inspector:  # type: ignore[arg-type]
        output = model(x)
        output.sum().backward()

    (result,) = inspector.results.values()
    assert torch.equal(output, plain)
    assert result[""].info["output_shapes"] == [[4, 4]]
    assert result[""].info["effective_additional_memory_fwd"] is None
    assert any("compiled" in note for note in result.record.notes)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_scripted_model_is_one_call() -> None:
    model = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))

    with InspectorGadgets(model) as inspector:
        model(torch.randn(4, 4)).sum().backward()

    (result,) = inspector.results.values()
    assert result[""].info["grad_out_shape"] == [[4, 4]]


def test_the_fused_kernel_of_an_encoder_is_kept() -> None:
    model = forwards.make("encoder in eval")
    x = torch.randn(2, 3, 4)
    with torch.no_grad():
        plain = model(x)

        with InspectorGadgets(model):
            output = model(x)

    assert torch.equal(output, plain)


def test_an_error_in_a_backward_propagates_and_the_next_one_is_inspected() -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
            raise KeyError("mine")

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.broken = True

        def forward(self, x: torch.Tensor) -> Any:
            y = self.fc(x)
            return Fails.apply(y) if self.broken else y  # type: ignore[no-untyped-call]

    model = Model()
    with InspectorGadgets(model) as inspector:
        with pytest.raises(KeyError, match="mine"):
            model(torch.randn(2, 4)).sum().backward()
        model.broken = False
        model(torch.randn(2, 4)).sum().backward()

    calls = inspector.results["Model"]["fc"].calls
    assert [call.backward is not None for call in calls] == [False, True]


def test_graphs_are_not_kept_alive_and_a_later_backward_is_not_recorded() -> None:
    model = nn.Linear(4, 4)
    freed: list[int] = []

    class Tracked(torch.Tensor):
        def __del__(self) -> None:
            freed.append(1)

    with InspectorGadgets(model) as inspector:
        for _ in range(3):
            x = torch.randn(2, 4).as_subclass(Tracked)
            model(x)
            del x
            gc.collect()
        assert len(freed) >= 3
        kept = model(torch.randn(2, 4))
    before = inspector.results["Linear"].record
    kept.sum().backward()

    assert inspector.results["Linear"].record == before
    assert before.modules[0].backward is None

"""A model is run several times, and does not notice."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from tests.sleepers import FakeClock, Moody, Sleeper
from torchglass.capture.measure.profile import MeasuredTime, measure
from torchglass.errors import CaptureError, TorchglassWarning

X = torch.ones(2, 4)


def measured(model: Any, *args: Any, **options: Any) -> MeasuredTime:
    return measure(model, args or (X,), {}, **{"warmup": 1, "repeats": 2, **options})


def test_the_run_with_the_lowest_total_is_reported() -> None:
    clock = FakeClock()
    # The first run is for the shapes; then each timed one comes after a plain one.
    model = Moody(clock, [0, *(1, 70), *(1, 30), *(1, 50)])

    timing = measured(model, torch.ones(1), warmup=0, repeats=3, clock=clock, cpu=clock.cpu).timing

    assert [run.total_ns for run in timing.runs] == [70, 30, 50]
    assert timing.published == 1
    assert timing.spans[0].total_ns == 30
    assert timing.plain_cpu_ns == (1, 1, 1)


def test_warmup_and_plain_runs_are_not_reported() -> None:
    clock = FakeClock()
    seen: list[torch.Tensor] = []

    class Counting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(x)
            return x

    timing = measured(Counting(), warmup=2, repeats=5, clock=clock, cpu=clock.cpu).timing

    assert len(timing.runs) == 5
    assert len(timing.plain_cpu_ns) == 3
    assert len(seen) == 1 + 2 + 5 + 3


def test_each_call_has_its_shapes() -> None:
    calls = measured(nn.Sequential(nn.Linear(4, 3), nn.ReLU())).calls

    assert [(call.path, call.outputs[0].spec.shape) for call in calls] == [
        ("", (2, 3)),
        ("0", (2, 3)),
        ("1", (2, 3)),
    ]


def test_gradients_are_restored() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    x = torch.ones(2, 4, requires_grad=True)
    outside = torch.ones(4, requires_grad=True)
    model[0].weight.grad = gradient = torch.full((4, 4), 7.0)
    outside.grad = torch.full((4,), 3.0)

    measured(model, x, loss=lambda output: (output * outside).sum())

    assert model[0].weight.grad is gradient
    assert torch.equal(gradient, torch.full((4, 4), 7.0))
    assert model[1].weight.grad is None
    assert x.grad is None
    assert torch.equal(outside.grad, torch.full((4,), 3.0))


def test_buffers_random_state_attributes_and_mode_are_restored() -> None:
    class Stateful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.seen = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen += 1
            self.eval()
            result: torch.Tensor = torch.nn.functional.dropout(self.norm(x), 0.5)
            return result

    model = Stateful()
    before = copy.deepcopy(model.state_dict())
    random = torch.get_rng_state()

    measured(model)

    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert torch.equal(random, torch.get_rng_state())
    assert model.seen == 0
    assert model.training
    assert model.norm.training


def test_an_input_modified_in_place_is_restored() -> None:
    x = -torch.ones(2, 4)
    y = (torch.ones(2, 4, requires_grad=True) * -1) * 1

    measured(nn.ReLU(inplace=True), x)
    measured(nn.ReLU(inplace=True), y)

    assert torch.equal(x, -torch.ones(2, 4))
    assert torch.equal(y, -torch.ones(2, 4))


def test_a_tensor_passed_twice_is_one_tensor() -> None:
    class Same(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
            assert x is y
            assert x is not z
            return x + z

    measured(Same(), X, X, X.clone())


def test_post_accumulate_grad_hooks_do_not_run_during_a_profile() -> None:
    model = nn.Linear(4, 4)
    stepped: list[torch.Tensor] = []
    model.weight.register_post_accumulate_grad_hook(stepped.append)  # type: ignore[no-untyped-call]

    notes = measured(model).timing.notes
    assert stepped == []
    assert any("such as an optimizer that steps in the backward" in note for note in notes)

    torch.autograd.backward(model(X).sum())
    assert len(stepped) == 1


def test_a_model_that_changes_its_own_weights_is_reported() -> None:
    class Learning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.weight.mul_(0.5)
            return x * self.weight

    with pytest.warns(TorchglassWarning, match="the forward changes parameters"):
        measured(Learning())


def test_a_model_without_gradients_is_timed_forward_only_with_a_note() -> None:
    class Counting(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"count": (x > 0).sum()}

    timing = measured(Counting()).timing

    assert timing.runs[0].root("backward").total_ns == 0
    assert timing.notes == ("no output requires a gradient, so only the forward was timed",)


def test_without_a_backward_no_gradients_are_recorded() -> None:
    class Asking(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert not torch.is_grad_enabled()
            return x

    timing = measured(Asking(), backward=False).timing

    assert {key.stage for key in timing.runs[0].modules} == {"forward"}
    assert timing.notes == ()


def test_keyword_arguments_reach_the_model() -> None:
    class Named(nn.Module):
        def forward(self, x: torch.Tensor, *, scale: float) -> torch.Tensor:
            assert scale == 3
            return x * scale

    measure(Named(), (X,), {"scale": 3}, warmup=0, repeats=1)


def test_a_pipeline_that_is_not_a_module_is_timed_with_its_modules() -> None:
    clock = FakeClock()

    class Pipeline:
        def __init__(self) -> None:
            self.stages = {"encoder": Sleeper(clock, 10), "decoder": Sleeper(clock, 20)}

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            clock.sleep(3)
            result: torch.Tensor = self.stages["decoder"](self.stages["encoder"](x))
            return result

    (run,) = measured(Pipeline(), repeats=1, backward=False, clock=clock, cpu=clock.cpu).timing.runs

    assert {key.path: (cost.self_ns, cost.total_ns) for key, cost in run.modules.items()} == {
        "": (3, 33),
        "stages": (0, 30),
        "stages.encoder": (10, 10),
        "stages.decoder": (20, 20),
    }


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
def test_a_lazy_model_stays_lazy() -> None:
    layer = nn.LazyLinear(3)
    random = torch.get_rng_state()

    seen = measured(nn.Sequential(layer))

    assert seen.calls[0].outputs[0].spec.shape == (2, 3)
    assert is_lazy(layer.weight)
    assert torch.equal(random, torch.get_rng_state())


def test_a_compiled_model_is_timed_as_a_whole_and_compiled_once() -> None:
    compiled: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    model: Any = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), backend=backend)

    timing = measured(model, repeats=3).timing

    assert len(compiled) == 1
    assert "compiled modules are timed as a whole" in timing.notes[0]
    assert timing.runs[0].root("forward").calls == 1


def test_a_user_exception_names_its_module() -> None:
    model = nn.Sequential(nn.Linear(9, 9))

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        measured(model)

    assert getattr(caught.value, "__notes__", ["while running 0"]) == ["while running 0"]


@pytest.mark.parametrize(
    ("target", "options", "complaint"),
    [
        (3, {}, "not callable"),
        (nn.ReLU(), {"loss": 3}, "loss must be a function of the model's output, not 3"),
        (nn.ReLU(), {"loss": 0}, "loss must be a function of the model's output, not 0"),
        (nn.Linear(4, 4, device="meta"), {"backward": False}, "meta"),
    ],
)
def test_a_target_that_cannot_be_timed_is_refused(
    target: Any, options: dict[str, Any], complaint: str
) -> None:
    x = torch.ones(2, 4, device="meta") if complaint == "meta" else X

    with pytest.raises(CaptureError, match=complaint):
        measured(target, x, **options)


def test_gc_is_disabled_during_a_timed_run_and_enabled_after() -> None:
    import gc

    class Asking(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert not gc.isenabled()
            return x

    measured(Asking())

    assert gc.isenabled()


@pytest.fixture
def _without_gc() -> Iterator[None]:
    import gc

    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_without_gc")
def test_profiling_keeps_gc_disabled_if_it_was() -> None:
    import gc

    measured(nn.ReLU())

    assert not gc.isenabled()

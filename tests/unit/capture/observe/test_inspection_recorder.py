"""Time and memory of modules by clocks and sizes that are known to the last digit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.sleepers import FakeClock, Sleeper
from torchglass.capture.model.structure import modules_in
from torchglass.capture.module_calls import observe_calls
from torchglass.capture.observe.inspection import inspected_model
from torchglass.capture.observe.recorder import ModuleRecorder, RecordOptions
from torchglass.records.calls import CallCost, InspectedModel

EVERYTHING = RecordOptions()


def inspect(
    model: nn.Module, x: torch.Tensor, clock: FakeClock, options: RecordOptions = EVERYTHING
) -> InspectedModel:
    # Whatever we do takes time: all of it has to be left out.
    recorder = ModuleRecorder([modules_in(model)], options, clock=clock.mark)
    recorder.call_ended = lambda call: clock.sleep(1_000_000)
    with observe_calls(recorder):
        output = model(x)
        clock.sleep(77)
        output.sum().backward()
    record = inspected_model(recorder, 0, model, "Model")
    recorder.close()
    return record


def times(record: InspectedModel, stage: str) -> dict[str, tuple[int, int]]:
    efforts = {module.path: getattr(module, stage) for module in record.modules}
    return {path: (effort.total_ns, effort.self_ns) for path, effort in efforts.items() if effort}


def test_times_match_the_time_modules_took() -> None:
    clock = FakeClock()
    inner = Sleeper(clock, 10, 1000, a=Sleeper(clock, 20, 2000), b=Sleeper(clock, 30, 3000))
    model = Sleeper(clock, 1, 100, inner=inner, last=Sleeper(clock, 5, 500))

    record = inspect(model, torch.ones(2, requires_grad=True), clock)

    assert times(record, "forward") == {
        "": (66, 1),
        "inner": (60, 10),
        "inner.a": (20, 20),
        "inner.b": (30, 30),
        "last": (5, 5),
    }
    assert times(record, "backward") == {
        "": (6600, 100),
        "inner": (6000, 1000),
        "inner.a": (2000, 2000),
        "inner.b": (3000, 3000),
        "last": (500, 500),
    }


def test_time_between_two_nodes_belongs_to_their_enclosing_call() -> None:
    clock = FakeClock()

    class Slow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Sleeper(clock, 0, 10), Sleeper(clock, 0, 20)

        def forward(self, x: torch.Tensor) -> Any:
            between = self.first(x)
            # A hook of the user's runs before the node that it belongs to.
            between.register_hook(lambda _: clock.sleep(5))
            return self.second(between)

    record = inspect(nn.Sequential(Slow()), torch.ones(2, requires_grad=True), clock)

    assert times(record, "backward") == {
        "": (35, 0),
        "0": (35, 5),
        "0.first": (10, 10),
        "0.second": (20, 20),
    }


def test_modules_below_watch_depth_count_toward_the_last_inspected_one() -> None:
    clock = FakeClock()
    model = Sleeper(clock, 1, 100, a=Sleeper(clock, 2, 200, b=Sleeper(clock, 3, 300)))

    record = inspect(model, torch.ones(2, requires_grad=True), clock, RecordOptions(depth=1))

    assert times(record, "forward") == {"": (6, 1), "a": (5, 5)}
    assert times(record, "backward") == {"": (600, 100), "a": (500, 500)}


def test_a_module_outside_the_model_is_below_its_caller() -> None:
    clock = FakeClock()
    stray = Sleeper(clock, 10, 20)

    class Calls(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return stray(x)

    record = inspect(nn.Sequential(Calls(), nn.ReLU()), torch.ones(2, requires_grad=True), clock)

    assert [module.path for module in record.modules] == ["", "0", "0.<Sleeper>", "1"]
    assert [module.parent for module in record.modules] == [None, 0, 1, 0]
    assert times(record, "forward")["0.<Sleeper>"] == (10, 10)
    assert times(record, "backward")["0"] == (20, 0)


def test_the_gradient_of_an_input_sums_all_contributions_of_the_module() -> None:
    class Uses(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x * 2 + x * 3

    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.uses = Uses()

        def forward(self, x: torch.Tensor) -> Any:
            return self.uses(x) + 10 * x

    record = inspect(Around(), torch.ones(2, requires_grad=True), FakeClock())

    means = {
        module.path: module.calls[0].input_gradients[0].stats.mean  # type: ignore[union-attr]
        for module in record.modules
    }
    assert means == {"": 15, "uses": 5}


def test_the_input_gradient_of_an_identity_equals_its_output_gradient() -> None:
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.same = nn.Identity()

        def forward(self, x: torch.Tensor) -> Any:
            return self.same(x * 2) * 3

    record = inspect(Around(), torch.ones(2, requires_grad=True), FakeClock())

    (call,) = record.modules[1].calls
    for gradients in (call.input_gradients, call.output_gradients):
        assert [one.stats.mean for one in gradients if one.stats] == [3]
    assert call.backward == CallCost(total_ns=0, self_ns=0, added_bytes=0)


def test_a_tensor_passed_several_times_has_a_gradient_at_each_position() -> None:
    class Product(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> Any:
            return 2 * a + 3 * b

    model = Product()
    recorder = ModuleRecorder([modules_in(model)], EVERYTHING)
    x = torch.ones(2, requires_grad=True)
    with observe_calls(recorder):
        model(x, b=x).sum().backward()
    (call,) = inspected_model(recorder, 0, model, "Product").modules[0].calls
    recorder.close()

    assert [(one.place, one.stats.mean) for one in call.input_gradients if one.stats] == [
        ("0", 5),
        ("b", 5),
    ]


@pytest.mark.parametrize("grad", [True, False])
def test_memory_counts_tensors_that_stay_alive(grad: bool) -> None:
    class Wasteful(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            # The product is kept for the backward of exp's result alone; the rest goes.
            waste = [torch.zeros(1000) for _ in range(3)]
            return (x * len(waste)).exp().sum()

    model = nn.Sequential(Wasteful())
    recorder = ModuleRecorder([modules_in(model)], EVERYTHING)
    with torch.set_grad_enabled(grad), observe_calls(recorder):
        output = model(torch.ones(100, requires_grad=True))
    (root, inner) = inspected_model(recorder, 0, model, "Sequential").modules
    recorder.close()

    assert output.nbytes == 4
    expected = 4 + (400 if grad else 0)
    for module in (root, inner):
        assert module.forward is not None
        assert module.forward.added_bytes == expected


def test_a_view_of_a_weight_takes_no_memory() -> None:
    model = nn.Linear(100, 100, bias=False)
    recorder = ModuleRecorder([modules_in(model)], EVERYTHING)
    with observe_calls(recorder):
        output = model(torch.ones(1, 100))
    (root,) = inspected_model(recorder, 0, model, "Linear").modules
    recorder.close()

    assert root.forward is not None
    assert root.forward.added_bytes == output.nbytes


def test_without_memory_measurement_no_mode_is_active_in_the_forward() -> None:
    depths: list[int] = []

    class Looks(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            depths.append(torch._C._len_torch_dispatch_stack())
            return x

    for memory in (True, False):
        model = Looks()
        recorder = ModuleRecorder([modules_in(model)], RecordOptions(memory=memory))
        with observe_calls(recorder):
            model(torch.ones(1))
        recorder.close()

    assert depths == [1, 0]

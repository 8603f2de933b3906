"""What goes through modules is taken down, and neither the model nor its times notice."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from torchglass.capture import tensor_reader
from torchglass.capture.module_calls import observe_calls
from torchglass.capture.observe.recorder import (
    ModuleRecorder,
    recording_statistics,
    statistics_recorder,
)
from torchglass.capture.tensor.description import describe
from torchglass.errors import CaptureError, TargetError
from torchglass.records.calls import ForwardStats, Level
from torchglass.records.model import TensorSpec

CALL = nn.Module.__call__


@pytest.fixture(autouse=True)
def _torch_is_as_it_was() -> Iterator[None]:
    yield
    assert nn.Module.__call__ is CALL


def recorded(model: nn.Module, *args: Any, **options: Any) -> ModuleRecorder:
    with recording_statistics(model, **options) as recorder:
        model(*args)
    return recorder


class Attend(nn.Module):
    def forward(
        self, x: torch.Tensor, *, mask: torch.Tensor, rest: list[torch.Tensor]
    ) -> dict[str, Any]:
        return {"hidden": (x + mask, None), "rest": rest}


def test_all_arguments_and_results_have_their_positions() -> None:
    model = Attend()

    with recording_statistics(model) as recorder:
        model(torch.ones(2, 3), mask=torch.zeros(3), rest=[torch.ones(4)])

    call = recorder.module("")[-1]
    assert [(one.place, one.spec.shape) for one in call.inputs] == [
        ("0", (2, 3)),
        ("mask", (3,)),
        ("rest.0", (4,)),
    ]
    assert [(one.place, one.spec.shape) for one in call.outputs] == [
        ("hidden.0", (2, 3)),
        ("rest.0", (4,)),
    ]


def test_the_input_of_an_in_place_module_has_its_original_values() -> None:
    call = recorded(nn.ReLU(inplace=True), torch.tensor([-2.0, 3.0])).module("")[-1]

    assert (call.in_min, call.in_max) == (-2.0, 3.0)
    assert (call.out_min, call.out_max) == (0.0, 3.0)


def test_a_result_that_is_the_next_input_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[TensorSpec] = []

    class CountedReading(tensor_reader.StatisticsReading):
        def __init__(self, spec: TensorSpec, requires_grad: bool, has_grad: bool) -> None:
            super().__init__(spec, requires_grad, has_grad)
            measured.append(spec)

    monkeypatch.setattr(tensor_reader, "StatisticsReading", CountedReading)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))

    recorded(model, torch.ones(2, 3))

    assert len(measured) == 4


class Clock:
    """A clock that only moves when it is told to, or when a tensor is read."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now

    def describe(self, tensor: torch.Tensor) -> TensorSpec:
        self.now += 1_000_000
        return describe(tensor)


class Working(nn.Module):
    """Takes so many nanoseconds before, and as many after, each of its children."""

    def __init__(self, clock: Clock, nanoseconds: int, *children: nn.Module) -> None:
        super().__init__()
        self.clock = clock
        self.nanoseconds = nanoseconds
        self.inner = nn.ModuleList(children)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.clock.now += self.nanoseconds
        for child in self.inner:
            x = child(x) + 1
            self.clock.now += self.nanoseconds
        return x


def test_times_exclude_the_measuring_overhead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(tensor_reader, "describe", clock.describe)
    model = Working(clock, 7, Working(clock, 10, Working(clock, 3)), Working(clock, 20))
    recorder = statistics_recorder(model.named_modules(), clock=clock)

    with observe_calls(recorder):
        model(torch.ones(2))

    times = {
        path: (recorder.module(path)[-1].total_ns, recorder.module(path)[-1].self_ns)
        for path in recorder.paths
    }
    assert times == {
        "": (21 + 23 + 20, 21),
        "inner.0": (23, 20),
        "inner.0.inner.0": (3, 3),
        "inner.1": (20, 20),
    }


class Countdown(nn.Module):
    def forward(self, x: torch.Tensor, depth: int) -> torch.Tensor:
        result: torch.Tensor = self(x + 1, depth - 1) if depth else x
        return result


def test_a_module_that_calls_itself_has_a_call_for_each_level() -> None:
    calls = recorded(Countdown(), torch.zeros(2), 3).module("").calls

    assert sorted(call.number for call in calls) == [1, 2, 3, 4]
    assert {call.number: call.in_max for call in calls} == {1: 0.0, 2: 1.0, 3: 2.0, 4: 3.0}
    outermost = max(calls, key=lambda call: call.total_ns)
    assert outermost.number == 1
    assert sum(call.self_ns for call in calls) == outermost.total_ns


class Picky(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(x)
        if result.shape[0] > 1:
            raise ValueError("only one at a time")
        return result


def test_a_failed_forward_is_recorded_and_the_next_is_a_separate_pass() -> None:
    model = Picky()

    with recording_statistics(model) as recorder:
        with pytest.raises(ValueError, match="only one"):
            model(torch.ones(2, 3))
        model(torch.ones(1, 3))

    failed, fine = recorder.module("")
    assert (failed.error, failed.outputs, failed.out_shape) == ("ValueError", (), None)
    assert (fine.error, fine.out_shape) == ("", (1, 3))
    assert (failed.forward, fine.forward) == (1, 2)
    assert recorder.module("").totals.failed == 1
    assert recorder.module("inner").totals.calls == 2


def test_only_the_last_calls_are_kept_and_totals_cover_all() -> None:
    model = nn.Sequential(nn.Identity())

    with recording_statistics(model, keep=2) as recorder:
        for number in range(10):
            model(torch.full((4,), float(number)))

    module = recorder.module("0")
    assert [call.in_mean for call in module] == [8.0, 9.0]
    assert [call.number for call in module] == [9, 10]
    assert module.totals.calls == 10
    assert module.totals.outputs is not None
    assert (module.totals.outputs.count, module.totals.outputs.min) == (40, 0.0)
    assert module.totals.outputs.mean == pytest.approx(4.5)
    everything = torch.arange(10.0, dtype=torch.float64).repeat_interleave(4)
    assert module.totals.outputs.std == pytest.approx(everything.std().item())


def test_modules_of_a_pipeline_and_of_a_list_are_recorded() -> None:
    class Pipeline:
        def __init__(self) -> None:
            self.encoder = nn.Linear(3, 2)
            self.stages = [nn.ReLU(), nn.Linear(2, 1)]

    pipeline = Pipeline()
    other = nn.Linear(3, 2)

    with recording_statistics(pipeline) as of_pipeline, recording_statistics([other]) as of_list:
        pipeline.stages[1](pipeline.stages[0](pipeline.encoder(torch.ones(1, 3))))
        other(torch.ones(1, 3))

    assert of_pipeline.paths == ["encoder", "stages.0", "stages.1"]
    assert of_pipeline.forward_count == 3
    assert of_list.paths == ["0"]


def test_a_module_created_in_forward_is_shown_below_its_caller() -> None:
    class Borrowing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = nn.Tanh()(nn.Tanh()(x))
            return result

    recorder = recorded(nn.Sequential(Borrowing()), torch.ones(2))

    assert recorder.paths == ["", "0", "0.<Tanh>"]
    assert recorder.module("0.<Tanh>").class_name == "Tanh"
    assert recorder.module("0.<Tanh>").totals.calls == 2


@pytest.mark.parametrize("level", ["full", "cheap", "shapes"])
def test_neither_tensors_nor_the_model_are_kept_alive(level: Level) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    x = torch.ones(2, 3)
    with recording_statistics(model, level=level) as recorder:
        output = model(x)
    gone = [weakref.ref(thing) for thing in (model, x, output)]

    del model, x, output
    gc.collect()

    assert [ref() for ref in gone] == [None, None, None]
    assert recorder.module("0").class_name == "Linear"


class SeesFunctions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


class SeesKernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [SeesFunctions, SeesKernels])
@pytest.mark.parametrize("level", ["full", "cheap", "shapes"])
def test_user_modes_do_not_see_torchglass_ops(
    mode: type[SeesFunctions | SeesKernels], level: Level
) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.LSTM(64, 8))
    x = torch.ones(1024, 64)
    with mode() as plain:
        model(x)

    with recording_statistics(model, level=level), mode() as watched:
        model(x)

    assert watched.seen == plain.seen


def test_fake_tensors_have_shapes_but_no_statistics() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())

    with recording_statistics(model) as recorder, FakeTensorMode(allow_non_fake_inputs=True):
        model(torch.ones(2, 3))

    call = recorder.module("1")[-1]
    assert (call.out_shape, call.out_mean, call.out_memory_bytes) == ((2, 4), None, 32)


def test_inside_vmap_tensors_have_shapes_but_no_statistics() -> None:
    model = nn.Linear(3, 4)

    with recording_statistics(model) as recorder:
        result = torch.vmap(model)(torch.ones(5, 3))

    call = recorder.module("")[-1]
    assert result.shape == (5, 4)
    assert (call.in_shape, call.in_mean) == ((3,), None)


SPECIAL = {
    "int": (torch.arange(4), 1.5),
    "bool": (torch.tensor([True, False]), 0.5),
    "complex": (torch.tensor([3 + 4j, 0j]), 2.5),
    "float8": (torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn), 1.5),
    "bfloat16": (torch.tensor([1.0, 2.0]).bfloat16(), 1.5),
    "scalar": (torch.tensor(2.0), 2.0),
    "sparse": (torch.tensor([[0.0, 4.0], [2.0, 0.0]]).to_sparse(), 3.0),
    "jagged": (
        torch.nested.nested_tensor([torch.ones(2), torch.full((2,), 3.0)], layout=torch.jagged),
        2.0,
    ),
    "expanded": (torch.tensor([3.0]).expand(10**12), 3.0),
    "empty": (torch.zeros(0, 3), None),
    "meta": (torch.zeros(3, device="meta"), None),
}


@pytest.mark.parametrize("level", ["full", "cheap"])
@pytest.mark.parametrize("name", SPECIAL)
def test_every_kind_of_tensor_has_meaningful_statistics(name: str, level: Level) -> None:
    tensor, mean = SPECIAL[name]

    call = recorded(nn.Identity(), tensor, level=level).module("")[-1]

    assert call.in_mean == call.out_mean == mean
    assert call.in_dtype == str(tensor.dtype).removeprefix("torch.")


@pytest.mark.filterwarnings("ignore:.*quantize:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*quantize:UserWarning")
def test_a_quantized_tensor_is_measured_by_its_dequantized_values() -> None:
    tensor = torch.quantize_per_tensor(torch.tensor([1.0, 2.0]), 0.5, 0, torch.qint8)

    assert recorded(nn.Identity(), tensor).module("")[-1].in_mean == 1.5


def test_an_internal_error_is_a_warning_and_the_forward_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(nest: Any) -> Iterator[Any]:
        places: dict[str, Any] = {}
        yield places["planted"]

    monkeypatch.setattr("torchglass.capture.observe.recorder.named_tensors", broken)
    model = nn.LSTM(2, 2)

    with pytest.warns(RuntimeWarning, match="planted"):
        recorder = recorded(model, torch.ones(1, 2))

    call = recorder.module("")[-1]
    assert (call.in_shape, call.outputs, call.error) == ((1, 2), (), "")


def test_the_calls_of_a_pass_are_reported_when_it_ends() -> None:
    told: list[list[ForwardStats]] = []
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    with recording_statistics(model, ended=told.append):
        model(torch.ones(1, 3))
        assert [[call.path for call in calls] for calls in told] == [["0", "1", ""]]
        model(torch.ones(1, 3))

    assert [call.out_mean is None for call in told[1]] == [False, False, False]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": "all"}, "full, cheap, shapes, not 'all'"),
        ({"keep": 0}, "keep must be 1 or more"),
        ({"budget_bytes": -1}, "a number of bytes, not -1"),
    ],
)
def test_invalid_recording_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        recorded(nn.ReLU(), torch.ones(1), **options)


def test_an_object_without_modules_is_refused() -> None:
    with pytest.raises(TargetError, match="is not a model; pass an nn"), recording_statistics(3):
        pass

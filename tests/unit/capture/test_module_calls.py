"""Module calls are seen while a block lasts, and the model does not notice."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from torchglass.capture.module_calls import (
    CallRecorder,
    ModuleStack,
    intercept_calls,
    observe_calls,
)
from torchglass.errors import TorchglassWarning
from torchglass.records.trace import CallRecord

CALL = nn.Module.__call__


@pytest.fixture(autouse=True)
def _torch_is_as_it_was() -> Iterator[None]:
    limit = sys.getrecursionlimit()
    yield
    assert nn.Module.__call__ is CALL
    assert sys.getrecursionlimit() == limit


def calls_of(model: nn.Module, *args: Any, **kwargs: Any) -> tuple[CallRecord, ...]:
    with observe_calls(CallRecorder(model.named_modules())) as recorder:
        model(*args, **kwargs)
    return recorder.calls


def paths(calls: tuple[CallRecord, ...]) -> list[str]:
    return [call.path for call in calls]


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor | None = None) -> dict[str, Any]:
        return {"first": self.inner(x), "rest": [self.inner(x)]}


def test_a_module_called_twice_has_two_calls() -> None:
    root, first, second = calls_of(Twice(), torch.ones(2, 3))

    assert [first.path, second.path] == ["inner", "inner"]
    assert [first.number, second.number] == [1, 2]
    assert first.parent == second.parent == root.id
    assert root.parent is None


def test_a_call_has_its_input_and_output_tensors() -> None:
    root = calls_of(Twice(), torch.ones(2, 3), scale=torch.ones(()))[0]

    assert [(value.place, value.spec.shape) for value in root.inputs] == [
        ("0", (2, 3)),
        ("scale", ()),
    ]
    assert [(value.place, value.spec.shape) for value in root.outputs] == [
        ("first", (2, 3)),
        ("rest.0", (2, 3)),
    ]


def test_views_and_in_place_results_share_memory_with_their_source() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Flatten(0), nn.Sigmoid())

    memory = {call.path: call.outputs[0].memory for call in calls_of(model, torch.ones(2, 3))}

    assert memory["0"] == memory["1"] == memory["2"]
    assert memory["3"] != memory["2"]


def test_reused_memory_counts_as_different_memory() -> None:
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(20)))

    with torch.no_grad():
        calls = calls_of(model, torch.ones(64, 64))

    assert len({call.outputs[0].memory for call in calls[1:]}) == 20


def test_outputs_are_bit_identical_on_the_fused_path() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    with torch.no_grad():
        plain = layer(x)

        with (
            observe_calls(CallRecorder(layer.named_modules())) as recorder,
            torch.profiler.profile() as profile,
        ):
            watched = layer(x)

    assert torch.equal(plain, watched)
    assert "aten::_transformer_encoder_layer_fwd" in {event.key for event in profile.key_averages()}
    assert paths(recorder.calls) == [""]


def test_a_module_created_in_forward_is_below_its_creator() -> None:
    class Maker(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = nn.Linear(3, 3)(x)
            return made

    assert paths(calls_of(nn.Sequential(Maker()), torch.ones(1, 3))) == ["", "0", "0.<Linear>"]


def test_another_model_in_the_same_block_is_not_recorded() -> None:
    model, other = nn.Linear(3, 3), nn.Linear(3, 3)

    with observe_calls(CallRecorder(model.named_modules())) as recorder:
        other(torch.ones(1, 3))

    assert recorder.calls == ()


def test_an_exception_passes_through_and_names_the_innermost_module() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 3)), nn.ReLU())

    with (
        observe_calls(CallRecorder(model.named_modules())) as recorder,
        pytest.raises(RuntimeError) as caught,
    ):
        model(torch.ones(1, 9))

    assert recorder.where_failed(caught.value) == "0.0"
    assert paths(recorder.calls) == ["", "0", "0.0"]
    assert all(call.outputs == () for call in recorder.calls)


def test_after_a_caught_exception_calls_are_nested_correctly() -> None:
    class Careful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bad = nn.Sequential(nn.Linear(9, 9))
            self.good = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with contextlib.suppress(RuntimeError):
                self.bad(x)
            result: torch.Tensor = self.good(x)
            return result

    calls = calls_of(Careful(), torch.ones(1, 3))

    assert [(call.path, call.parent) for call in calls] == [
        ("", None),
        ("bad", 0),
        ("bad.0", 1),
        ("good", 0),
    ]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, StopIteration])
def test_leaving_a_forward_in_any_way_leaves_nothing_behind(error: type[BaseException]) -> None:
    class Leaver(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise error

    model = Leaver()

    with pytest.raises(error):
        calls_of(model, torch.ones(1))


def test_recordings_nest_and_both_see_the_call() -> None:
    model = nn.Linear(3, 3)
    outer, inner = (CallRecorder(model.named_modules()) for _ in range(2))

    with observe_calls(outer):
        with observe_calls(inner):
            model(torch.ones(1, 3))
        model(torch.ones(1, 3))

    assert len(outer.calls) == 2
    assert len(inner.calls) == 1


def test_recordings_may_end_in_any_order() -> None:
    model = nn.Linear(3, 3)
    recorders = [CallRecorder(model.named_modules()) for _ in range(2)]
    blocks = [observe_calls(recorder) for recorder in recorders]

    for block in blocks:
        block.__enter__()
    blocks[0].__exit__(None, None, None)
    model(torch.ones(1, 3))
    blocks[1].__exit__(None, None, None)

    assert [len(recorder.calls) for recorder in recorders] == [0, 1]


def test_calls_in_another_thread_are_not_recorded() -> None:
    model = nn.Linear(3, 3)

    with observe_calls(CallRecorder(model.named_modules())) as recorder:
        thread = threading.Thread(target=model, args=(torch.ones(1, 3),))
        thread.start()
        thread.join()

    assert recorder.calls == ()


def test_export_and_fx_tracing_work_inside_a_block() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    x = torch.ones(1, 3)
    plain = torch.export.export(model, (x,)).graph_module.code

    with observe_calls(CallRecorder(model.named_modules())):
        exported = torch.export.export(model, (x,))
        symbolic = torch.fx.symbolic_trace(model)

    assert exported.graph_module.code == plain
    assert [node.op for node in symbolic.graph.nodes].count("call_module") == 2


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_a_scripted_module_is_recorded_as_one_call() -> None:
    model = nn.Sequential(torch.jit.script(nn.Linear(3, 3)), nn.ReLU())

    assert paths(calls_of(model, torch.ones(1, 3))) == ["", "0", "1"]


def test_a_compiled_model_has_no_graph_break_and_the_same_output() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    compiled: Any = torch.compile(model, backend="eager", fullgraph=True)
    x = torch.ones(1, 3)

    with observe_calls(CallRecorder([("", compiled)])) as recorder:
        output = compiled(x)

    assert torch.equal(output, model(x))
    assert paths(recorder.calls)[0] == ""


def test_a_module_that_was_compiled_in_place_runs_its_compiled_code() -> None:
    compilations: list[object] = []

    def backend(graph: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Any:
        compilations.append(graph)
        return graph.forward

    class Double(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    model = nn.Sequential(Double(), nn.ReLU())
    model[0].compile(backend=backend)

    recorded = calls_of(model, torch.ones(1, 3))

    assert len(compilations) == 1
    assert paths(recorded) == ["", "0", "1"]


def test_dynamo_does_not_cache_torchglass_functions() -> None:
    from torch._dynamo import utils
    from torch._dynamo.variables import nn_module

    model = nn.Linear(3, 3)
    with observe_calls(CallRecorder(model.named_modules())):
        for module in (utils, nn_module):
            # As if dynamo had been imported just now.
            module.__dict__["unpatched_nn_module_call"] = nn.Module.__call__

    assert utils.__dict__["unpatched_nn_module_call"] is CALL
    assert nn_module.__dict__["unpatched_nn_module_call"] is CALL


def test_a_model_at_the_recursion_limit_runs_in_a_block() -> None:
    model: nn.Module = nn.Linear(2, 2)
    while True:
        deeper = nn.Sequential(model)
        try:
            deeper(torch.ones(1, 2))
        except RecursionError:
            break
        model = deeper

    calls = calls_of(_shallower(model), torch.ones(1, 2))

    assert len(calls) > 100


def _shallower(model: nn.Module) -> nn.Module:
    """Three levels less: the frames of the block itself."""
    for _ in range(3):
        (model,) = model.children()
    return model


def test_an_output_of_ten_thousand_tensors_is_recorded_whole() -> None:
    class Many(nn.Module):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return list(x.expand(10_000, 1))

    (call,) = calls_of(Many(), torch.ones(1))

    assert len(call.outputs) == 10_000
    assert call.outputs[9_999].place == "9999"


def test_a_user_function_mode_does_not_see_torchglass_ops() -> None:
    seen: list[str] = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    model = nn.ReLU()
    with Mode():
        model(torch.ones(1))
    plain = list(seen)
    seen.clear()

    with observe_calls(CallRecorder(model.named_modules())), Mode():
        model(torch.ones(1))

    assert seen == plain


def test_without_an_observer_the_original_call_code_runs() -> None:
    model = nn.Linear(3, 3)

    with intercept_calls():
        waiting = nn.Module.__call__
        code_before = waiting.__code__
        recorded = calls_of(model, torch.ones(1, 3))
        code_after = waiting.__code__

    assert waiting is not CALL
    assert code_before is code_after is CALL.__code__
    assert paths(recorded) == [""]


@pytest.mark.parametrize("somebody_looks", [False, True])
def test_a_module_call_patched_by_others_still_runs(
    monkeypatch: pytest.MonkeyPatch, somebody_looks: bool
) -> None:
    seen: list[nn.Module] = []

    def noting(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        seen.append(module)
        return CALL(module, *args, **kwargs)

    model = nn.Linear(3, 3)
    with monkeypatch.context() as patch:
        patch.setattr(nn.Module, "__call__", noting)
        with observe_calls(CallRecorder([("", model)])) if somebody_looks else intercept_calls():
            model(torch.ones(1, 3))

    assert seen == [model]


class Running(NamedTuple):
    path: str


class Paths(ModuleStack[Running]):
    """The smallest observer: the paths of calls, with what autograd runs again in brackets."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.named_modules(), "some paths were not recorded")
        self.seen: list[str | None] = []

    def begin(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Running | None:
        path = self.locate(module)
        self.seen.append(f"({path})" if self.is_recomputation() else path)
        if path == "1":
            raise RuntimeError("no place for 1")
        return None if path is None else Running(path)


def test_an_observer_error_is_one_warning_and_the_forward_continues() -> None:
    model = nn.Sequential(nn.ReLU(), nn.ReLU(), nn.ReLU())
    with observe_calls(Paths(model)) as paths:
        with pytest.warns(TorchglassWarning, match="some paths were not recorded") as told:
            model(torch.ones(1))
        model(torch.ones(1))
    assert paths.seen == ["", "0", "1", "2"] * 2
    assert len(told) == 1
    assert paths.running == []
    assert paths.current is None


def test_an_observer_can_recognize_checkpoint_recomputation() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with observe_calls(Paths(model)) as paths:
        x = torch.ones(1, 2, requires_grad=True)
        checkpoint(model, x, use_reentrant=False).sum().backward()
    assert paths.seen == ["", "0", "()", "(0)"]

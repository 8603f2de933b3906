"""A model inspected in runs of our own: one to warm up, one for the time, one for all else."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from torchglass.capture.calls import recording
from torchglass.capture.forward.keeping import retried_with_gradients
from torchglass.capture.inspection.assembling import inspected_model
from torchglass.capture.inspection.recording import InspectionRecorder, Watched
from torchglass.capture.timing.backward import Reached
from torchglass.capture.timing.steps import NO_BACKWARD, Loss, Step, keeping_parameters, with_shapes
from torchglass.errors import CaptureError
from torchglass.records.inspection import (
    Effort,
    InspectedCall,
    InspectedModel,
    InspectedModule,
)
from torchglass.records.timing import Stage

Progress = Callable[[int, int], None]
"""Is told how many of how many calls are done."""


@retried_with_gradients
def inspect_run(
    model: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    backward: bool,
    loss: Loss | None = None,
    depth: int | None = None,
    progress: Progress | None = None,
    gradients: bool = False,
) -> InspectedModel:
    """Run a model from the same state three times, and put together what was seen."""
    if not isinstance(model, nn.Module):
        raise CaptureError(f"an nn.Module is inspected; this is {type(model).__qualname__}")
    model, located = with_shapes(model, args, kwargs)
    modules = [module for _, module in located]
    step = Step(model, modules, args, kwargs, backward=backward, loss=loss, gradients=gradients)
    usual = Watched(backward=backward, depth=depth)
    times_only = usual._replace(values=False, memory=False)
    with keeping_parameters(modules):
        warm = _run(step, model, times_only)
        counter = _Counter(progress, 2 * sum(module.call_count for module in warm.modules))
        timed = _run(step, model, times_only, counter.tick)
        seen = _run(step, model, usual, counter.tick)
    notes = list(seen.notes)
    if backward and not step.went_back:
        notes = [NO_BACKWARD]
    return replace(_with_times(seen, timed), notes=tuple(notes))


def _run(
    step: Step, model: nn.Module, watched: Watched, tick: Callable[[], None] | None = None
) -> InspectedModel:
    recorder = InspectionRecorder([model], watched, tick=tick)
    watcher = _Watcher(recorder, model)
    try:
        with recording(recorder):
            step.run(watcher)
    finally:
        recorder.close()
    return watcher.seen


class _Watcher:
    """Takes the record of a run while the gradients that it made are still there."""

    seen: InspectedModel

    def __init__(self, recorder: InspectionRecorder, model: nn.Module) -> None:
        self._recorder = recorder
        self._model = model

    @contextlib.contextmanager
    def stage(self, name: Stage) -> Iterator[None]:
        yield
        if name != "loss":
            kind = type(self._model).__name__
            self.seen = inspected_model(self._recorder, 0, self._model, kind)

    def before_backward(self, nodes: Sequence[Reached]) -> None:
        return None


class _Counter:
    """Counts calls, and tells of each."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def tick(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, max(self._total, self._done))


def _with_times(seen: InspectedModel, timed: InspectedModel) -> InspectedModel:
    """What was seen in one run with the times of another, where both made the same calls."""
    times = {module.path: module.calls for module in timed.modules}
    modules = (_module_with_times(module, times.get(module.path, ())) for module in seen.modules)
    return replace(seen, modules=tuple(modules))


def _module_with_times(module: InspectedModule, timed: Sequence[InspectedCall]) -> InspectedModule:
    if len(timed) != len(module.calls):
        return module
    calls = (
        replace(
            call,
            forward=_taken(call.forward, other.forward),
            backward=_taken(call.backward, other.backward),
        )
        for call, other in zip(module.calls, timed, strict=True)
    )
    return replace(module, calls=tuple(calls))


def _taken(seen: Effort | None, timed: Effort | None) -> Effort | None:
    if seen is None or timed is None:
        return seen
    return replace(timed, added_bytes=seen.added_bytes)

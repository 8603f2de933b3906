"""Inspects a model in three runs: warm-up, time, everything else."""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from torchglass.analyse.parameters import count
from torchglass.capture.autograd import retried_with_gradients
from torchglass.capture.isolated_run import (
    NO_BACKWARD,
    IsolatedRun,
    Loss,
    RunObserver,
    isolated_run,
)
from torchglass.capture.model.structure import modules_in, read_model
from torchglass.capture.module_calls import observe_calls
from torchglass.capture.observe.observed_call import ModuleHistory, ObservedCall
from torchglass.capture.observe.recorder import ModuleRecorder, RecordOptions, depth_of
from torchglass.capture.tensor.description import Args, Kwargs, describe
from torchglass.errors import CaptureError
from torchglass.records.calls import CallCost, InspectedCall, InspectedModel, InspectedModule
from torchglass.records.measures import Stage
from torchglass.records.model import Model, ModuleId

_NOT_CALLED = "the model was not called during the inspection"
_NO_BACKWARD = "there was no backward during the inspection"
_NO_MEMORY = "compiled modules were inspected as a whole, without memory"
_FORGOTTEN = "only the latest {keep} calls of each module are listed"


def inspected_model(
    recorder: ModuleRecorder, index: int, model: nn.Module, name: str
) -> InspectedModel:
    """The record of one of a recorder's models."""
    recorder.finish_reading()
    histories = {path: history for (of, path), history in recorder.histories.items() if of == index}
    modules = list(_modules(recorder, model, histories))
    modules += _strays(recorder, modules, histories)
    return InspectedModel(
        name=name,
        modules=tuple(_in_tree_order(modules)),
        passes=recorder.passes[index],
        notes=tuple(_notes(recorder, modules, histories)),
    )


def _modules(
    recorder: ModuleRecorder, model: nn.Module, histories: Mapping[str, ModuleHistory]
) -> Iterator[InspectedModule]:
    structure = read_model(model)
    counts = count(structure)
    live = dict(modules_in(model))
    limit = recorder.options.depth
    places: dict[ModuleId, int] = {}
    for module in structure.modules:
        if limit is not None and depth_of(module.path) > limit:
            continue
        held = counts[module.id].total
        same_as = _first_path(structure, module.alias_of)
        history = histories.get(module.path) if same_as is None else None
        itself = live.get(module.path if same_as is None else same_as)
        parent = None if module.parent is None else places[module.parent]
        places[module.id] = len(places)
        yield InspectedModule(
            path=module.path,
            name=module.name,
            class_name=module.kind,
            parent=parent,
            parameters=held.parameters,
            learnable=held.trainable,
            parameter_bytes=held.parameter_bytes,
            gradient_bytes=_gradient_bytes(recorder, itself),
            same_as=same_as,
            **_told(recorder, history),
        )


def _strays(
    recorder: ModuleRecorder, modules: list[InspectedModule], histories: Mapping[str, ModuleHistory]
) -> Iterator[InspectedModule]:
    """Called modules that are not part of the model, each below its caller."""
    places = {module.path: index for index, module in enumerate(modules)}
    for path in sorted(histories.keys() - places.keys(), key=depth_of):
        above, _, name = path.rpartition(".")
        parent = places.get(above, 0)
        places[path] = len(places)
        history = histories[path]
        yield InspectedModule(
            path=path,
            name=name,
            class_name=history.class_name,
            parent=parent,
            **_told(recorder, history),
        )


def _in_tree_order(modules: Sequence[InspectedModule]) -> Iterator[InspectedModule]:
    """The modules depth first."""
    below: dict[int | None, list[int]] = defaultdict(list)
    for index, module in enumerate(modules):
        below[module.parent].append(index)
    places: dict[int | None, int | None] = {None: None}
    waiting = [0]
    while waiting:
        index = waiting.pop()
        module = modules[index]
        places[index] = len(places) - 1
        yield replace(module, parent=places[module.parent])
        waiting += reversed(below[index])


def _first_path(structure: Model, first: ModuleId | None) -> str | None:
    return None if first is None else structure[first].path


def _told(recorder: ModuleRecorder, history: ModuleHistory | None) -> dict[str, Any]:
    if history is None:
        return {}
    calls = tuple(call.inspection(times=recorder.options.forward) for call in history.kept)
    return {"call_count": history.begun, "calls": calls}


def _gradient_bytes(recorder: ModuleRecorder, module: nn.Module | None) -> int:
    """The size of a module's gradients when they arrived; otherwise their current size."""
    if module is None:
        return 0
    seen = recorder.gradient_bytes
    return sum(
        seen[id(parameter)] if id(parameter) in seen else _bytes(parameter.grad)
        for parameter in module.parameters()
    )


def _bytes(gradient: torch.Tensor | None) -> int:
    return 0 if gradient is None else describe(gradient).bytes


def _notes(
    recorder: ModuleRecorder, modules: list[InspectedModule], histories: Mapping[str, ModuleHistory]
) -> Iterator[str]:
    options = recorder.options
    if not histories:
        yield _NOT_CALLED
    elif options.backward and not any(module.backward for module in modules):
        yield _NO_BACKWARD
    if options.memory and not recorder.weighs:
        yield _NO_MEMORY
    if any(history.begun > len(history.kept) for history in histories.values()):
        yield _FORGOTTEN.format(keep=options.keep)


Progress = Callable[[int, int], None]
"""Receives the number of finished calls and the total."""


@retried_with_gradients
def inspect_run(
    model: Any,
    args: Args,
    kwargs: Kwargs,
    *,
    backward: bool,
    loss: Loss | None = None,
    depth: int | None = None,
    progress: Progress | None = None,
    gradients: bool = False,
) -> InspectedModel:
    """Run a model three times from the same state, and combine the records."""
    if not isinstance(model, nn.Module):
        raise CaptureError(f"inspect expects an nn.Module, not {type(model).__qualname__}")
    usual = RecordOptions(backward=backward, depth=depth)
    times_only = usual._replace(level=None, memory=False)
    with isolated_run(
        model, args, kwargs, backward=backward, loss=loss, gradients=gradients, compiled=True
    ) as run:
        warm = _run(run, times_only)
        total, done = 2 * sum(module.call_count for module in warm.modules), itertools.count(1)

        def report(call: ObservedCall) -> None:
            number = next(done)
            if progress is not None:
                progress(number, max(total, number))

        timed = _run(run, times_only, report)
        seen = _run(run, usual, report)
    notes = list(seen.notes)
    if backward and not run.went_back:
        notes = [NO_BACKWARD]
    return replace(_with_times(seen, timed), notes=tuple(notes))


def _run(
    run: IsolatedRun, options: RecordOptions, count: Callable[[ObservedCall], None] | None = None
) -> InspectedModel:
    recorder = ModuleRecorder([modules_in(run.target)], options)
    recorder.call_ended = count
    observer = _InspectionObserver(recorder, run.target)
    try:
        with observe_calls(recorder):
            run.run(observer)
    finally:
        recorder.close()
    return observer.seen


class _InspectionObserver(RunObserver):
    """Takes the record of a run while its gradients still exist."""

    seen: InspectedModel

    def __init__(self, recorder: ModuleRecorder, model: nn.Module) -> None:
        self._recorder = recorder
        self._model = model

    @contextlib.contextmanager
    def stage(self, name: Stage) -> Iterator[None]:
        yield
        if name != "loss":
            kind = type(self._model).__name__
            self.seen = inspected_model(self._recorder, 0, self._model, kind)


def _with_times(seen: InspectedModel, timed: InspectedModel) -> InspectedModel:
    """The record of one run with the times of another, where the calls match."""
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


def _taken(seen: CallCost | None, timed: CallCost | None) -> CallCost | None:
    if seen is None or timed is None:
        return seen
    return replace(timed, added_bytes=seen.added_bytes)

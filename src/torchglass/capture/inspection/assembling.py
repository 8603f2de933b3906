"""What a recorder has seen of a model, put together with what the model holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from torchglass.analyse.model.parameters import count
from torchglass.capture.forward.looking import modules_in
from torchglass.capture.inspection.calls import Home
from torchglass.capture.inspection.recording import InspectionRecorder, depth_of
from torchglass.capture.model.structure import read_model
from torchglass.capture.tensor.describing import describe
from torchglass.records.inspection import InspectedModel, InspectedModule
from torchglass.records.model import Model, ModuleId

_NOT_CALLED = "the model was not called while it was watched"
_NO_BACKWARD = "no gradient came back while it was watched"
_NO_MEMORY = "compiled modules were watched whole, and their memory was not"
_FORGOTTEN = "calls are told one by one only as far as the latest {keep} of each module"


def inspected_model(
    recorder: InspectionRecorder, index: int, model: nn.Module, name: str
) -> InspectedModel:
    """The record of one of the models that a recorder watches."""
    recorder.finish_reading()
    homes = {path: home for (of, path), home in recorder.homes.items() if of == index}
    modules = list(_modules(recorder, model, homes))
    modules += _strays(recorder, modules, homes)
    return InspectedModel(
        name=name,
        modules=tuple(_in_tree_order(modules)),
        passes=recorder.passes[index],
        notes=tuple(_notes(recorder, modules, homes)),
    )


def _modules(
    recorder: InspectionRecorder, model: nn.Module, homes: Mapping[str, Home]
) -> Iterator[InspectedModule]:
    structure = read_model(model)
    counts = count(structure)
    live = dict(modules_in(model))
    limit = recorder.watched.depth
    places: dict[ModuleId, int] = {}
    for module in structure.modules:
        if limit is not None and depth_of(module.path) > limit:
            continue
        held = counts[module.id].total
        same_as = _first_path(structure, module.alias_of)
        home = homes.get(module.path) if same_as is None else None
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
            **_told(recorder, home),
        )


def _strays(
    recorder: InspectionRecorder, modules: list[InspectedModule], homes: Mapping[str, Home]
) -> Iterator[InspectedModule]:
    """Modules that were called and are not in the model, each below its caller."""
    places = {module.path: index for index, module in enumerate(modules)}
    for path in sorted(homes.keys() - places.keys(), key=depth_of):
        above, _, name = path.rpartition(".")
        parent = places.get(above, 0)
        places[path] = len(places)
        home = homes[path]
        yield InspectedModule(
            path=path,
            name=name,
            class_name=home.class_name,
            parent=parent,
            **_told(recorder, home),
        )


def _in_tree_order(modules: Sequence[InspectedModule]) -> Iterator[InspectedModule]:
    """The modules with all that is below each right after it."""
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


def _told(recorder: InspectionRecorder, home: Home | None) -> dict[str, Any]:
    if home is None:
        return {}
    calls = tuple(call.record(times=recorder.watched.forward) for call in home.calls)
    return {"call_count": home.begun, "calls": calls}


def _gradient_bytes(recorder: InspectionRecorder, module: nn.Module | None) -> int:
    """What the gradients of a module's parameters took when they came, or else take now."""
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
    recorder: InspectionRecorder, modules: list[InspectedModule], homes: Mapping[str, Home]
) -> Iterator[str]:
    watched = recorder.watched
    if not homes:
        yield _NOT_CALLED
    elif watched.backward and not any(module.backward for module in modules):
        yield _NO_BACKWARD
    if watched.memory and not recorder.weighs:
        yield _NO_MEMORY
    if any(home.begun > len(home.calls) for home in homes.values()):
        yield _FORGOTTEN.format(keep=watched.keep)

"""The tensors of a model that is not in memory: from a checkpoint or a traced pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import torch

from torchglass.capture.live.attributes import Held
from torchglass.capture.live.live_object import LiveObject, Load, Recorded
from torchglass.errors import LookupFailedError
from torchglass.records.attributes import Attribute, AttributeId, AttributeRole
from torchglass.records.model import Model, Module, join_path
from torchglass.records.trace import CallRecord, OpId, TraceRecord, Value

Tensors = Mapping[tuple[OpId, int], torch.Tensor]


def recorded_tensors(trace: TraceRecord, tensors: Tensors) -> dict[str, dict[str, torch.Tensor]]:
    """For the path of each module the tensors of its last call, by what they are to it.

    They are named as series are: `input.0`, `input.mask`, `output`, `output.0`.
    """
    found: dict[str, dict[str, torch.Tensor]] = {}
    for call in trace.calls:
        known = dict(_of_call(trace, call, tensors))
        if known:
            found[call.path] = known
    return found


def _of_call(
    trace: TraceRecord, call: CallRecord, tensors: Tensors
) -> Iterator[tuple[str, torch.Tensor]]:
    for side, values in (("input", call.inputs), ("output", call.outputs)):
        for value in values:
            tensor = _saved(trace, value, tensors)
            if tensor is not None:
                yield join_path(side, value.place), tensor


def _saved(trace: TraceRecord, value: Value, tensors: Tensors) -> torch.Tensor | None:
    """The tensor of a value: the output of its op that has the same shape and memory."""
    if value.op is None:
        return None
    for number, output in enumerate(trace.ops[value.op].outputs):
        if output.spec == value.spec and output.memory == value.memory:
            return tensors.get((value.op, number))
    return None


Loads = Mapping[str, Load]


class _Unread(NamedTuple):
    """Something that is held, and how to get at it once it is looked at."""

    name: str
    role: AttributeRole
    load: Callable[[], object]


class StoredObject(LiveObject):
    """A model by its record, of which the tensors can be loaded that its modules hold."""

    def __init__(self, model: Model, load: Loads, recorded: Recorded | None = None) -> None:
        """`load` is how to get at a tensor by its dotted name."""
        super().__init__(model, recorded)
        self._model = model
        self._load = load

    def _module_at(self, path: str) -> object:
        module = self._model.find(path)
        if module is None:
            raise LookupFailedError(f"the model has no module {path!r}")
        return module

    def _tensors_at(self, path: str) -> list[Held]:
        """Nothing: what a record holds has all there is in it."""
        return []

    def _holdings(
        self, thing: Any, start: int, most: int, *, everything: bool
    ) -> tuple[list[Held], int]:
        if not isinstance(thing, Module):
            return super()._holdings(thing, start, most, everything=everything)
        found = list(self._held_by(thing))
        page = found[start : start + most]
        return [Held(one.name, one.role, one.load()) for one in page], len(found)

    def _slots(self) -> Iterator[tuple[str, str, Literal["parameter", "buffer"], Load]]:
        for module in self._model.modules:
            for slot in module.slots:
                load = self._load.get(join_path(module.path, slot.name))
                if load is not None:
                    role: Literal["parameter", "buffer"] = (
                        "buffer" if slot.role == "buffer" else "parameter"
                    )
                    yield module.path, slot.name, role, load

    def _held_by(self, module: Module) -> Iterator[_Unread]:
        """What went through a module, what it holds, and the modules in it."""
        for name, role, tensor in super()._tensors_at(module.path):
            yield _Unread(name, role, partial(_itself, tensor))
        for slot in module.slots:
            load = self._load.get(join_path(module.path, slot.name))
            if load is not None:
                yield _Unread(slot.name, "buffer" if slot.role == "buffer" else "parameter", load)
        for child in map(self._model.__getitem__, module.children):
            yield _Unread(child.name, "module", partial(_itself, child))

    def _describe(self, id: AttributeId, held: Held, above: tuple[int, ...]) -> Attribute:
        module = held.value
        if not isinstance(module, Module):
            return super()._describe(id, held, above)
        return Attribute(
            id=id,
            name=held.name,
            role="module",
            type_name=module.kind,
            text=module.extra,
            opens=bool(module.slots or module.children),
        )


T = TypeVar("T")


def _itself(thing: T) -> T:
    return thing

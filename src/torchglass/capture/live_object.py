"""A model that can be browsed: live, from a checkpoint, or from a traced pass.

>>> live = LiveObject(nn.Sequential(nn.Linear(3, 4)))
>>> [attribute.name for attribute in live.open(live.module("0").id).attributes]
['weight', 'bias', 'training', 'in_features', 'out_features']
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from torchglass.capture import attributes
from torchglass.capture.attributes import (
    Held,
    Words,
    holdings,
    one_line,
    opens,
    whole_text,
)
from torchglass.capture.isolated_run import keeping_random_state
from torchglass.capture.model.module_parts import module_parts
from torchglass.capture.model.structure import modules_in
from torchglass.capture.tensor.description import Load, NamedTensors, constant, describe
from torchglass.errors import LookupFailedError, error_line
from torchglass.records.calls import ForwardStats
from torchglass.records.findings import Finding
from torchglass.records.model import (
    Attribute,
    AttributeId,
    AttributeRole,
    Index,
    LinearHistogram,
    Model,
    Module,
    Page,
    Progress,
    Stats,
    TensorFacts,
    join_path,
)
from torchglass.records.trace import CallRecord, OpId, TraceRecord, Value

Recorded = Mapping[str, Mapping[str, torch.Tensor]]
"""The inputs and outputs of modules, by path and name."""
RecordedCalls = Mapping[tuple[str, int], Mapping[str, torch.Tensor]]
"""The same by path and number of the call, in the order of the calls."""


class _KnownObject(NamedTuple):
    """An object that was described, and how it was reached."""

    held: Held
    owner: Any
    above: tuple[int, ...]
    """The ids of the objects that it was reached through."""


class LiveObject:
    """A model, or an object that holds models, with the tensors of a recorded forward."""

    def __init__(
        self, target: object, recorded: Recorded | None = None, calls: RecordedCalls | None = None
    ) -> None:
        """`recorded` has the tensors of each module's last call, which are also in `calls`."""
        self._target = target
        self._calls = calls or {}
        self._recorded = recorded or {path: seen for (path, _), seen in self._calls.items()}
        self._known: dict[AttributeId, _KnownObject] = {}
        self._ids = count()
        self._root: AttributeId | None = None
        self._tensors: list[Held] = []

    def module(self, path: str) -> Attribute:
        module = self._module_at(path)
        tensors = self._tensors_at(path)
        self._known, self._tensors = {}, tensors
        held = Held(path.rpartition(".")[2], "module", module)
        (described,) = self._described([held], None, ())
        self._root = described.id
        return described

    def open(
        self, id: AttributeId, *, start: int = 0, most: int = 100, everything: bool = False
    ) -> Page:
        """A page of what an object holds; `everything` adds private attributes and methods."""
        known = self._find(id)
        thing = known.held.value
        recorded = self._tensors if id == self._root else self._tensors_of_call(thing)
        first = recorded[start : start + most]
        held, total = self._holdings(
            thing, max(start - len(recorded), 0), most - len(first), everything=everything
        )
        found = self._described([*first, *held], thing, (*known.above, _identity(thing)))
        return Page(attributes=found, start=start, total=len(recorded) + total)

    def call(self, id: AttributeId) -> Attribute:
        """The value of a property; what it raises is the attribute's problem."""
        known = self._find(id)
        name = known.held.name
        try:
            with keeping_random_state():
                value = known.held.value.__get__(known.owner, type(known.owner))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a property is foreign code
            return Attribute(id=id, name=name, role="property", problem=error_line(error))
        held = Held(name, "attribute", value)
        self._known[id] = known._replace(held=held)
        return self._describe(id, held, known.above)

    def text(self, id: AttributeId) -> str:
        """The whole repr of an object, cut at a readable length."""
        with keeping_random_state():
            return whole_text(self._find(id).held.value)

    def facts(self, id: AttributeId) -> TensorFacts:
        return attributes.tensor_facts(self._tensor(id))

    def values(
        self, id: AttributeId, index: Index, rows: range, columns: range
    ) -> npt.NDArray[Any]:
        """Rows and columns of a two-dimensional slice."""
        return attributes.cut(self._tensor(id), index, rows, columns)

    def image(
        self, id: AttributeId, index: Index, height: int, width: int
    ) -> npt.NDArray[np.float32]:
        """A two-dimensional slice, scaled to a number of pixels."""
        return attributes.image(self._tensor(id), index, height, width)

    def measure(self, id: AttributeId, progress: Progress, part: Index = ()) -> Stats | None:
        """The statistics of a tensor or of a part of it."""
        return attributes.measure_all(attributes.part_of(self._tensor(id), part), progress)

    def spread(
        self, id: AttributeId, stats: Stats, bins: int, progress: Progress, part: Index = ()
    ) -> LinearHistogram | None:
        """The histogram of the finite values."""
        return attributes.spread(attributes.part_of(self._tensor(id), part), stats, bins, progress)

    def check(self, progress: Progress) -> tuple[Finding, ...] | None:
        """The parameters and buffers with NaN or Inf; None if there are none, or if stopped."""
        slots = list(self._slots())
        found = []
        for done, (path, name, role, load) in enumerate(slots):
            if not progress(done / len(slots)):
                return None
            # A tensor of a foreign class, or in a missing file, must not hide the others.
            with contextlib.suppress(Exception):
                problem = attributes.not_finite(path, name, role, load())
                found += [problem] if problem else []
        return tuple(found) if slots else None

    def _slots(self) -> Iterator[tuple[str, str, Literal["parameter", "buffer"], Load]]:
        """Each parameter and buffer once: path of the module, name, role, and how to load it."""
        seen: set[int] = set()
        for path, module in modules_in(self._target):
            for name, tensor in module._parameters.items():
                if tensor is not None and not _is_known(tensor, seen):
                    yield path, name, "parameter", constant(tensor)
            for name, buffer in module._buffers.items():
                if buffer is not None and not _is_known(buffer, seen):
                    yield path, name, "buffer", constant(buffer)

    def _module_at(self, path: str) -> object:
        return _find(self._target, path)

    def _tensors_at(self, path: str) -> list[Held]:
        recorded = self._recorded.get(path, {})
        return [Held(name, "recorded", tensor) for name, tensor in recorded.items()]

    def _tensors_of_call(self, thing: Any) -> list[Held]:
        if not isinstance(thing, ForwardStats):
            return []
        recorded = self._calls.get((thing.path, thing.number), {})
        return [Held(name, "recorded", tensor) for name, tensor in recorded.items()]

    def _find(self, id: AttributeId) -> _KnownObject:
        known = self._known.get(id)
        if known is None:
            raise LookupFailedError("another module was opened: reload this one")
        return known

    def _tensor(self, id: AttributeId) -> torch.Tensor:
        held = self._find(id).held
        if isinstance(held.value, np.ndarray):
            return torch.from_numpy(held.value)
        if not isinstance(held.value, torch.Tensor):
            raise LookupFailedError(f"{held.name} is not a tensor")
        return held.value

    def _described(
        self, held: Sequence[Held], owner: Any, above: tuple[int, ...]
    ) -> tuple[Attribute, ...]:
        found = []
        for one in held:
            number = AttributeId(next(self._ids))
            self._known[number] = _KnownObject(one, owner, above)
            found.append(self._describe(number, one, above))
        return tuple(found)

    def _holdings(
        self, thing: Any, start: int, most: int, *, everything: bool
    ) -> tuple[list[Held], int]:
        return holdings(thing, start, most, everything=everything)

    def _describe(self, id: AttributeId, held: Held, above: tuple[int, ...]) -> Attribute:
        return _describe(id, held, above)


def _describe(id: AttributeId, held: Held, above: tuple[int, ...]) -> Attribute:
    """Describe an object without running its code, except its repr."""
    name, role, value = held
    if role == "property":
        return Attribute(id=id, name=name, role=role)
    kind = type(value).__qualname__
    if isinstance(value, (torch.Tensor, np.ndarray)):
        tensor = _as_tensor(value)
        if tensor is not None:
            return Attribute(id=id, name=name, role=role, type_name=kind, spec=describe(tensor))
    encloses = _identity(value) in above
    try:
        words, problem = one_line(value), ""
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a repr is foreign code
        words, problem = Words(""), f"its repr raised {error_line(error)}"
    return Attribute(
        id=id,
        name=name,
        role=role,
        type_name=kind,
        text=words.text,
        reads=words.is_cut,
        opens=role != "method" and opens(value),
        encloses=encloses,
        problem=problem,
    )


def _as_tensor(value: Any) -> torch.Tensor | None:
    if isinstance(value, torch.Tensor):
        return value
    try:
        return torch.from_numpy(value)
    except (TypeError, ValueError):
        # torch has no texts, dates and reversed arrays.
        return None


def _is_known(tensor: torch.Tensor, seen: set[int]) -> bool:
    """Whether a tensor was seen before, or has no values to check."""
    known = id(tensor) in seen or is_lazy(tensor) or tensor.is_meta
    seen.add(id(tensor))
    return known


_identity = id


def _find(target: object, path: str) -> object:
    """The module at a dotted path; names may contain dots, like the keys of a ModuleDict."""
    waiting = [(target, path)]
    while waiting:
        thing, rest = waiting.pop()
        if not rest:
            return thing
        for name, part in _parts(thing):
            if rest == name or rest.startswith(f"{name}."):
                waiting.append((part, rest[len(name) + 1 :]))
    raise LookupFailedError(f"the model no longer has a module {path!r}")


def _parts(thing: Any) -> list[tuple[str, Any]]:
    if not isinstance(thing, nn.Module):
        return module_parts(thing)
    children = object.__getattribute__(thing, "__dict__").get("_modules", {})
    return [(str(name), part) for name, part in children.items() if part is not None]


Tensors = Mapping[tuple[OpId, int], torch.Tensor]


def recorded_tensors(trace: TraceRecord, tensors: Tensors) -> dict[str, dict[str, torch.Tensor]]:
    """The tensors of the last call of each module, by path and name.

    They are named as series are: `input.0`, `input.mask`, `output`, `output.0`.
    """
    found: dict[str, dict[str, torch.Tensor]] = {}
    for call in trace.calls:
        known = dict(_of_call(trace, call, tensors))
        if known:
            found[call.path] = known
    return found


def _of_call(trace: TraceRecord, call: CallRecord, tensors: Tensors) -> NamedTensors:
    for side, values in (("input", call.inputs), ("output", call.outputs)):
        for value in values:
            tensor = _saved(trace, value, tensors)
            if tensor is not None:
                yield join_path(side, value.place), tensor


def _saved(trace: TraceRecord, value: Value, tensors: Tensors) -> torch.Tensor | None:
    """The saved output of a value's op that has the same shape and memory."""
    if value.op is None:
        return None
    for number, output in enumerate(trace.ops[value.op].outputs):
        if output.spec == value.spec and output.memory == value.memory:
            return tensors.get((value.op, number))
    return None


Loads = Mapping[str, Load]


class _Unread(NamedTuple):
    """An attribute that is loaded when it is opened."""

    name: str
    role: AttributeRole
    load: Callable[[], object]


class StoredObject(LiveObject):
    """A model from its record, whose tensors are loaded when they are opened."""

    def __init__(self, model: Model, load: Loads, recorded: Recorded | None = None) -> None:
        """`load` has a function for each tensor, by dotted name."""
        super().__init__(model, recorded)
        self._model = model
        self._load = load

    def _module_at(self, path: str) -> object:
        module = self._model.find(path)
        if module is None:
            raise LookupFailedError(f"the model has no module {path!r}")
        return module

    def _tensors_at(self, path: str) -> list[Held]:
        """Empty: `_held_by` has them."""
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
        """The recorded tensors of a module, its slots and its children."""
        for name, role, tensor in super()._tensors_at(module.path):
            yield _Unread(name, role, constant(tensor))
        for slot in module.slots:
            load = self._load.get(join_path(module.path, slot.name))
            if load is not None:
                yield _Unread(slot.name, "buffer" if slot.role == "buffer" else "parameter", load)
        for child in map(self._model.__getitem__, module.children):
            yield _Unread(child.name, "module", constant(child))

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

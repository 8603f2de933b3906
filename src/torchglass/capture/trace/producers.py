"""Which op produced each tensor, through views and in-place writes."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch

from torchglass.capture.tensor.description import Args, Kwargs, describe, iter_tensors
from torchglass.capture.tensor.memory_extent import (
    ByMemory,
    Extent,
    View,
    extent_of,
    extent_of_view,
    storage_of,
    view_of,
)
from torchglass.capture.torch_modes import SETS_DATA
from torchglass.capture.trace.op_mode import Chain, OpEvent, phase_of, user_code
from torchglass.capture.trace.saved_tensors import Output
from torchglass.errors import quickly
from torchglass.records.model import TensorSpec
from torchglass.records.trace import (
    CallId,
    CallRecord,
    Operand,
    OpId,
    OpRecord,
    Phase,
    SourceLine,
    Value,
)

_Made = tuple[OpId, int, torch.Tensor | View]
"""An op, the index of an output, and the output or the memory it covered."""


class Producers:
    """Follows tensors through a pass, in order."""

    def __init__(self, *, hold: bool) -> None:
        """Pass `hold` if something else keeps the tensors alive as long as this object.

        The id of a freed tensor may be reused. So without `hold` each tensor is remembered with the
        memory it covered, which distinguishes the two.
        """
        self._makers: dict[int, OpId] = {}
        self._outputs: dict[int, int] = {}
        """The indices of outputs that are not an op's first."""
        self._views: dict[int, View] | None = None if hold else {}
        self._by_storage: dict[int, list[_Made]] = {}
        self._not_by_storage: list[_Made] = []
        self._writes: dict[int, ByMemory[OpId]] = {}

    def made(self, op: OpId, tensors: Sequence[torch.Tensor]) -> None:
        for output, tensor in enumerate(tensors):
            key = id(tensor)
            self._makers[key] = op
            if output or key in self._outputs:
                self._outputs[key] = output
            shown: torch.Tensor | View = tensor
            if self._views is not None:
                shown = self._views[key] = view_of(tensor)
            self._not_by_storage.append((op, output, shown))

    def wrote(self, op: OpId, tensor: torch.Tensor) -> None:
        extent = extent_of(tensor)
        if extent is not None:
            writes = self._writes.setdefault(extent.storage, ByMemory())
            # It has read what it overwrote, or that is no longer visible.
            writes.take(extent, extent.covers)
            writes.add(extent, op)

    def find(self, tensor: torch.Tensor) -> Output | None:
        """The op that created a tensor, wrote it last, or created the memory it is a view of."""
        # By its memory, if the view was created unseen, as `vmap` does with its results.
        return self.own(tensor) or self.of_storage(tensor)

    def writers_since(
        self, op: OpId, tensor: torch.Tensor, views: Sequence[torch.Tensor] = ()
    ) -> tuple[OpId, ...]:
        """The later ops that wrote, through other tensors, into the memory of this one.

        For a tensor that is only used through views, the memory of the views counts.
        """
        storage = storage_of(tensor) if self._writes else None
        writes = self._writes.get(storage) if storage is not None else None
        if writes is None:
            return ()
        if not views or any(storage_of(view) != storage for view in views):
            views = (tensor,)
        extents = filter(None, map(extent_of, views))
        writers = {writer for extent in extents for writer in writes.meeting(extent)}
        return tuple(sorted(writer for writer in writers if writer > op))

    def own(self, tensor: torch.Tensor) -> Output | None:
        """The op that created this tensor itself, not one that shares its memory."""
        key = id(tensor)
        maker = self._makers.get(key)
        if maker is None or (self._views is not None and self._views[key] != view_of(tensor)):
            return None
        return maker, self._outputs.get(key, 0)

    def of_storage(self, tensor: torch.Tensor) -> Output | None:
        """The last op that created a tensor's memory.

        Few passes need it, so the index is built on demand.
        """
        for made in self._not_by_storage:
            there = _extent(made)
            if there is not None:
                self._by_storage.setdefault(there.storage, []).append(made)
        self._not_by_storage.clear()
        extent = extent_of(tensor)
        if extent is None:
            return None
        # A storage may contain several tensors, such as slices of one batch.
        for made in reversed(self._by_storage.get(extent.storage, ())):
            there = _extent(made)
            if there is not None and there.meets(extent):
                return made[:2]
        return None


def _extent(made: _Made) -> Extent | None:
    shown = made[2]
    return extent_of(shown) if isinstance(shown, torch.Tensor) else extent_of_view(shown)


Located = Iterable[tuple[str, torch.Tensor]]
Settings = tuple[tuple[str, str], ...]
Said = TypeVar("Said", str, Settings)


class CodePath(NamedTuple):
    """What is known from the call stack of an op or a call."""

    number: int
    """Equal whenever the pass takes the same call stack again."""
    source: SourceLine | None
    """Its innermost line of user code."""
    phase: Phase


class QuickRecords(NamedTuple):
    """Functions that create records in half the time of their classes."""

    op: type[OpRecord]
    operand: type[Operand]
    value: type[Value]
    call: type[CallRecord]


@functools.cache
def quick_records() -> QuickRecords:
    """Created for the first pass that is assembled: it takes as long as a hundred ops."""
    kinds: Any = map(quickly, (OpRecord, Operand, Value, CallRecord))
    return QuickRecords(*kinds)


class OpLinker:
    """Turns the events of a pass, in order, into ops that know their parents.

    Many parts of a pass are equal, so equal objects are created once.
    """

    def __init__(
        self,
        parameters: dict[int, str | Operand],
        buffers: Mapping[int, str],
        ops: Sequence[OpRecord],
        *,
        all_kept: bool,
    ) -> None:
        """The names of the model's tensors, by id. A parameter's is replaced by its operand.

        `ops` are the records so far. `all_kept` says that the pass is over, and that none of its
        tensors is freed before the last event.
        """
        self._new = quick_records()
        self._ops = ops
        self._all_kept = all_kept
        self._parameters = parameters
        self._buffers = buffers
        self._producers = Producers(hold=all_kept)
        self._locations: dict[tuple[CallId, int], dict[str, CallId]] = {}
        self._ways: dict[Chain, CodePath] = {}
        self._alone: dict[TensorSpec, tuple[Value]] = {}
        self._said: dict[Any, Any] = {}
        self._inputs: set[OpId] = set()

    def source_op(self, id: OpId, address: str, tensor: torch.Tensor) -> OpRecord:
        """The record of an input of the pass."""
        self._inputs.add(id)
        return OpRecord(id=id, kind="input", function=address, outputs=self._made(id, (tensor,)))

    def final_op(self, id: OpId, address: str, tensor: torch.Tensor) -> OpRecord:
        """The record of an output of the pass."""
        operand = self._operand(address, tensor)
        return OpRecord(
            id=id,
            kind="output",
            function=address,
            operands=(operand,),
            outputs=(Value(place="", spec=operand.spec),),
        )

    def op(
        self,
        id: OpId,
        event: OpEvent,
        call: CallId | None,
        location: CallId,
        source: SourceLine | None,
    ) -> OpRecord:
        """The record of an event, in a call made at a location of the source."""
        results = event.results
        # An op that writes has read what it overwrote; one that does not may be just a view.
        operands, settings = self._arguments(event, views=() if event.written else results)
        way = self.way(event.chain)
        record = self._new.op(
            id=id,
            function=self._once(_name(event.function)),
            call=call,
            operands=operands,
            outputs=self._made(id, results),
            settings=settings,
            start_ns=event.start_ns,
            end_ns=event.end_ns,
            site=_pair(location + 1, way.number),
            source=way.source or source,
            grad_fn=event.grad_fn,
            writes=bool(event.written),
            phase=way.phase,
        )
        if event.written and event.function != SETS_DATA:
            for tensor in event.written:
                self._producers.wrote(id, tensor)
        return record

    def opaque_op(
        self, id: OpId, function: str, call: CallId, inputs: Located, outputs: Located
    ) -> OpRecord:
        """The record of a module call whose ops are not visible."""
        operands = tuple(self._operand(place, tensor) for place, tensor in inputs)
        made = self._made(id, [tensor for _, tensor in outputs])
        return OpRecord(id=id, function=function, call=call, operands=operands, outputs=made)

    def location(self, around: CallId, way: int, path: str, call: CallId) -> CallId:
        """The first of all calls made from the same place in the code.

        Two calls are at the same place if the outer call, the call stack in between and the module
        are the same.
        """
        return self._locations.setdefault((around, way), {}).setdefault(path, call)

    def way(self, chain: Chain) -> CodePath:
        way = self._ways.get(chain)
        if way is None:
            way = CodePath(len(self._ways), _source(user_code(chain)), phase_of(chain))
            self._ways[chain] = way
        return way

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor was created in the pass or belongs to the model."""
        held = id(tensor) in self._parameters or id(tensor) in self._buffers
        return held or self._producers.find(tensor) is not None

    def is_input(self, tensor: torch.Tensor) -> bool:
        """Whether an input tensor of the outermost call is new, even if it is a view.

        Two views of one batch are two inputs.
        """
        if not self.knows(tensor):
            return True
        return self._producers.own(tensor) is None and self._maker(tensor) in self._inputs

    def _maker(self, tensor: torch.Tensor) -> OpId | None:
        found = self._producers.find(tensor)
        return None if found is None else found[0]

    def value(self, place: str, tensor: torch.Tensor, name: str = "") -> Value:
        """A tensor at a place of a call, with its name there."""
        op, output, spec = self._origin(tensor)
        return self._new.value(
            place=self._once(place),
            spec=spec,
            op=op,
            output=output,
            name="" if name == place else self._once(name),
        )

    def _origin(self, tensor: torch.Tensor) -> tuple[OpId | None, int, TensorSpec]:
        """The op whose output a tensor is, if any, which output, and what the tensor is."""
        own = self._producers.own(tensor)
        if own is None:
            op, output = self._producers.of_storage(tensor) or (None, 0)
            return op, output, describe(tensor)
        op, output = own
        # After the pass a tensor no longer changes: it is still what its op's record says.
        spec = self._ops[op].outputs[output].spec if self._all_kept else describe(tensor)
        return op, output, spec

    def _arguments(
        self, event: OpEvent, views: Sequence[torch.Tensor]
    ) -> tuple[tuple[Operand, ...], Settings]:
        operands: list[Operand] = []
        settings: list[tuple[str, str]] = []
        for place, argument in _places(event.args, event.kwargs):
            if isinstance(argument, torch.Tensor):
                operands.append(self._operand(place, argument, views))
            else:
                settings.append((place, _text(argument)))
        return tuple(operands), self._once(tuple(settings))

    def _operand(
        self, place: str, tensor: torch.Tensor, views: Sequence[torch.Tensor] = ()
    ) -> Operand:
        if id(tensor) in self._parameters:
            return self._parameter(place, tensor)
        op, output, spec = self._origin(tensor)
        since = OpId(-1) if op is None else op
        return self._new.operand(
            place=self._once(place),
            spec=spec,
            op=op,
            output=output,
            writers=self._producers.writers_since(since, tensor, views),
            buffer=self._buffers.get(id(tensor), ""),
        )

    def _parameter(self, place: str, tensor: torch.Tensor) -> Operand:
        known = self._parameters[id(tensor)]
        if isinstance(known, str) or known.place != place:
            name = known if isinstance(known, str) else known.parameter
            known = Operand(place=self._once(place), spec=describe(tensor), parameter=name)
            self._parameters[id(tensor)] = known
        return known

    def _once(self, said: Said) -> Said:
        """The same object for equal ones."""
        same: Said = self._said.setdefault(said, said)
        return same

    def _made(self, id: OpId, tensors: Sequence[torch.Tensor]) -> tuple[Value, ...]:
        """The outputs of an op, which is now recorded as their producer."""
        self._producers.made(id, tensors)
        return self._values([describe(tensor) for tensor in tensors])

    def _values(self, specs: Sequence[TensorSpec]) -> tuple[Value, ...]:
        if len(specs) != 1:
            return tuple(Value(place=str(index), spec=spec) for index, spec in enumerate(specs))
        (spec,) = specs
        alone = self._alone.get(spec)
        if alone is None:
            alone = self._alone[spec] = (Value(place="", spec=spec),)
        return alone


def _pair(first: int, second: int) -> int:
    """One number for a pair, different for each pair."""
    total = first + second
    return total * (total + 1) // 2 + second


def _places(args: Args, kwargs: Kwargs) -> Iterator[tuple[str, Any]]:
    for index, argument in enumerate(args):
        if isinstance(argument, torch.Tensor):
            yield str(index), argument
        else:
            yield from _leaves(str(index), argument)
    for name, argument in kwargs.items():
        # The previous contents of `out` are not read.
        if name != "out":
            yield from _leaves(name, argument)


def _leaves(place: str, argument: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(argument, (tuple, list)) and next(iter_tensors(argument), None) is not None:
        for index, item in enumerate(argument):
            yield from _leaves(f"{place}.{index}", item)
    else:
        yield place, argument


def _name(function: Any) -> str:
    """torch's name of a function; for an attribute access, the attribute's name."""
    name = getattr(function, "__name__", type(function).__name__)
    if name in ("__get__", "__set__"):
        return str(getattr(getattr(function, "__self__", None), "__name__", name))
    return str(name).partition(".")[0]


def _text(argument: Any) -> str:
    try:
        text = repr(argument)
    except Exception as error:  # noqa: BLE001 - a user's repr may raise anything
        text = f"<{type(argument).__name__}: its repr raised {type(error).__name__}>"
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"


_LONGEST_TEXT = 200


def _source(found: tuple[types.CodeType, int] | None) -> SourceLine | None:
    if found is None:
        return None
    code, offset = found
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= offset < end and number is not None:
            line = number
            break
    return SourceLine(file=code.co_filename, line=line, function=code.co_name)

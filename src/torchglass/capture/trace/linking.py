"""From raw events to records: who made which tensor, through views and writes in place."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from torchglass.capture.tensor.describing import describe
from torchglass.capture.trace.ops import OpEvent, tensors_in, user_code
from torchglass.capture.trace.origins import Origins
from torchglass.capture.trace.phases import phase_of
from torchglass.records.trace import CallId, Op, Operand, OpId, Source, Value

Located = Iterable[tuple[str, torch.Tensor]]


class Held(NamedTuple):
    """Dotted names of the tensors that the model holds, by the id of the tensor."""

    parameters: Mapping[int, str]
    buffers: Mapping[int, str]


class Linker:
    """Turns the events of a pass, one by one and in order, into ops that know their parents."""

    def __init__(self, held: Held) -> None:
        self._held = held
        self._origins = Origins()
        self._sites: dict[Any, int] = {}
        self._sources: dict[tuple[types.CodeType, int], Source] = {}

    def source_op(self, id: OpId, address: str, tensor: torch.Tensor) -> Op:
        """The record of a tensor that came from outside: an input of the pass."""
        self._origins.made(id, (tensor,))
        return Op(id=id, kind="input", function=address, outputs=_values((tensor,)))

    def final_op(self, id: OpId, address: str, tensor: torch.Tensor) -> Op:
        """The record of a tensor that the pass returned."""
        operand = self._operand(address, tensor)
        return Op(
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
        location: int,
        source: Source | None,
    ) -> Op:
        """The record of one event that ran in a call, which was made at a location in a source."""
        operands, settings = self._arguments(event)
        results = event.results
        record = Op(
            id=id,
            function=_name(event.function),
            call=call,
            operands=operands,
            outputs=_values(results),
            settings=settings,
            start_ns=event.start_ns,
            end_ns=event.end_ns,
            site=self.location(location, event.chain),
            source=self.source(event.chain) or source,
            grad_fn=event.grad_fn,
            writes=bool(event.written),
            phase=phase_of(event.chain),
        )
        self._origins.made(id, results)
        for tensor in event.written:
            self._origins.wrote(id, tensor)
        return record

    def opaque_op(
        self, id: OpId, function: str, call: CallId, inputs: Located, outputs: Located
    ) -> Op:
        """The record of a whole module call whose inside could not be seen."""
        results = [tensor for _, tensor in outputs]
        record = Op(
            id=id,
            function=function,
            call=call,
            operands=tuple(self._operand(place, tensor) for place, tensor in inputs),
            outputs=_values(results),
        )
        self._origins.made(id, results)
        return record

    def location(self, *parts: object) -> int:
        """A number for a place in the code, the same whenever the pass comes by again."""
        return self._sites.setdefault(parts, len(self._sites))

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor was made in the pass, or is held by the model."""
        held = id(tensor) in self._held.parameters or id(tensor) in self._held.buffers
        return held or self._origins.find(tensor) is not None

    def value(self, place: str, tensor: torch.Tensor) -> Value:
        """A tensor at a place of a call."""
        origin = self._origins.find(tensor)
        return Value(place=place, spec=describe(tensor), op=origin.op if origin else None)

    def _arguments(self, event: OpEvent) -> tuple[tuple[Operand, ...], tuple[tuple[str, str], ...]]:
        operands: list[Operand] = []
        settings: list[tuple[str, str]] = []
        for place, argument in _places(event.args, event.kwargs):
            if isinstance(argument, torch.Tensor):
                operands.append(self._operand(place, argument))
            else:
                settings.append((place, _text(argument)))
        return tuple(operands), tuple(settings)

    def _operand(self, place: str, tensor: torch.Tensor) -> Operand:
        parameter = self._held.parameters.get(id(tensor), "")
        buffer = self._held.buffers.get(id(tensor), "")
        origin = None if parameter else self._origins.find(tensor)
        made_by = origin.op if origin else OpId(-1)
        return Operand(
            place=place,
            spec=describe(tensor),
            op=origin.op if origin else None,
            output=origin.output if origin else 0,
            writers=() if parameter else self._origins.writers_since(made_by, tensor),
            parameter=parameter,
            buffer=buffer,
        )

    def source(self, chain: tuple[Any, ...]) -> Source | None:
        """The innermost place of a chain that is the user's own code."""
        found = user_code(chain)
        if found is None:
            return None
        if found not in self._sources:
            self._sources[found] = _source(*found)
        return self._sources[found]


def _values(tensors: Sequence[torch.Tensor]) -> tuple[Value, ...]:
    if len(tensors) == 1:
        return (Value(place="", spec=describe(tensors[0])),)
    return tuple(
        Value(place=str(index), spec=describe(tensor)) for index, tensor in enumerate(tensors)
    )


def _places(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for index, argument in enumerate(args):
        yield from _leaves(str(index), argument)
    for name, argument in kwargs.items():
        # What is in `out` before the op is not read.
        if name != "out":
            yield from _leaves(name, argument)


def _leaves(place: str, argument: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(argument, (tuple, list)) and next(tensors_in(argument), None) is not None:
        for index, item in enumerate(argument):
            yield from _leaves(f"{place}.{index}", item)
    else:
        yield place, argument


def _name(function: Any) -> str:
    """torch's name of a function; of an attribute read, the attribute's."""
    name = getattr(function, "__name__", type(function).__name__)
    if name == "__get__":
        return str(getattr(getattr(function, "__self__", None), "__name__", name))
    return str(name).partition(".")[0]


def _text(argument: Any) -> str:
    try:
        text = repr(argument)
    except Exception as error:  # noqa: BLE001 - a user's repr may raise anything
        text = f"<{type(argument).__name__}: its repr raised {type(error).__name__}>"
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"


_LONGEST_TEXT = 200


def _source(code: types.CodeType, offset: int) -> Source:
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= offset < end and number is not None:
            line = number
            break
    return Source(file=code.co_filename, line=line, function=code.co_name)

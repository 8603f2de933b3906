"""Finding an op of a trace by any of its names.

There are many more names than ops, and few are ever asked for. So a name is taken apart instead of
searched among all names written out: "relu_1_3:2" is the second pass of the layer "relu_1_3".
"""

from __future__ import annotations

import difflib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any

from torchglass.analyse.trace.labels import Labels, Layers
from torchglass.errors import LookupFailedError
from torchglass.records.trace import Call, Op, OpId

_MOST_NEAR = 6
_MOST_COMPARED = 2000


class Lookup:
    """The names of the ops: labels, ordinals, modules that return them, inputs and outputs."""

    def __init__(
        self,
        ops: Sequence[Op],
        calls: Sequence[Call],
        labels: Labels,
        listed: Sequence[OpId] | None = None,
    ) -> None:
        """Only the ops in `listed` are found: all of them, if it is None."""
        self._ops = ops
        self._calls = calls
        self._labels = labels
        self._listed = listed

    def find(self, key: int | str) -> OpId:
        """The op of a name; a part of a name will do where only one op has it."""
        if isinstance(key, int):
            return self._ordinal(key)
        lower = key.lower()
        named = dict.fromkeys(self._named(key)) or dict.fromkeys(self._named(lower))
        found = tuple(named) or self._containing(lower)
        listed = [op for op in found if op in self._ordinals]
        if len(listed) == 1:
            return listed[0]
        if found and not listed:
            raise LookupFailedError(self._left_out(key, found))
        raise LookupFailedError(self._ambiguous(key, listed) if found else self._unknown(key))

    def __contains__(self, op: OpId) -> bool:
        """Whether an op is listed."""
        return op in self._ordinals

    def keys(self, op: OpId) -> tuple[int | str, ...]:
        """All names that mean this op and no other, ordinals first."""
        names = {name for name in self._names(op) if name not in ("", ":1")}
        own = (name for name in names if all(named == op for named in self._named(name)))
        if op not in self._ordinals:
            return tuple(sorted(own))
        ordinal = self._ordinals[op]
        return (ordinal - len(self._ordinals), ordinal, *sorted(own))

    @property
    def layers(self) -> Layers:
        """The ops of each layer, pass by pass, by the layer's long and by its short name."""
        return self._labels.layers

    def _ordinal(self, key: int) -> OpId:
        count = len(self._ordinals)
        if not -count <= key < count:
            which = "" if self._listed is None else " whose tensors are saved"
            places = f", 0 … {count - 1}" if count else ""
            raise LookupFailedError(
                f"there is no layer {key}: the trace has {count}{which}{places}"
            )
        return self._ops[key].id if self._listed is None else self._listed[key]

    @cached_property
    def _ordinals(self) -> Mapping[OpId, int]:
        """The place of each listed op among them."""
        listed = (op.id for op in self._ops) if self._listed is None else self._listed
        return {op: place for place, op in enumerate(listed)}

    def _left_out(self, key: str, found: Sequence[OpId]) -> str:
        """Why ops that ran are not found."""
        listed = ", ".join(str(self._labels[op]) for op in list(self._ordinals)[:_MOST_NEAR])
        more = " …" if len(self._ordinals) > _MOST_NEAR else ""
        name = str(self._labels[found[0]]) if len(found) == 1 else key
        saved = f"saved are {listed}{more}" if listed else "none is saved"
        return (
            f"the tensor of {name} was not saved, and keep_unsaved_layers=False leaves such "
            f"layers out; {saved}"
        )

    def _named(self, name: str) -> Iterator[OpId]:
        """The ops that a whole name may mean, some more than once."""
        yield from self.layers.get(name, ())
        yield from self._addresses.get(name, ())
        yield from map(_returned, _equal(self._by_path, name, _PATH))
        name, _, number = name.rpartition(":")
        if number.isdecimal() and number[0] != "0":
            yield from self.layers.get(name, ())[int(number) - 1 : int(number)]
            yield from map(_returned, _equal(self._by_path, (name, int(number)), _PATH_AND_NUMBER))

    def _names(self, op: OpId) -> Iterator[str]:
        """All names of an op, whether or not they mean others too."""
        label = self._labels[op]
        for name in (label.short, label.layer):
            yield from (name, f"{name}:{label.number}")
        yield from _addresses(self._ops[op])
        for call in _equal(self._by_op, op, _returned):
            yield from (call.path, f"{call.path}:{call.number}")

    @cached_property
    def _addresses(self) -> Mapping[str, list[OpId]]:
        """The inputs and outputs by what they are called in the model's forward."""
        addresses: dict[str, list[OpId]] = {}
        for op in self._ops:
            for address in _addresses(op):
                addresses.setdefault(address, []).append(op.id)
        return addresses

    @cached_property
    def _by_path(self) -> list[Call]:
        """The calls that returned what an op made, by path, and at one path by number as ever."""
        return sorted((call for call in self._calls if _returns(call)), key=_PATH)

    @cached_property
    def _by_op(self) -> list[Call]:
        """The same calls in the order of what they returned."""
        return sorted(self._by_path, key=_returned)

    def _containing(self, part: str) -> tuple[OpId, ...]:
        found = (op.id for op in self._ops if any(part in n.lower() for n in self._names(op.id)))
        return tuple(found)

    def _ambiguous(self, key: str, found: Sequence[OpId]) -> str:
        names = [str(self._labels[op]) for op in found]
        shown = ", ".join(names[:_MOST_NEAR]) + (" …" if len(names) > _MOST_NEAR else "")
        return f"{key!r} matches {len(found)} ops: {shown}; name one of them"

    def _unknown(self, key: str) -> str:
        kind = key.lower().partition("_")[0].partition(".")[0]
        names = dict.fromkeys(name for op in self._ops for name in self._names(op.id))
        # Comparing takes a while, so of a large trace only what begins alike is compared.
        candidates = [name for name in names if name.startswith(kind)] or list(names)
        near = difflib.get_close_matches(key.lower(), candidates[:_MOST_COMPARED], n=_MOST_NEAR)
        hint = f"; near it are {', '.join(near)}" if near else "; print the trace to see its names"
        return f"no op is called {key!r}{hint}"


_PATH = attrgetter("path")
_PATH_AND_NUMBER = attrgetter("path", "number")


def _addresses(op: Op) -> Iterator[str]:
    if op.kind != "op":
        yield f"{op.kind}.{op.function}" if op.function else op.kind


def _returns(call: Call) -> bool:
    return bool(call.outputs) and call.outputs[0].op is not None


def _returned(call: Call) -> Any:
    """The op that made the first tensor which a call returned."""
    return call.outputs[0].op


def _equal(calls: Sequence[Call], value: Any, key: Callable[[Call], Any]) -> Iterator[Call]:
    """Of calls in the order of a key those that have it, one by one, as there may be many."""
    first = bisect_left(calls, value, key=key)
    return map(calls.__getitem__, range(first, bisect_right(calls, value, first, key=key)))

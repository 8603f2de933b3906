"""Finding an op of a trace by any of its names."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from torchglass.analyse.trace.labels import Label
from torchglass.errors import LookupFailedError
from torchglass.records.trace import Call, Op, OpId

_MOST_NEAR = 6
_MOST_COMPARED = 2000


class Lookup:
    """The names of the ops: labels, ordinals, modules that return them, inputs and outputs."""

    def __init__(self, ops: Sequence[Op], calls: Sequence[Call], labels: Sequence[Label]) -> None:
        self._ops = ops
        self._calls = calls
        self._labels = labels

    def find(self, key: int | str) -> OpId:
        """The op of a name; a part of a name will do where only one op has it."""
        if isinstance(key, int):
            return self._ordinal(key)
        found = self._ids.get(key) or self._ids.get(key.lower()) or self._containing(key.lower())
        if len(found) == 1:
            return found[0]
        raise LookupFailedError(self._ambiguous(key, found) if found else self._unknown(key))

    def keys(self, op: OpId) -> tuple[int | str, ...]:
        """All names that mean this op and no other, ordinals first."""
        return (op - len(self._ops), op, *sorted(self._names.get(op, ())))

    def _ordinal(self, key: int) -> OpId:
        if not -len(self._ops) <= key < len(self._ops):
            raise LookupFailedError(
                f"there is no layer {key}: the trace has {len(self._ops)}, 0 … {len(self._ops) - 1}"
            )
        return self._ops[key].id

    @cached_property
    def _ids(self) -> Mapping[str, tuple[OpId, ...]]:
        """The ops that each name may mean."""
        ids: dict[str, dict[OpId, None]] = {}
        for op, label in zip(self._ops, self._labels, strict=True):
            for name in (label.short, label.layer):
                for key in (name, f"{name}:{label.number}", *_addresses(op)):
                    ids.setdefault(key, {})[op.id] = None
        for call, op_id in _returned(self._calls):
            for key in (call.path, f"{call.path}:{call.number}"):
                ids.setdefault(key, {})[op_id] = None
        return {key: tuple(found) for key, found in ids.items()}

    @cached_property
    def _names(self) -> Mapping[OpId, list[str]]:
        names: dict[OpId, list[str]] = {}
        for key, found in self._ids.items():
            if len(found) == 1 and key not in ("", ":1"):
                names.setdefault(found[0], []).append(key)
        return names

    def _containing(self, part: str) -> tuple[OpId, ...]:
        return tuple(
            {op: None for key, found in self._ids.items() if part in key.lower() for op in found}
        )

    def _ambiguous(self, key: str, found: Sequence[OpId]) -> str:
        names = [str(self._labels[op]) for op in found]
        shown = ", ".join(names[:_MOST_NEAR]) + (" …" if len(names) > _MOST_NEAR else "")
        return f"{key!r} is {len(found)} ops: {shown}; name one of them"

    def _unknown(self, key: str) -> str:
        kind = key.lower().partition("_")[0].partition(".")[0]
        # Comparing takes a while, so of a large trace only what begins alike is compared.
        candidates = [name for name in self._ids if name.startswith(kind)] or list(self._ids)
        near = difflib.get_close_matches(key.lower(), candidates[:_MOST_COMPARED], n=_MOST_NEAR)
        hint = f"; near it are {', '.join(near)}" if near else "; print the trace to see its names"
        return f"no op is called {key!r}{hint}"


def _addresses(op: Op) -> Iterator[str]:
    if op.kind != "op":
        yield f"{op.kind}.{op.function}" if op.function else op.kind


def _returned(calls: Sequence[Call]) -> Iterator[tuple[Call, OpId]]:
    """For each call, the op that made the first tensor it returned."""
    for call in calls:
        for value in call.outputs[:1]:
            if value.op is not None:
                yield call, value.op

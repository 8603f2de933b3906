"""What a user holds of a trace, made when it is asked for.

A handle knows its trace. A trace that kept its handles would lie in a circle with them, and the
saved tensors of one that nobody holds any more would wait for the garbage collector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, overload
from weakref import WeakValueDictionary

Record = TypeVar("Record")
Handle = TypeVar("Handle")


class Handles(Sequence[Handle], Generic[Record, Handle]):
    """The handles of records. As long as anyone holds one, it is the only one of its record."""

    def __init__(
        self,
        records: Sequence[Record],
        make: Callable[[Record], Handle],
        alive: WeakValueDictionary[int, Handle],
    ) -> None:
        self._records = records
        self._make = make
        self._alive = alive

    @overload
    def __getitem__(self, place: int) -> Handle: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[Handle, ...]: ...

    def __getitem__(self, place: int | slice) -> Handle | tuple[Handle, ...]:
        found = range(len(self))[place]
        return self._at(found) if isinstance(found, int) else tuple(map(self._at, found))

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        return repr(list(self))

    def _at(self, place: int) -> Handle:
        handle = self._alive.get(place)
        if handle is None:
            handle = self._alive.setdefault(place, self._make(self._records[place]))
        return handle

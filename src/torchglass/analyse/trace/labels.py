"""The names of a trace's ops: `conv2d_3_7` is the third conv2d and the seventh layer."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

from torchglass.analyse.trace.loops import passes
from torchglass.records.trace import Op, OpId


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What an op is called."""

    layer: str
    """"conv2d_3_7"; the same for all passes of a layer."""
    short: str
    """"conv2d_3"."""
    number: int = 1
    """Which pass of its layer this op is, from 1."""
    passes: int = 1

    def __str__(self) -> str:
        return f"{self.layer}:{self.number}" if self.passes > 1 else self.layer

    def keys(self) -> Iterator[str]:
        """All names that mean this op alone."""
        for name in (self.short, self.layer):
            if self.passes == 1:
                yield name
            yield f"{name}:{self.number}"


class Labels(Sequence[Label]):
    """The label of each op, in the order of the ops, written out when it is asked for.

    Of a long pass few are, so only numbers are kept.
    """

    def __init__(self, ops: Sequence[Op]) -> None:
        self._ops = ops
        self._layer = array("i", [0]) * len(ops)
        self._number = array("i", [0]) * len(ops)
        self.layers = Layers(ops)
        for total, layer in enumerate(passes(ops)):
            self.layers.add(layer)
            for number, op in enumerate(layer, 1):
                self._layer[op] = total
                self._number[op] = number

    @overload
    def __getitem__(self, place: int) -> Label: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Label]: ...

    def __getitem__(self, place: int | slice) -> Label | Sequence[Label]:
        if isinstance(place, slice):
            return [self[op] for op in range(len(self))[place]]
        total = self._layer[place]
        layer, short = self.layers.names(total)
        passes = len(self.layers.ops(total))
        return Label(layer=layer, short=short, number=self._number[place], passes=passes)

    def __len__(self) -> int:
        return len(self._ops)


class Layers(Mapping[str, tuple[OpId, ...]]):
    """The ops of each layer, pass by pass, by the layer's long and by its short name."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self._ops = ops
        self._first = array("i")
        self._repeated: dict[int, tuple[OpId, ...]] = {}
        self._of_type: dict[str, array[int]] = {}
        self._nth = array("i")

    def add(self, ops: tuple[OpId, ...]) -> None:
        """The next layer."""
        total = len(self._first)
        self._first.append(ops[0])
        if len(ops) > 1:
            self._repeated[total] = ops
        alike = self._of_type.setdefault(self._ops[ops[0]].type, array("i"))
        alike.append(total)
        self._nth.append(len(alike))

    def names(self, total: int) -> tuple[str, str]:
        """The long and the short name of the layer of a number among all layers."""
        short = f"{self._ops[self._first[total]].type}_{self._nth[total]}"
        return f"{short}_{total}", short

    def ops(self, total: int) -> tuple[OpId, ...]:
        """The ops of the layer of a number among all layers."""
        return self._repeated.get(total) or (OpId(self._first[total]),)

    @property
    def repeated(self) -> Collection[tuple[OpId, ...]]:
        """The ops of each layer that ran several times."""
        return self._repeated.values()

    def __getitem__(self, name: str) -> tuple[OpId, ...]:
        kind, _, numbers = name.partition("_")
        nth = numbers.partition("_")[0]
        alike = self._of_type.get(kind, ())
        if nth.isdecimal() and 0 < int(nth) <= len(alike):
            total = alike[int(nth) - 1]
            if name in self.names(total):
                return self.ops(total)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        for total in range(len(self._first)):
            yield from self.names(total)

    def __len__(self) -> int:
        return 2 * len(self._first)


def labels(ops: Sequence[Op]) -> Labels:
    """The label of each op, in the order of the ops."""
    return Labels(ops)

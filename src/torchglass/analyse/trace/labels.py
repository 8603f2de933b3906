"""The names of a trace's ops: `conv2d_3_7` is the third conv2d and the seventh layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchglass.analyse.trace.loops import passes
from torchglass.records.trace import Op


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


def labels(ops: Sequence[Op]) -> tuple[Label, ...]:
    """The label of each op, in the order of the ops."""
    named: dict[int, Label] = {}
    of_type: Counter[str] = Counter()
    for total, layer in enumerate(passes(ops)):
        kind = ops[layer[0]].type
        of_type[kind] += 1
        short = f"{kind}_{of_type[kind]}"
        name = f"{short}_{total}"
        for number, op in enumerate(layer, 1):
            named[op] = Label(layer=name, short=short, number=number, passes=len(layer))
    return tuple(named[op.id] for op in ops)

"""Which ops of a trace are one op that ran several times.

Two ops are passes of one layer when they compute the same function with the same parameters, or
when one place in the code ran them in a loop. A place that only gathers what different layers
made, as `x = x + layer(x)` over a list of layers does, is no loop: between its runs lie ops that
ran once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import accumulate, pairwise

from torchglass.records.trace import Op, OpId


def passes(ops: Sequence[Op]) -> list[tuple[OpId, ...]]:
    """The ops of each layer in the order in which they ran; layers by their first op."""
    keys = [_key(op) for op in ops]
    repeated = _repeated(keys)
    layers: dict[Hashable, list[OpId]] = {}
    for op, key in zip(ops, keys, strict=True):
        layers.setdefault(key if key in repeated else op.id, []).append(op.id)
    return [tuple(ids) for ids in layers.values()]


def _key(op: Op) -> Hashable:
    if op.kind != "op":
        return op.id
    parameters = tuple(operand.parameter for operand in op.operands if operand.parameter)
    return (op.function, parameters or op.site, op.phase)


def _repeated(keys: Sequence[Hashable]) -> set[Hashable]:
    """The keys whose ops are passes of one layer."""
    counts = Counter(keys)
    places: dict[Hashable, list[int]] = {}
    for index, key in enumerate(keys):
        if counts[key] > 1:
            places.setdefault(key, []).append(index)
    while True:
        # singles[i] counts the ops before i that ran once, so a difference tells of a whole gap.
        singles = [0, *accumulate(key not in places for key in keys)]
        gathering = [
            key
            for key, found in places.items()
            if not _has_parameters(key)
            and all(singles[after] > singles[before + 1] for before, after in pairwise(found))
        ]
        if not gathering:
            return set(places)
        for key in gathering:
            del places[key]


def _has_parameters(key: Hashable) -> bool:
    return isinstance(key, tuple) and isinstance(key[1], tuple)

"""Which ops of a trace are one op that ran several times.

Two ops are passes of one layer when they compute the same function with the same parameters, or
when one place in the code ran them in a loop. A place that only gathers what different layers
made, as `x = x + layer(x)` over a list of layers does, is no loop: between its runs lie ops that
ran once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

from torchglass.records.trace import Op, OpId

_Key = tuple[object, ...]
_Links = Mapping[OpId, set[OpId]]


def passes(ops: Sequence[Op]) -> Iterator[tuple[OpId, ...]]:
    """The ops of each layer in the order in which they ran; layers by their first op."""
    alike = _repeated(ops)
    in_loops = bytearray(len(ops))
    loops: dict[OpId, Sequence[OpId]] = {}
    for key in _loops(alike, len(ops)):
        _mark(in_loops, alike[key], True)
        loops[alike[key][0]] = alike[key]
    for op in ops:
        if not in_loops[op.id]:
            yield (op.id,)
        elif op.id in loops:
            yield tuple(loops[op.id])


def longest_loop(ops: Sequence[Op], layers: Collection[Sequence[OpId]]) -> int:
    """How often the layer ran that ran most often among those to which their results came back.

    Of all layers only those with several passes are needed. Passes side by side, as of a module
    that is given two images, are no loop; where nothing comes back the answer is 1.
    """
    counts = {layer[0]: len(layer) for layer in layers}
    if not counts:
        return 1
    first = {op: layer[0] for layer in layers for op in layer}
    before: dict[OpId, set[OpId]] = defaultdict(set)
    after: dict[OpId, set[OpId]] = defaultdict(set)
    for op in ops:
        for parent in op.parents:
            source, target = first.get(parent, parent), first.get(op.id, op.id)
            after[source].add(target)
            before[target].add(source)
    looping = _peeled(_peeled(before.keys() | after.keys(), before, after), after, before)
    return max((counts.get(layer, 1) for layer in looping), default=1)


def _peeled(layers: set[OpId], before: _Links, after: _Links) -> set[OpId]:
    """The layers without those that have none before them, and so on with what is left."""
    waiting = {layer: len(before.get(layer, set()) & layers) for layer in layers}
    free = [layer for layer, count in waiting.items() if not count]
    for layer in free:
        for other in after.get(layer, set()) & layers:
            waiting[other] -= 1
            if not waiting[other]:
                free.append(other)
    return layers - set(free)


def _repeated(ops: Sequence[Op]) -> dict[_Key, list[OpId]]:
    """The ops that have a key in common with others, by that key."""
    # Of a long pass most ops are told apart without keys, which take memory.
    hints = [_hint(op) for op in ops]
    counts = Counter(hints)
    alike: dict[_Key, list[OpId]] = {}
    for op, hint in zip(ops, hints, strict=True):
        if op.kind == "op" and counts[hint] > 1:
            alike.setdefault(_key(op), []).append(op.id)
    return {key: those for key, those in alike.items() if len(those) > 1}


def _hint(op: Op) -> str | int:
    """What two ops have in common that have their key in common."""
    for operand in op.operands:
        if operand.parameter:
            return operand.parameter
    return op.site


def _key(op: Op) -> _Key:
    parameters = tuple([operand.parameter for operand in op.operands if operand.parameter])
    return (op.function, parameters or op.site, op.phase)


def _loops(alike: Mapping[_Key, Sequence[OpId]], count: int) -> set[_Key]:
    """The keys whose ops are passes of one layer."""
    loops = set(alike)
    ran_once = bytearray([True]) * count
    for key in loops:
        _mark(ran_once, alike[key], False)
    while True:
        # singles[i] counts the ops before i that ran once, so a difference tells of a whole gap.
        singles = [0, *accumulate(ran_once)]
        gathering = [
            key
            for key in loops
            if not _has_parameters(key)
            and all(singles[after] > singles[before + 1] for before, after in pairwise(alike[key]))
        ]
        if not gathering:
            return loops
        loops.difference_update(gathering)
        for key in gathering:
            _mark(ran_once, alike[key], True)


def _mark(marks: bytearray, places: Iterable[int], mark: bool) -> None:
    for place in places:
        marks[place] = mark


def _has_parameters(key: _Key) -> bool:
    return isinstance(key[1], tuple)

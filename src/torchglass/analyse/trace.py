"""The structure of a traced pass: its op names, relations and modules.

All views of a trace use this; each part is computed when it is first needed.

Two ops are passes of one layer if they compute the same function with the same parameters, or if
one line of code ran them in a loop. A line that only collects the results of different layers, such
as `x = x + layer(x)` over a list of layers, does not count as a loop: other ops ran once between
its runs.

There are many more names than ops, and few are ever looked up. So a name is parsed instead of
searched in a list of all names: "relu_1_3:2" is the second pass of the layer "relu_1_3".
"""

from __future__ import annotations

import difflib
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import Any, overload

from torchglass.errors import LookupFailedError, collector_paused
from torchglass.records.model import TensorSpec
from torchglass.records.trace import CallId, CallRecord, OpId, OpRecord, TraceRecord

_Key = tuple[object, ...]
_Links = Mapping[OpId, set[OpId]]


def passes(ops: Sequence[OpRecord]) -> Iterator[tuple[OpId, ...]]:
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


def longest_loop(ops: Sequence[OpRecord], layers: Collection[Sequence[OpId]]) -> int:
    """The number of passes of the longest loop; 1 without a loop.

    `layers` are those with several passes. In a loop, a result of a layer reaches the layer again.
    A module that is called with two images side by side does not loop.
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
    """The layers that are left after repeatedly removing those without predecessors."""
    waiting = {layer: len(before.get(layer, set()) & layers) for layer in layers}
    free = [layer for layer, count in waiting.items() if not count]
    for layer in free:
        for other in after.get(layer, set()) & layers:
            waiting[other] -= 1
            if not waiting[other]:
                free.append(other)
    return layers - set(free)


def _repeated(ops: Sequence[OpRecord]) -> dict[_Key, list[OpId]]:
    """The ops that share a key with others, by that key."""
    # Most ops of a long pass are distinct without keys, which take memory.
    hints = [
        next((operand.parameter for operand in op.operands if operand.parameter), op.site)
        for op in ops
    ]
    counts = Counter(hints)
    alike: dict[_Key, list[OpId]] = {}
    for op, hint in zip(ops, hints, strict=True):
        if op.kind == "op" and counts[hint] > 1:
            parameters = tuple([operand.parameter for operand in op.operands if operand.parameter])
            key = (op.function, parameters or op.site, op.phase)
            alike.setdefault(key, []).append(op.id)
    return {key: those for key, those in alike.items() if len(those) > 1}


def _loops(alike: Mapping[_Key, Sequence[OpId]], count: int) -> set[_Key]:
    """The keys whose ops are passes of one layer."""
    loops = set(alike)
    ran_once = bytearray([True]) * count
    for key in loops:
        _mark(ran_once, alike[key], False)
    while True:
        # singles[i] counts the ops before i that ran once, so a difference covers a whole gap.
        singles = [0, *accumulate(ran_once)]
        gathering = [
            key
            for key in loops
            if not isinstance(key[1], tuple)  # without parameters
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """The name of an op."""

    layer: str
    """"conv2d_3_7"; the same for all passes of a layer."""
    short: str
    """"conv2d_3"."""
    number: int = 1
    """The pass of its layer, from 1."""
    passes: int = 1

    def __str__(self) -> str:
        return f"{self.layer}:{self.number}" if self.passes > 1 else self.layer

    def keys(self) -> Iterator[str]:
        """All names of this op alone."""
        for name in (self.short, self.layer):
            if self.passes == 1:
                yield name
            yield f"{name}:{self.number}"


class OpLabels(Sequence[Label]):
    """The label of each op, in the order of the ops, created on demand.

    Only numbers are kept: few labels of a long pass are ever needed.
    """

    def __init__(self, ops: Sequence[OpRecord]) -> None:
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

    def __init__(self, ops: Sequence[OpRecord]) -> None:
        self._ops = ops
        self._first = array("i")
        self._repeated: dict[int, tuple[OpId, ...]] = {}
        self._of_type: dict[str, array[int]] = {}
        self._nth = array("i")

    def add(self, ops: tuple[OpId, ...]) -> None:
        total = len(self._first)
        self._first.append(ops[0])
        if len(ops) > 1:
            self._repeated[total] = ops
        alike = self._of_type.setdefault(self._ops[ops[0]].type, array("i"))
        alike.append(total)
        self._nth.append(len(alike))

    def names(self, total: int) -> tuple[str, str]:
        """The long and the short name of the layer with an index."""
        short = f"{self._ops[self._first[total]].type}_{self._nth[total]}"
        return f"{short}_{total}", short

    def ops(self, total: int) -> tuple[OpId, ...]:
        """The ops of the layer with an index."""
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


_MOST_NEAR = 6
_MOST_COMPARED = 2000


class Lookup:
    """The names of the ops: labels, ordinals, modules that return them, inputs and outputs."""

    def __init__(
        self,
        ops: Sequence[OpRecord],
        calls: Sequence[CallRecord],
        labels: OpLabels,
        listed: Sequence[OpId] | None = None,
    ) -> None:
        """Finds only the ops in `listed`; all ops if it is None."""
        self._ops = ops
        self._calls = calls
        self._labels = labels
        self._listed = listed

    def find(self, key: int | str) -> OpId:
        """The op with a name; a part of a name is enough if only one op has it."""
        if isinstance(key, int):
            return self._ordinal(key)
        lower = key.lower()
        named = dict.fromkeys(self._named(key)) or dict.fromkeys(self._named(lower))
        found = tuple(named) or [op.id for op in self._ops if self._is_part(lower, op.id)]
        listed = [op for op in found if op in self._ordinals]
        if len(listed) == 1:
            return listed[0]
        if found and not listed:
            raise LookupFailedError(self._left_out(key, found))
        raise LookupFailedError(self._ambiguous(key, listed) if found else self._unknown(key))

    def __contains__(self, op: OpId) -> bool:
        return op in self._ordinals

    def keys(self, op: OpId) -> tuple[int | str, ...]:
        """All names of this op alone, ordinals first."""
        names = {name for name in self._names(op) if name not in ("", ":1")}
        own = (name for name in names if all(named == op for named in self._named(name)))
        if op not in self._ordinals:
            return tuple(sorted(own))
        ordinal = self._ordinals[op]
        return (ordinal - len(self._ordinals), ordinal, *sorted(own))

    def _ordinal(self, key: int) -> OpId:
        count = len(self._ordinals)
        if not -count <= key < count:
            which = "" if self._listed is None else " whose tensors are saved"
            places = f", 0 … {count - 1}" if count else ""
            raise LookupFailedError(f"no layer {key}: the trace has {count}{which}{places}")
        return self._ops[key].id if self._listed is None else self._listed[key]

    @cached_property
    def _ordinals(self) -> Mapping[OpId, int]:
        """The index of each listed op among them."""
        listed = (op.id for op in self._ops) if self._listed is None else self._listed
        return {op: place for place, op in enumerate(listed)}

    def _left_out(self, key: str, found: Sequence[OpId]) -> str:
        """Why an op that ran cannot be found."""
        listed = ", ".join(str(self._labels[op]) for op in list(self._ordinals)[:_MOST_NEAR])
        more = " …" if len(self._ordinals) > _MOST_NEAR else ""
        name = str(self._labels[found[0]]) if len(found) == 1 else key
        saved = f"saved: {listed}{more}" if listed else "none are saved"
        return (
            f"the tensor of {name} was not saved, and keep_unsaved_layers=False leaves such "
            f"layers out; {saved}"
        )

    def _named(self, name: str) -> Iterator[OpId]:
        """The ops that a full name may mean, possibly with repeats."""
        layers = self._labels.layers
        yield from layers.get(name, ())
        yield from self._addresses.get(name, ())
        yield from map(_returned, _equal(self._by_path, name, _PATH))
        name, _, number = name.rpartition(":")
        if number.isdecimal() and number[0] != "0":
            yield from layers.get(name, ())[int(number) - 1 : int(number)]
            yield from map(_returned, _equal(self._by_path, (name, int(number)), _PATH_AND_NUMBER))

    def _names(self, op: OpId) -> Iterator[str]:
        """All names of an op, including ambiguous ones."""
        label = self._labels[op]
        for name in (label.short, label.layer):
            yield from (name, f"{name}:{label.number}")
        yield from _addresses(self._ops[op])
        for call in _equal(self._by_op, op, _returned):
            yield from (call.path, f"{call.path}:{call.number}")

    @cached_property
    def _addresses(self) -> Mapping[str, list[OpId]]:
        """The inputs and outputs by their names in the model's forward."""
        addresses: dict[str, list[OpId]] = {}
        for op in self._ops:
            for address in _addresses(op):
                addresses.setdefault(address, []).append(op.id)
        return addresses

    @cached_property
    def _by_path(self) -> list[CallRecord]:
        """The calls that returned an op's output, by path, then by call number."""
        returned = (one for one in self._calls if one.outputs and one.outputs[0].op is not None)
        return sorted(returned, key=_PATH)

    @cached_property
    def _by_op(self) -> list[CallRecord]:
        """The same calls, ordered by the op they returned."""
        return sorted(self._by_path, key=_returned)

    def _is_part(self, part: str, op: OpId) -> bool:
        return any(part in name.lower() for name in self._names(op))

    def _ambiguous(self, key: str, found: Sequence[OpId]) -> str:
        names = [str(self._labels[op]) for op in found]
        shown = ", ".join(names[:_MOST_NEAR]) + (" …" if len(names) > _MOST_NEAR else "")
        return f"{key!r} matches {len(found)} ops: {shown}; name one of them"

    def _unknown(self, key: str) -> str:
        kind = key.lower().partition("_")[0].partition(".")[0]
        names = dict.fromkeys(name for op in self._ops for name in self._names(op.id))
        # Comparing is slow, so in a large trace only names with the same start are compared.
        candidates = [name for name in names if name.startswith(kind)] or list(names)
        near = difflib.get_close_matches(key.lower(), candidates[:_MOST_COMPARED], n=_MOST_NEAR)
        hint = (
            f"; did you mean {', '.join(near)}?" if near else "; print the trace to see its names"
        )
        return f"no op is called {key!r}{hint}"


_PATH = attrgetter("path")
_PATH_AND_NUMBER = attrgetter("path", "number")


def _addresses(op: OpRecord) -> Iterator[str]:
    if op.kind != "op":
        yield f"{op.kind}.{op.function}" if op.function else op.kind


def _returned(call: CallRecord) -> Any:
    """The op that produced the first output tensor of a call."""
    return call.outputs[0].op


def _equal(
    calls: Sequence[CallRecord], value: Any, key: Callable[[CallRecord], Any]
) -> Iterator[CallRecord]:
    """The calls with a key, from calls sorted by it; lazily, as there may be many."""
    first = bisect_left(calls, value, key=key)
    return map(calls.__getitem__, range(first, bisect_right(calls, value, first, key=key)))


Distances = tuple[int, int]
"""The fewest and the most edges from one op to another."""


class TraceStructure:
    """The record of a pass, and what can be derived from it.

    Only the ops in `listed` can be looked up and are printed: all of them, if it is None.
    """

    def __init__(self, record: TraceRecord, listed: Sequence[OpId] | None = None) -> None:
        self.record = record
        self.lists_all = listed is None
        self.listed = [op.id for op in record.ops] if listed is None else list(listed)

    @cached_property
    @collector_paused()
    def labels(self) -> OpLabels:
        return OpLabels(self.record.ops)

    @cached_property
    def lookup(self) -> Lookup:
        listed = None if self.lists_all else self.listed
        return Lookup(self.record.ops, self.record.calls, self.labels, listed)

    @property
    def layers(self) -> Mapping[str, tuple[OpId, ...]]:
        """The ops of each layer, pass by pass, by the layer's long and by its short name."""
        return self.labels.layers

    @cached_property
    def children(self) -> tuple[tuple[OpId, ...], ...]:
        """For each op the ops that used its results, in the order in which they ran."""
        children: list[list[OpId]] = [[] for _ in self.record.ops]
        for op in self.record.ops:
            for parent in op.parents:
                children[parent].append(op.id)
        return tuple(map(tuple, children))

    def siblings(self, op: OpId) -> tuple[OpId, ...]:
        """The other ops that share an input with this one."""
        parents = self.record.ops[op].parents
        return _others(op, (child for parent in parents for child in self.children[parent]))

    def spouses(self, op: OpId) -> tuple[OpId, ...]:
        """The other ops whose results are used by the same ops as this one's."""
        ops = self.record.ops
        return _others(op, (parent for child in self.children[op] for parent in ops[child].parents))

    def modules(self, op: OpId) -> tuple[CallRecord, ...]:
        """The module calls that an op ran in, outermost first, without the model's."""
        line = []
        call = self.record.ops[op].call
        while call is not None:
            line.append(self.record.calls[call])
            call = line[-1].parent
        return tuple(call for call in reversed(line) if call.path)

    def output_of(self, op: OpId) -> tuple[CallRecord, ...]:
        """The module calls that returned an op's result, innermost first, without the model's."""
        return self._returned_by.get(op, ())

    def call_name(self, call: CallRecord) -> str:
        """A call's name: its module's path, with ":2" if the module ran several times."""
        return f"{call.path}:{call.number}" if self._calls_at[call.path] > 1 else call.path

    @cached_property
    def ops_of_call(self) -> Mapping[CallId, tuple[OpId, ...]]:
        """The ops that ran in each call, including inner calls."""
        inside: dict[CallId, list[OpId]] = {call.id: [] for call in self.record.calls}
        for op in self.record.ops:
            call = op.call
            while call is not None:
                inside[call].append(op.id)
                call = self.record.calls[call].parent
        return {call: tuple(ops) for call, ops in inside.items()}

    @cached_property
    def loops(self) -> int:
        """The number of passes of the longest loop; 1 in a feedforward pass."""
        return longest_loop(self.record.ops, self.labels.layers.repeated)

    @cached_property
    def is_branching(self) -> bool:
        """Whether a result was used by more than one op."""
        return any(len(used_by) > 1 for used_by in self.children)

    @cached_property
    def distances_from_input(self) -> tuple[Distances | None, ...]:
        """For each op the fewest and the most edges from an input; None if it depends on none."""
        ops = self.record.ops
        return _distances(
            ops, [op.parents for op in ops], {op.id for op in ops if op.kind == "input"}
        )

    @cached_property
    def distances_from_output(self) -> tuple[Distances | None, ...]:
        """For each op the fewest and the most edges to an output; None if none depends on it."""
        ops = self.record.ops
        ends = {op.id for op in ops if op.kind == "output"}
        return _distances(tuple(reversed(ops)), self.children, ends)

    @cached_property
    def parameters(self) -> Mapping[str, TensorSpec]:
        """The parameters that ops used, each once, by dotted name."""
        return {name: spec for op in self.record.ops for name, spec in parameters_of(op).items()}

    @cached_property
    def _returned_by(self) -> Mapping[OpId, tuple[CallRecord, ...]]:
        returned: dict[OpId, dict[CallId, CallRecord]] = {}
        # In order of their end, so inner calls come first.
        for call in sorted(self.record.calls, key=lambda call: (call.end_ns, -call.id)):
            for value in call.outputs if call.path else ():
                if value.op is not None:
                    returned.setdefault(value.op, {})[call.id] = call
        return {op: tuple(calls.values()) for op, calls in returned.items()}

    @cached_property
    def _calls_at(self) -> Counter[str]:
        return Counter(call.path for call in self.record.calls)


def parameters_of(op: OpRecord) -> dict[str, TensorSpec]:
    """The parameters that an op used, by dotted name."""
    return {operand.parameter: operand.spec for operand in op.operands if operand.parameter}


def _distances(
    ops: Sequence[OpRecord], before: Sequence[Sequence[OpId]], starts: set[OpId]
) -> tuple[Distances | None, ...]:
    """The fewest and the most edges to each op from a start; `ops` must be in topological order."""
    distances: list[Distances | None] = [None] * len(ops)
    for op in ops:
        if op.id in starts:
            distances[op.id] = (0, 0)
            continue
        known = [near for near in (distances[other] for other in before[op.id]) if near]
        if known:
            distances[op.id] = (
                min(fewest for fewest, _ in known) + 1,
                max(most for _, most in known) + 1,
            )
    return tuple(distances)


def _others(op: OpId, relatives: Iterable[OpId]) -> tuple[OpId, ...]:
    return tuple(sorted({relative for relative in relatives if relative != op}))

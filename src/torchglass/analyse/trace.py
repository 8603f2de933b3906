"""The structure of a traced pass: its op names, relations and modules.

All views of a trace use this; each part is computed when it is first needed. A selection is:

    "all", None                 everything, nothing
    7, -1                       by index
    "conv2d_3_7", "conv2d_3"    a layer, with all its passes
    "linear_1_1:2"              one pass
    "features.3", "features.3:2"  what a module returned, in all its calls or in one
    "relu"                      every op with that in its name
    lambda op: op.type == "relu"
    [any, of, these]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from torchglass.analyse.op_names import Lookup, OpLabels, longest_loop
from torchglass.blocks import collector_paused
from torchglass.errors import LookupFailedError
from torchglass.records.tensors import TensorSpec
from torchglass.records.trace import CallId, CallRecord, OpId, OpRecord, TraceRecord

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


Selection = Any
"""One of the forms above."""


def at_once(selection: Selection) -> Callable[[OpRecord], bool] | None:
    """The test to apply during the pass; None if it needs names, which are known only later."""
    if selection is None or selection == "none" or _is_empty(selection):
        return lambda op: False
    return selection if callable(selection) else None


def select(selection: Selection, anatomy: TraceStructure) -> frozenset[OpId]:
    """The ops of a selection."""
    return frozenset(_selected(selection, anatomy))


def is_everything(selection: Selection) -> bool:
    """Whether a selection includes all ops."""
    return selection is True or selection == "all"


def _selected(selection: Selection, anatomy: TraceStructure) -> Iterable[OpId]:
    if is_everything(selection):
        return [op.id for op in anatomy.record.ops]
    if selection is None or selection == "none":
        return ()
    if isinstance(selection, str):
        return _named(selection.lower(), anatomy)
    if isinstance(selection, int):
        return [anatomy.lookup.find(selection)]
    if callable(selection):
        return [op.id for op in anatomy.record.ops if selection(op)]
    return [op for part in selection for op in _selected(part, anatomy)]


def _named(name: str, anatomy: TraceStructure) -> tuple[OpId, ...]:
    if name in anatomy.layers:
        return anatomy.layers[name]
    returned = tuple(dict.fromkeys(_returned_by(name, anatomy)))
    if returned:
        return returned
    try:
        return (anatomy.lookup.find(name),)
    except LookupFailedError:
        labels = zip(anatomy.record.ops, anatomy.labels, strict=True)
        parts = tuple(op.id for op, label in labels if name in str(label))
        if parts:
            return parts
        raise


def _returned_by(name: str, anatomy: TraceStructure) -> Iterator[OpId]:
    for call in anatomy.record.calls:
        if name in (call.path.lower(), f"{call.path}:{call.number}".lower()):
            yield from (value.op for value in call.outputs if value.op is not None)


def _is_empty(selection: Selection) -> bool:
    return isinstance(selection, (list, tuple, set, frozenset)) and not selection

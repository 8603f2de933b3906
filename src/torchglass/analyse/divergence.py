"""The first op at which two executions diverge, found from the values that they share.

Values that both compute are known; they need not have the same names, nor be computed by the same
ops. From an output that differs, what led to it is followed back until values are the same again.
They diverge at an op whose operands are the same in both and whose result is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from torchglass.records.comparison import ExecutedOp, ExecutionGraph, ValueId

DivergenceKind = Literal[
    "arguments", "operands", "weight", "missing", "extra", "layout", "function", "result"
]
"""What is different at the op: its arguments, what it reads, a weight; the op is missing in `b`, or
`b` has one more; it changes the order of elements in another way; another function; or nothing
that can be seen, such as random numbers."""


_MOST_SIDES = 200


class ValueRelation(Protocol):
    """Which values of two executions are the same."""

    @property
    def of(self) -> Mapping[ValueId, Sequence[ValueId]]:
        """For each value of `b` those of `a`, best first."""

    def is_same(self, b: ValueId, a: ValueId) -> bool:
        """Whether two values of one shape are equal element by element, up to rounding."""

    def is_permuted(self, b: ValueId, a: ValueId) -> bool:
        """Whether a value of `b` is one of `a` with its dimensions in some order."""

    def is_composed(self, b: ValueId, a: Iterable[ValueId]) -> bool:
        """Whether a value of `b` is a part of values of `a`, or consists of them, side by side."""

    def match_permuted(self, b: ValueId) -> bool:
        """Look for a value of `b` in another order of dimensions."""

    def expand(self, a: ExecutedOp, b: Iterable[ValueId]) -> bool:
        """Look for values of `b` inside of a fused op of `a`; whether any were found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpPair:
    """Two ops that should be the same and are not."""

    kind: DivergenceKind
    a: ExecutedOp | None
    b: ExecutedOp | None
    value_a: ValueId | None = None
    value_b: ValueId | None = None
    """What differs: a result, or for "operands" and "weight" what is read."""


def first_divergence(
    a: ExecutionGraph,
    b: ExecutionGraph,
    relation: ValueRelation,
    outputs: Iterable[tuple[ValueId, ValueId]],
) -> OpPair | None:
    """Where two executions diverge; `outputs` are pairs of `b` and `a` that differ."""
    return _Search(a, b, relation, list(outputs)).run()


class _Search:
    def __init__(
        self,
        a: ExecutionGraph,
        b: ExecutionGraph,
        relation: ValueRelation,
        outputs: Sequence[tuple[ValueId, ValueId]],
    ) -> None:
        self.a, self.b, self.relation = a, b, relation
        self.outputs = outputs
        self.composed: set[ValueId] = set()
        self.tried: set[ValueId] = set()
        self.expanded: set[int] = set()
        self.sides_a = [
            value for op in a.ops for value in op.outputs if value not in a.from_inputs
        ][:_MOST_SIDES]
        self.opened: set[int] = set()
        """The fused ops of `a` inside of which values of `b` were found."""

    def run(self) -> OpPair | None:
        while True:
            self._update()
            frontier = self._frontier(self.b, self.apart_b, self.agreed_b)
            if not self._resolve(frontier):
                break
        if not frontier:
            return self._ends_early()
        pairs = [(op, self._partner(op)) for op in frontier]
        op, partner = min(pairs, key=lambda pair: (_strength(*pair), pair[0].id))
        return self._explain(op, partner)

    def _ends_early(self) -> OpPair | None:
        """What `b` returns is something that `a` computes on its way."""
        left = self._frontier(self.a, self.apart_a, self.agreed_a)
        value = self.outputs[0][0]
        if not left:
            return None
        return OpPair(
            kind="missing",
            a=left[0],
            b=self.b.producer.get(value),
            value_a=left[0].outputs[0],
            value_b=value,
        )

    def _update(self) -> None:
        """What is the same so far, and the ops between that and the outputs."""
        self.agreed_b = _with_views(self.b, {*self.relation.of, *self.composed})
        found = {one for values in self.relation.of.values() for one in values}
        self.agreed_a = _with_views(self.a, found)
        self.apart_b = _slice(self.b, [b for b, _ in self.outputs], self.agreed_b)
        self.apart_a = _slice(self.a, [a for _, a in self.outputs], self.agreed_a)

    def _frontier(
        self, graph: ExecutionGraph, apart: Iterable[ExecutedOp], agreed: set[ValueId]
    ) -> list[ExecutedOp]:
        """The ops whose operands are the same, as far as they depend on the inputs."""
        main = graph.from_inputs
        depends = [op for op in apart if any(one in main for one in op.outputs)]
        first = [
            op for op in depends if all(value in agreed for value in op.inputs if value in main)
        ]
        return first or depends[:1] or list(apart)[:1]

    def _resolve(self, frontier: Sequence[ExecutedOp]) -> bool:
        """Find values that are the same in another layout, in a fused op or in parts of one."""
        is_new = False
        for op in frontier:
            near = [
                value
                for other in self._sharing(op, self.apart_a)
                for value in self._outputs_and_parts(other)
            ]
            sides = (value for value in op.inputs if value not in self.b.from_inputs)
            wanted = [*((one, near) for one in op.outputs), *((one, self.sides_a) for one in sides)]
            for value, among in wanted:
                is_new |= self._look_for(value, among)
        if not is_new:
            inside = [value for op in self.apart_b for value in op.outputs]
            for op in self._frontier(self.a, self.apart_a, self.agreed_a):
                if op.id not in self.expanded:
                    self.expanded.add(op.id)
                    if self.relation.expand(op, inside):
                        self.opened.add(op.id)
                        is_new = True
        return is_new

    def _look_for(self, value: ValueId, near: Sequence[ValueId]) -> bool:
        """Whether a value of `b` is found that was not looked for yet."""
        if value in self.agreed_b or value in self.tried:
            return False
        self.tried.add(value)
        if self.relation.match_permuted(value):
            return True
        if self.relation.is_composed(value, near):
            self.composed.add(value)
            return True
        return False

    def _outputs_and_parts(self, op: ExecutedOp) -> Iterator[ValueId]:
        """What an op returned, and what was split off from it."""
        for value in op.outputs:
            yield value
            for after in self.a.consumers.get(value, ()):
                if after.is_layout:
                    yield from self._outputs_and_parts(after)

    def _equals(self, value: ValueId) -> set[ValueId]:
        """The values of `a`, views aside, that a value of `b` is the same as."""
        found = {*self.relation.of.get(value, ())}
        found.update(self.relation.of.get(self.b.base(value), ()))
        return {self.a.base(one) for one in found} | found

    def _sharing(self, op: ExecutedOp, others: Iterable[ExecutedOp]) -> list[ExecutedOp]:
        """The ops of `a` that read something that an op of `b` reads, too."""
        read = [self._equals(value) for value in op.inputs if value in self.b.from_inputs]
        return [
            other
            for other in others
            if any(
                one in same or self.a.base(one) in same
                for one in other.inputs
                if one in self.a.from_inputs
                for same in read
            )
        ]

    def _partner(self, op: ExecutedOp) -> ExecutedOp | None:
        """The op of `a` that should have done the same."""
        frontier = self._frontier(self.a, self.apart_a, self.agreed_a)
        near = self._sharing(op, frontier) or self._sharing(op, self.apart_a)
        # An op that only changes the view just passes its input on.
        computing = [other for other in near if not other.is_layout] or near or frontier
        if not computing:
            return None
        return min(
            computing,
            key=lambda other: (
                function_of(other) != function_of(op),
                -len({*map(self.a.base, other.inputs)} & self._all_equals(op)),
                other.id,
            ),
        )

    def _all_equals(self, op: ExecutedOp) -> set[ValueId]:
        return {one for value in op.inputs for one in self._equals(value)}

    def _explain(self, op: ExecutedOp, partner: ExecutedOp | None) -> OpPair:
        pair = OpPair(
            kind="function",
            a=partner,
            b=op,
            value_a=partner.outputs[0] if partner and partner.outputs else None,
            value_b=op.outputs[0] if op.outputs else None,
        )
        if partner is None:
            return replace(pair, kind="extra")
        return (
            self._wrong_layout(pair, op, partner)
            or self._missing_or_extra(pair, op, partner)
            or self._wrong_operand(pair, op, partner)
            or self._wrong_side(pair, op, partner)
            or pair
        )

    def _wrong_side(self, pair: OpPair, op: ExecutedOp, partner: ExecutedOp) -> OpPair | None:
        """An operand that does not depend on the inputs, and that `a` has not."""
        wrong = (one for one in op.inputs if one not in self.agreed_b)
        own = next((one for one in wrong if one not in self.b.from_inputs), None)
        there = (one for one in partner.inputs if one not in self.agreed_a)
        other = next((one for one in there if one not in self.a.from_inputs), None)
        if own is None or (other is None and partner.id not in self.opened):
            return None
        return self._inside_side(pair, own, other)

    def _wrong_operand(self, pair: OpPair, op: ExecutedOp, partner: ExecutedOp) -> OpPair | None:
        """The same function on different operands, with different arguments, or neither."""
        if function_of(op) != function_of(partner):
            return None
        if len(op.inputs) == len(partner.inputs):
            for own, other in zip(op.inputs, partner.inputs, strict=True):
                same = self._equals(own)
                if own in self.agreed_b and other not in same and self.a.base(other) not in same:
                    return replace(pair, kind="operands", value_a=other, value_b=own)
                if own not in self.agreed_b:
                    return self._inside_side(pair, own, other)
        if settings_differ(op, partner):
            return replace(pair, kind="arguments")
        return replace(pair, kind="result")

    def _inside_side(self, pair: OpPair, own: ValueId, other: ValueId | None) -> OpPair:
        """Follow an operand that does not depend on the inputs: a weight, a mask, a table."""
        if own not in self.b.producer:
            return replace(pair, kind="weight", value_a=other, value_b=own)
        inside = _slice(self.b, [own], self.agreed_b)
        there = [] if other is None else _slice(self.a, [other], self.agreed_a)
        first = self._first_of(inside) if other is not None else _first_computed(inside)
        if first is None:
            return replace(pair, kind="operands", value_a=other, value_b=own)
        alike = [op for op in there if function_of(op) == function_of(first)]
        partner = next(iter([*alike, *there]), pair.a)
        found = OpPair(
            kind="function",
            a=partner,
            b=first,
            value_a=partner.outputs[0] if partner and partner.outputs else None,
            value_b=first.outputs[0] if first.outputs else None,
        )
        leaf = next(
            (one for one in first.inputs if one not in self.agreed_b and one in self.b.names), None
        )
        if leaf is not None:
            return replace(found, kind="weight", value_a=None, value_b=leaf)
        if partner is not None and function_of(partner) == function_of(first):
            is_other = settings_differ(first, partner)
            return replace(found, kind="arguments" if is_other else "result")
        return found

    def _first_of(self, inside: Sequence[ExecutedOp]) -> ExecutedOp | None:
        same = (op for op in inside if all(one in self.agreed_b for one in op.inputs))
        return next(same, inside[0] if inside else None)

    def _missing_or_extra(self, pair: OpPair, op: ExecutedOp, partner: ExecutedOp) -> OpPair | None:
        """One of both has an op between the same operand and the same next op."""
        if function_of(op) == function_of(partner):
            return None
        if self._leads_to(self.a, partner, op):
            return replace(pair, kind="missing")
        if self._leads_to(self.b, op, partner):
            return replace(pair, kind="extra")
        return None

    def _leads_to(self, graph: ExecutionGraph, op: ExecutedOp, wanted: ExecutedOp) -> bool:
        """Whether the result of an op is read by one like another, views aside."""
        waiting = [*op.outputs]
        while waiting:
            for after in graph.consumers.get(waiting.pop(), ()):
                if function_of(after) == function_of(wanted):
                    return True
                if after.is_layout:
                    waiting += after.outputs
        return False

    def _wrong_layout(self, pair: OpPair, op: ExecutedOp, partner: ExecutedOp) -> OpPair | None:
        """The same values in another order, where both have one shape."""
        if op.is_layout:
            return None
        is_alike = function_of(op) == function_of(partner)
        for own in op.inputs:
            same = self._equals(own)
            if self.b.base(own) == own:
                continue
            for other in partner.inputs:
                if other not in same and self.a.base(other) not in same:
                    continue
                if self._has_other_order(own, other, is_alike):
                    return self._layout_op(pair, own, other)
        return None

    def _has_other_order(self, own: ValueId, other: ValueId, is_alike: bool) -> bool:
        """Whether two operands of one op consist of the same values in another order."""
        mine, theirs = self.b.shapes[own], self.a.shapes[other]
        if is_alike and mine == theirs:
            return not self.relation.is_same(own, other)
        if sorted(one for one in mine if one > 1) != sorted(one for one in theirs if one > 1):
            return False
        # A transposed operand of another function is as it should be.
        return not self.relation.is_permuted(own, other)

    def _layout_op(self, pair: OpPair, own: ValueId, other: ValueId) -> OpPair:
        """The first op on the way to a value that brings it into an order that `a` has not."""
        chain: list[ExecutedOp] = []
        value = own
        while (op := self.b.producer.get(value)) is not None and op.is_layout:
            chain.append(op)
            value = op.inputs[0]
        for op in reversed(chain):
            shape = self.b.shapes[op.outputs[0]]
            known = self.relation.of.get(op.outputs[0], ())
            if not any(self.a.shapes[one] == shape for one in known):
                return replace(
                    pair,
                    kind="layout",
                    a=self.a.producer.get(other, pair.a),
                    b=op,
                    value_a=other,
                    value_b=op.outputs[0],
                )
        return replace(
            pair,
            kind="layout",
            a=self.a.producer.get(other, pair.a),
            b=chain[0],
            value_a=other,
            value_b=own,
        )


def _first_computed(ops: Sequence[ExecutedOp]) -> ExecutedOp | None:
    """The first op that computes something: of a mask not `ones`, but what makes a triangle."""
    computing = (op for op in ops if op.inputs and not op.is_layout)
    return next(computing, ops[-1] if ops else None)


def _strength(op: ExecutedOp, partner: ExecutedOp | None) -> int:
    """Lower is stronger evidence that both diverge at an op."""
    if partner is None:
        return 2
    # An op on a mask is often written in another way.
    if function_of(op) in (
        "invert",
        "bitwisenot",
        "logicalnot",
        "eq",
        "ne",
        "gt",
        "lt",
        "ge",
        "le",
    ):
        return 1
    return 0 if function_of(op) == function_of(partner) else 1


def _slice(
    graph: ExecutionGraph, ends: Iterable[ValueId], agreed: set[ValueId]
) -> list[ExecutedOp]:
    """The ops that lead to values without passing one that is the same, in order."""
    found: dict[int, ExecutedOp] = {}
    waiting = [value for value in ends if value not in agreed]
    while waiting:
        op = graph.producer.get(waiting.pop())
        if op is None or op.id in found:
            continue
        found[op.id] = op
        waiting += [value for value in op.inputs if value not in agreed]
    return [found[number] for number in sorted(found)]


def _with_views(graph: ExecutionGraph, agreed: set[ValueId]) -> set[ValueId]:
    """Values that are the same, with the inputs and whole views of them."""
    found = {*agreed, *graph.inputs}
    for op in graph.ops:
        if op.is_layout and op.inputs and op.inputs[0] in found:
            whole = _count(graph.shapes[op.inputs[0]])
            found.update(one for one in op.outputs if _count(graph.shapes[one]) == whole)
    return found


def _count(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


_SAME_FUNCTION = {
    "truediv": "div",
    "divide": "div",
    "multiply": "mul",
    "subtract": "sub",
    "bmm": "matmul",
    "mm": "matmul",
    "einsum": "matmul",
    "maskedfill": "where",
    "concat": "cat",
    "concatenate": "cat",
    "neg": "mul",
    "square": "pow",
}
_OPERATORS = frozenset(
    {"add", "sub", "mul", "truediv", "matmul", "pow", "and", "or", "xor", "floordiv", "mod"}
)


def function_of(op: ExecutedOp) -> str:
    """What an op computes, however it was written: `+`, `+=` and `torch.add` are one."""
    name = op.function.replace("_", "").lower()
    if name[:1] in ("r", "i") and name[1:] in _OPERATORS:
        name = name[1:]
    return _SAME_FUNCTION.get(name, name)


def settings_differ(one: ExecutedOp, other: ExecutedOp) -> bool:
    """Whether two ops have different arguments, as far as their text shows."""
    return {text for _, text in one.settings} != {text for _, text in other.settings}

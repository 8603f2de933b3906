"""The first op at which two executions diverge, found from the values that they share.

Values that both compute are known; they need not have the same names, nor be computed by the same
ops. From an output that differs, what led to it is followed back until values are the same again.
Of the ops in between, the first one is named whose result, replaced by what `a` has there, makes
what `b` computes next the same as in `a`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from torchglass.analyse.op_chains import (
    OpChains,
    element_sources,
    function_of,
    next_functions,
    ops_between,
    settings_differ,
    side_values,
    view_chain,
    with_views,
)
from torchglass.records.comparison import ExecutedOp, ExecutionGraph, ValueId

DivergenceKind = Literal[
    "arguments", "operands", "weight", "missing", "extra", "layout", "function", "result"
]
"""What is different at the op: its arguments, what it reads, a weight; the op is missing in `b`, or
`b` has one more; it changes the order of elements in another way; another function; or nothing
that can be seen, such as random numbers."""

_MOST_OPS = 40
"""Ops of `b` after the first difference whose results are replaced, one after the other."""
_MOST_PARTNERS = 6
"""Values of `a` that are tried in place of one of `b`."""
_MOST_REPLAYS = 120


class ReplayEvidence(Protocol):
    """What `b` computes with one of its values replaced."""

    @property
    def matched(self) -> int:
        """How many of the next values are those of `a` then."""

    @property
    def is_clean(self) -> bool:
        """Whether everything that follows is, as far as it depends on this value alone."""


class ValueRelation(Protocol):
    """Which values of two executions are the same; expanding an op changes both graphs."""

    @property
    def of(self) -> Mapping[ValueId, Sequence[ValueId]]:
        """For each value of `b` those of `a`, best first."""

    @property
    def graphs(self) -> tuple[ExecutionGraph, ExecutionGraph]:
        """The ops of `a` and of `b`."""

    @property
    def can_replay(self) -> bool:
        """Whether ops of `b` can run again."""

    def is_same(self, b: ValueId, a: ValueId) -> bool:
        """Whether two values of one shape are equal element by element, up to rounding."""

    def is_permuted(self, b: ValueId, a: ValueId) -> bool:
        """Whether a value of `b` is one of `a` with its dimensions in some order."""

    def is_composed(self, b: ValueId, a: Iterable[ValueId]) -> bool:
        """Whether a value of `b` is a part of values of `a`, or consists of them, side by side."""

    def fits(self, b: ValueId, a: ValueId) -> bool:
        """Whether a value of `a` can replace one of `b`."""

    def match_permuted(self, b: ValueId) -> bool:
        """Look for a value of `b` in another order of dimensions."""

    def expand(self, side: Literal["a", "b"], op: ExecutedOp, wanted: Iterable[ValueId]) -> bool:
        """Replace a fused op by its steps, and look for values of `b`; whether it has steps."""

    def replay(
        self,
        value: ValueId,
        other: tuple[Literal["a", "b"], ValueId],
        ops: Sequence[ExecutedOp],
        known: tuple[set[ValueId], set[ValueId]],
    ) -> ReplayEvidence:
        """Run ops of `b` with a value replaced; `known` are values of `a` and `b` that agree."""


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
    relation: ValueRelation, outputs: Iterable[tuple[ValueId, ValueId]]
) -> OpPair | None:
    """Where two executions diverge; `outputs` are pairs of `b` and `a` that differ."""
    return _Search(relation, list(outputs)).run()


class _Search:
    def __init__(self, relation: ValueRelation, outputs: Sequence[tuple[ValueId, ValueId]]) -> None:
        self.relation, self.outputs = relation, outputs
        self.composed: set[ValueId] = set()
        self.tried: set[ValueId] = set()
        self.expanded: set[tuple[str, int]] = set()

    @property
    def a(self) -> ExecutionGraph:
        return self.relation.graphs[0]

    @property
    def b(self) -> ExecutionGraph:
        return self.relation.graphs[1]

    def run(self) -> OpPair | None:
        while True:
            self._update()
            frontier = self._frontier(self.b, self.apart_b, self.agreed_b)
            if self._resolve(frontier):
                continue
            found = self._same_layer(frontier)
            if found is not None:
                return found
            if not (self._expand(frontier) or self._look_further()):
                break
        if not frontier:
            return self._ends_early()
        return self._by_replay() or self._by_likeness(frontier)

    def _same_layer(self, frontier: Sequence[ExecutedOp]) -> OpPair | None:
        """The same function of a weight on the same operands: its arguments differ, or its weight.

        Nothing has to run again: an op with a weight of the same name, or the same weight, is the
        counterpart.
        """
        for op in sorted(frontier, key=lambda one: self.b.position[one.id]):
            weights = [one for one in op.inputs if one in self.b.names]
            for other in self.apart_a if weights else ():
                if function_of(other) != function_of(op) or len(other.inputs) != len(op.inputs):
                    continue
                pairs = list(zip(op.inputs, other.inputs, strict=True))
                apart = [pair for pair in pairs if not self._is_alike(*pair)]
                if not apart and settings_differ(op, other):
                    values = other.outputs[0], op.outputs[0]
                    return OpPair(
                        kind="arguments", a=other, b=op, value_a=values[0], value_b=values[1]
                    )
                names = [(self.b.names.get(own), self.a.names.get(at)) for own, at in apart]
                if apart and all(own and own == at for own, at in names):
                    own, there = apart[0]
                    return OpPair(kind="weight", a=other, b=op, value_a=there, value_b=own)
        return None

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
        self.agreed_b = with_views(self.b, {*self.relation.of, *self.composed})
        found = {one for values in self.relation.of.values() for one in values}
        self.agreed_a = with_views(self.a, found)
        self.apart_b = ops_between(self.b, [b for b, _ in self.outputs], self.agreed_b)
        self.apart_a = ops_between(self.a, [a for _, a in self.outputs], self.agreed_a)

    def _frontier(
        self, graph: ExecutionGraph, apart: Sequence[ExecutedOp], agreed: set[ValueId]
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
        sides_a = side_values(self.a)
        for op in frontier:
            near = [
                value
                for other in self._sharing(op, self.apart_a)
                for value in self._outputs_and_parts(other)
            ]
            sides = (value for value in op.inputs if value not in self.b.from_inputs)
            wanted = [*((one, near) for one in op.outputs), *((one, sides_a) for one in sides)]
            for value, among in wanted:
                is_new |= self._look_for(value, among)
        return is_new

    def _look_further(self) -> bool:
        """Find parts of values of `a` behind the first ops, such as the halves of a rotation."""
        near = [value for op in self.apart_a[:_MOST_OPS] for value in op.outputs]
        found = [
            self._look_for(value, near) for op in self.apart_b[:_MOST_OPS] for value in op.outputs
        ]
        return any(found)

    def _expand(self, frontier: Sequence[ExecutedOp]) -> bool:
        """Open the fused ops that the other one does not call in one go."""
        frontier_a = self._frontier(self.a, self.apart_a, self.agreed_a)
        is_new = False
        # What both call as one function is compared as such.
        functions_a = {function_of(op) for op in frontier_a}
        functions_b = {function_of(op) for op in frontier}
        sides: list[tuple[Literal["a", "b"], Sequence[ExecutedOp], set[str]]] = [
            ("a", frontier_a, functions_b),
            ("b", frontier, functions_a),
        ]
        for side, ops, others in sides:
            for op in ops:
                if (side, op.id) in self.expanded or function_of(op) in others:
                    continue
                self.expanded.add((side, op.id))
                wanted = [value for one in self.apart_b for value in one.outputs]
                is_new |= self.relation.expand(side, op, wanted)
            if is_new:
                return True
        return False

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

    def _by_replay(self) -> OpPair | None:
        """The first op whose result, as `a` has it, makes the next ones agree."""
        if not self.relation.can_replay:
            return None
        left = _MOST_REPLAYS
        constants = {value for op in self.b.ops if not op.inputs for value in op.outputs}
        known = self.agreed_a, self.agreed_b | constants
        for op, value in self._suspects():
            best: tuple[bool, int, OpPair] | None = None
            for partner in self._partners(op, value):
                left -= 1
                later = [one for one in self.apart_b if value not in one.outputs]
                replay = self.relation.replay(value, partner, later, known)
                is_last = partner[0] == "a" and (value, partner[1]) in self.outputs
                matched = replay.matched + is_last
                if not matched or (partner[0] == "b" and not replay.is_clean):
                    continue
                if best is None or (replay.is_clean, matched) > best[:2]:
                    best = replay.is_clean, matched, self._pair(op, value, partner)
                if replay.is_clean:
                    break
            if best is not None:
                return self._explain(best[2])
            if left <= 0:
                break
        return None

    def _suspects(self) -> Iterator[tuple[ExecutedOp, ValueId]]:
        """The values of `b` that may be wrong, in order: results, and views of what is right."""
        found: dict[int, ExecutedOp] = {}
        for op in self.apart_b[:_MOST_OPS]:
            for value in op.inputs:
                for view in reversed(view_chain(self.b, value)):
                    found.setdefault(view.id, view)
            found.setdefault(op.id, op)
        for op in sorted(found.values(), key=lambda one: self.b.position[one.id]):
            yield from ((op, value) for value in op.outputs)

    def _partners(
        self, op: ExecutedOp, value: ValueId
    ) -> Iterator[tuple[Literal["a", "b"], ValueId]]:
        """What may replace a value of `b`: values of `a`, or what its op read."""
        near: dict[ValueId, ExecutedOp | None] = {}
        for other in self.apart_a[: 2 * _MOST_OPS]:
            for one in (*other.inputs, *other.outputs):
                near.setdefault(one, self.a.producer.get(one))
                for view in view_chain(self.a, one):
                    near.setdefault(view.outputs[0], view)
        is_view = op.is_layout and value in self.agreed_b
        next_ops = next_functions(self.b, value)

        def rank(one: ValueId) -> tuple[object, ...]:
            maker = near[one]
            return (
                not next_ops & next_functions(self.a, one),
                maker is None or function_of(maker) != function_of(op),
                self.a.shapes[one] != self.b.shapes[value],
                one in self.agreed_a,
                -1 if maker is None else self.a.position[maker.id],
            )

        ranked = sorted((one for one in near if self._may_replace(value, one, is_view)), key=rank)
        for one in ranked[:_MOST_PARTNERS]:
            yield "a", one
        if not is_view and not op.is_layout:
            for one in op.inputs:
                if one in self.b.from_inputs and self.b.shapes[one] == self.b.shapes[value]:
                    yield "b", one

    def _may_replace(self, value: ValueId, other: ValueId, is_view: bool) -> bool:
        if other in self.relation.of.get(value, ()) and self.relation.is_same(value, other):
            return False
        if is_view and not self._is_rearranged(value, other):
            # Of other values, the op that reads them is named.
            return False
        return self.relation.fits(value, other)

    def _is_rearranged(self, own: ValueId, other: ValueId) -> bool:
        """Whether two values are the same elements, or some of them, in another order."""
        there = {*element_sources(self.a, other)}
        mine = element_sources(self.b, own)
        return any(there.intersection(self.relation.of.get(one, ())) for one in mine)

    def _pair(
        self, op: ExecutedOp, value: ValueId, partner: tuple[Literal["a", "b"], ValueId]
    ) -> OpPair:
        side, other = partner
        if side == "b":
            return OpPair(kind="extra", a=None, b=op, value_b=value)
        is_view = op.is_layout and value in self.agreed_b
        return OpPair(
            kind="layout" if is_view else "function",
            a=self.a.producer.get(other),
            b=op,
            value_a=other,
            value_b=value,
        )

    def _by_likeness(self, frontier: Sequence[ExecutedOp]) -> OpPair:
        """Where nothing can run again: the op that is most like one of `a` on the same operands."""
        pairs = [(op, self._partner(op)) for op in frontier]
        op, partner = min(pairs, key=lambda pair: (_strength(*pair), self.b.position[pair[0].id]))
        pair = OpPair(
            kind="function" if partner is not None else "extra",
            a=partner,
            b=op,
            value_a=partner.outputs[0] if partner and partner.outputs else None,
            value_b=op.outputs[0] if op.outputs else None,
        )
        return self._explain(pair)

    def _partner(self, op: ExecutedOp) -> ExecutedOp | None:
        """The op of `a` that should have done the same."""
        frontier = self._frontier(self.a, self.apart_a, self.agreed_a)
        near = self._sharing(op, frontier) or self._sharing(op, self.apart_a)
        # An op that only changes the view just passes its input on.
        computing = [other for other in near if not other.is_layout] or near or frontier
        if not computing:
            return None
        read = {one for value in op.inputs for one in self._equals(value)}
        return min(
            computing,
            key=lambda other: (
                function_of(other) != function_of(op),
                -len({*map(self.a.base, other.inputs)} & read),
                self.a.position[other.id],
            ),
        )

    def _explain(self, pair: OpPair) -> OpPair:
        op, partner = pair.b, pair.a
        if op is None or partner is None or pair.kind in ("layout", "extra"):
            return pair if partner is not None else replace(pair, kind="extra")
        return (
            self._in_chain(pair, op)
            or self._wrong_layout(pair, op, partner)
            or self._wrong_operand(pair, op, partner)
            or self._missing_or_extra(pair, op, partner)
            or self._wrong_weight(pair, op)
            or pair
        )

    def _wrong_weight(self, pair: OpPair, op: ExecutedOp) -> OpPair | None:
        wrong = (one for one in op.inputs if one not in self.agreed_b and one in self.b.names)
        own = next(wrong, None)
        return None if own is None else replace(pair, kind="weight", value_a=None, value_b=own)

    def _in_chain(self, pair: OpPair, op: ExecutedOp) -> OpPair | None:
        """An op before the one that was found, where results in between cannot be compared.

        It reads what an op of `a` reads, of which the function or the arguments are others.
        """
        if pair.value_a is None or pair.value_b is None:
            return None
        chain_a = ops_between(self.a, [pair.value_a], self.agreed_a)
        chain_b = ops_between(self.b, [pair.value_b], self.agreed_b)
        computing = [one for one in chain_b if not one.is_layout]
        if len(computing) < 2 or all(one in self.agreed_b for one in op.inputs):
            return None
        chains = OpChains(self.relation.graphs, self.relation.of, chain_a, computing)
        found = chains.first_other()
        if found is None:
            return None
        kind, a, b = found
        return OpPair(kind=kind, a=a, b=b, value_a=a.outputs[0], value_b=b.outputs[0])

    def _wrong_operand(self, pair: OpPair, op: ExecutedOp, partner: ExecutedOp) -> OpPair | None:
        """The same function on different operands, with different arguments, or neither."""
        if function_of(op) != function_of(partner):
            return None
        for own, other in self._operand_pairs(op, partner):
            if self._is_alike(own, other):
                continue
            if own not in self.agreed_b:
                if own in self.b.names:
                    return replace(pair, kind="weight", value_a=other, value_b=own)
                continue
            between = ops_between(self.a, [other], self.agreed_a)
            missing = [one for one in between if not one.is_layout]
            if missing and self._reads(missing[0], own):
                return replace(pair, kind="missing", a=missing[0], value_a=missing[0].outputs[0])
            return replace(pair, kind="operands", value_a=other, value_b=own)
        if settings_differ(op, partner):
            return replace(pair, kind="arguments")
        is_plain = all(one in self.agreed_b for one in op.inputs)
        return replace(pair, kind="result") if is_plain else None

    def _operand_pairs(
        self, op: ExecutedOp, partner: ExecutedOp
    ) -> Sequence[tuple[ValueId, ValueId]]:
        if len(op.inputs) != len(partner.inputs):
            return ()
        pairs = list(zip(op.inputs, partner.inputs, strict=True))
        turned = list(zip(op.inputs, reversed(partner.inputs), strict=True))
        if function_of(op) in ("add", "mul") and len(pairs) == 2:
            # The order does not matter.
            return max(pairs, turned, key=lambda some: sum(self._is_alike(*one) for one in some))
        return pairs

    def _is_alike(self, own: ValueId, other: ValueId) -> bool:
        return other in self.relation.of.get(own, ()) or self.relation.is_permuted(own, other)

    def _reads(self, op: ExecutedOp, value: ValueId) -> bool:
        same = self._equals(value)
        return any(one in same or self.a.base(one) in same for one in op.inputs)

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
        if op.is_layout or function_of(op) != function_of(partner):
            return None
        for own, other in self._operand_pairs(op, partner):
            maker = self.b.producer.get(own)
            if maker is None or self.b.shapes[own] != self.a.shapes[other]:
                continue
            is_moved = self._is_rearranged(own, other) or self.relation.is_permuted(own, other)
            if is_moved and not self.relation.is_same(own, other):
                return replace(
                    pair,
                    kind="layout",
                    a=self.a.producer.get(other, partner),
                    b=maker,
                    value_a=other,
                    value_b=own,
                )
        return None


def _strength(op: ExecutedOp, partner: ExecutedOp | None) -> int:
    """Lower is stronger evidence that both diverge at an op."""
    if partner is None:
        return 2
    return 0 if function_of(op) == function_of(partner) else 1

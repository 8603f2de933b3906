"""Finds where two executions diverge, even if one splits up what the other computes in one op.

A port may write `softmax(q @ k.T / sqrt(d)) @ v` where the other model calls one function: such a
function is replaced by its steps. Which op is wrong is found by experiment: `b` runs on with what
`a` computed in place of one of its own values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from torchglass.analyse.divergence import OpPair, first_divergence
from torchglass.analyse.op_chains import function_of, settings_differ
from torchglass.capture.tensor.description import iter_tensors
from torchglass.records.comparison import ExecutedOp, ExecutionGraph, ValueId
from torchglass.whatif.execution import Execution
from torchglass.whatif.fused_steps import steps_of
from torchglass.whatif.value_match import (
    ValueMatcher,
    match_executions,
    parts_like,
    permutations,
    relative_distance,
)

_NEAR = 0.05
"""Ops with different arguments whose results are closer than this are run on the same operands."""
_EFFECT = 5e-7
"""The least effect of different arguments in float64: above the error of float32 inside an op."""
_ENOUGH = 6
"""Values that agree again after one was replaced: then it was the one that is wrong."""
_FEW = 4
_MOST_STEPS = 40
"""Ops that run again after a value was replaced."""


@dataclass(frozen=True, kw_only=True)
class Parting:
    """How two executions compare."""

    pair: OpPair | None
    """Where they diverge; None if they do not."""
    outputs: tuple[tuple[float, float], ...]
    """For each output: the relative distance, and what rounding explains of it."""
    same: int
    """How many of the ops before that compute the same."""
    matcher: ValueMatcher


@dataclass(kw_only=True)
class Replayed:
    """What `b` computes with another value in place of one of its own."""

    matched: int = 0
    open: set[ValueId] = field(default_factory=set)
    """Values that `a` has not, and from which nothing was computed yet that `a` has."""

    @property
    def is_clean(self) -> bool:
        return self.matched >= _ENOUGH or (self.matched > 0 and not self.open)


class Relation:
    """The values that two executions have in common, as the search asks for them."""

    def __init__(self, matcher: ValueMatcher) -> None:
        self.matcher = matcher

    @property
    def of(self) -> Mapping[ValueId, Sequence[ValueId]]:
        return self.matcher.matches.of

    @property
    def graphs(self) -> tuple[ExecutionGraph, ExecutionGraph]:
        return self.matcher.a.graph, self.matcher.b.graph

    @property
    def can_replay(self) -> bool:
        return bool(self.matcher.b.rerun)

    def is_same(self, b: ValueId, a: ValueId) -> bool:
        return self.matcher.is_same(b, a)

    def is_permuted(self, b: ValueId, a: ValueId) -> bool:
        return self.matcher.is_permuted(b, a)

    def is_composed(self, b: ValueId, a: Iterable[ValueId]) -> bool:
        parts = list(dict.fromkeys(a))
        if any(self.matcher.is_part(b, one) for one in parts):
            return True
        return bool(parts) and self.matcher.is_joined(b, parts)

    def fits(self, b: ValueId, a: ValueId) -> bool:
        given = _in_shape_of(self.matcher.a.values[a], self.matcher.b.values[b])
        return next(given, None) is not None

    def match_permuted(self, b: ValueId) -> bool:
        return self.matcher.match_permuted(b)

    def expand(self, side: Literal["a", "b"], op: ExecutedOp, wanted: Iterable[ValueId]) -> bool:
        """Put the steps of a fused op in its place, and look for values of `b` among them."""
        execution = self.matcher.a if side == "a" else self.matcher.b
        called = execution.arguments.get(op.id)
        steps = [] if called is None else steps_of(function_of(op), called.args, called.kwargs)
        if len(steps) < 2:
            return False
        start = len(execution.values)
        execution.replace_op(op, steps)
        new = range(start, len(execution.values))
        if side == "a":
            self.matcher.add_candidates(new)
        else:
            wanted = [*wanted, *new]
        for one in wanted:
            if one not in self.of and not self.matcher.match(one):
                self.matcher.match_permuted(one)
        return True

    def replay(
        self,
        value: ValueId,
        other: tuple[Literal["a", "b"], ValueId],
        ops: Sequence[ExecutedOp],
        known: tuple[set[ValueId], set[ValueId]],
    ) -> Replayed:
        """Run ops of `b` with a value replaced; `known` are values of `a` and `b` that agree."""
        side, number = other
        given = (self.matcher.a if side == "a" else self.matcher.b).values[number]
        best = Replayed()
        for tensor in _in_shape_of(given, self.matcher.b.values[value]):
            found = _ReplayRun(self.matcher, known).run({value: tensor}, ops)
            if (found.is_clean, found.matched) > (best.is_clean, best.matched):
                best = found
            if best.is_clean:
                break
        return best


class _ReplayRun:
    """Runs ops of `b` on changed values, and looks for their results in `a`."""

    def __init__(self, matcher: ValueMatcher, known: tuple[set[ValueId], set[ValueId]]) -> None:
        self.matcher = matcher
        self.known_a, self.known_b = known
        self.result = Replayed()

    def run(self, values: dict[ValueId, torch.Tensor], ops: Sequence[ExecutedOp]) -> Replayed:
        count = 0
        for op in ops:
            if not any(value in values for value in op.inputs):
                continue
            # What also reads other values that differ cannot agree.
            if not all(value in values or value in self.known_b for value in op.inputs):
                continue
            count += 1
            if count > _MOST_STEPS or self.result.matched >= _ENOUGH:
                break
            self._run(op, values)
        return self.result

    def _run(self, op: ExecutedOp, values: dict[ValueId, torch.Tensor]) -> None:
        run = self.matcher.b.rerun.get(op.id)
        if run is None:
            return
        try:
            results = list(iter_tensors(run(values)))
        except Exception:  # noqa: BLE001 - an op may not take what another model computes
            self.result.open.add(-1)
            return
        is_found = False
        for value, tensor in zip(op.outputs, results, strict=False):
            values[value] = tensor.detach()
            is_found |= not op.is_layout and self._is_in_a(tensor)
        if op.is_layout:
            if any(one in self.result.open for one in op.inputs):
                self.result.open.difference_update(op.inputs)
                self.result.open.update(op.outputs)
        elif is_found:
            self.result.matched += 1
            self._close(op)
        else:
            self.result.open.update(op.outputs[:1])

    def _is_in_a(self, tensor: torch.Tensor) -> bool:
        # Few values, or whole numbers as in a mask, may be the same by chance.
        if not tensor.is_floating_point() or tensor.numel() < _FEW or not tensor.any():
            return False
        return self.matcher.find(tensor, self.known_a) is not None

    def _close(self, op: ExecutedOp) -> None:
        """What led to a value that agrees is right, too."""
        waiting = [*op.inputs]
        while waiting:
            value = waiting.pop()
            producer = self.matcher.b.graph.producer.get(value)
            if value in self.result.open:
                self.result.open.discard(value)
            elif value in self.known_b:
                continue
            if producer is not None and value not in self.known_b:
                waiting += producer.inputs


def _in_shape_of(tensor: torch.Tensor, like: torch.Tensor) -> Iterator[torch.Tensor]:
    """A tensor, or a part of it, in the shape and dtype of another: all ways that may be meant."""
    if tensor.is_complex() != like.is_complex() or not tensor.numel():
        return
    if tensor.is_floating_point() and not like.is_floating_point() and (tensor % 1).any():
        return
    sizes = [size for size in like.shape if size != 1]
    if [size for size in tensor.shape if size != 1] == sizes:
        ways = [tensor.reshape(like.shape)]
    elif tensor.numel() == like.numel():
        orders = permutations(tuple(tensor.shape), tuple(like.shape))
        ways = [tensor.permute(order).reshape(like.shape) for order in orders]
    else:
        ways = [part.reshape(like.shape) for part in parts_like(tensor, like)]
    for way in ways:
        fitted = way.to(device=like.device, dtype=like.dtype)
        yield fitted
        if fitted.dtype == torch.bool:
            # A mask says what it hides, or what it shows.
            yield ~fitted


def compare_executions(a: Execution, b: Execution) -> Parting:
    """Where two executions diverge; the noise of `a` must have been measured."""
    inputs = dict(zip(b.graph.inputs, a.graph.inputs, strict=False))
    matcher = match_executions(a, b, inputs)
    pairs = list(_paired_outputs(a, b))
    apart = [(own, other) for own, other in pairs if not _agrees(matcher, own, other)]
    pair = first_divergence(Relation(matcher), apart) if apart else None
    subtle = _first_subtle(matcher, pair)
    outputs = tuple(
        (_output_distance(matcher, own, other), matcher.tolerance(other)) for own, other in pairs
    )
    pair = subtle or pair
    return Parting(pair=pair, outputs=outputs, same=_count_same(matcher, pair), matcher=matcher)


def _paired_outputs(a: Execution, b: Execution) -> Iterator[tuple[ValueId, ValueId]]:
    """The outputs by position; if there are not as many, each with one of the same size."""
    if len(a.graph.outputs) == len(b.graph.outputs):
        yield from zip(b.graph.outputs, a.graph.outputs, strict=True)
        return
    free = list(a.graph.outputs)
    for own in b.graph.outputs:
        count = b.values[own].numel()
        other = next((one for one in free if a.values[one].numel() == count), None)
        if other is not None:
            free.remove(other)
            yield own, other


def _agrees(matcher: ValueMatcher, own: ValueId, other: ValueId) -> bool:
    return _output_distance(matcher, own, other) <= matcher.tolerance(other)


def _output_distance(matcher: ValueMatcher, own: ValueId, other: ValueId) -> float:
    one, two = matcher.b.values[own], matcher.a.values[other]
    if one.numel() != two.numel():
        return math.inf
    return relative_distance(one.reshape(-1), two.reshape(-1))


def _place(matcher: ValueMatcher, pair: OpPair | None) -> int:
    """The number of ops of `b` before the divergence."""
    ops = matcher.b.graph.ops
    return len(ops) if pair is None or pair.b is None else matcher.b.graph.position[pair.b.id]


def _count_same(matcher: ValueMatcher, pair: OpPair | None) -> int:
    last = _place(matcher, pair)
    return sum(
        any(value in matcher.matches.of for value in op.outputs)
        for op in matcher.b.graph.ops[:last]
        if not op.is_layout
    )


def _first_subtle(matcher: ValueMatcher, found: OpPair | None) -> OpPair | None:
    """An earlier op whose arguments differ, with an effect below what rounding adds up to.

    Its counterpart runs on the same operands, so that no rounding of earlier ops is in between.
    """
    by_output = matcher.a.graph.producer
    for op in matcher.b.graph.ops[: _place(matcher, found)]:
        if op.is_layout or not op.outputs:
            continue
        for partner in _counterparts(matcher, op, by_output):
            if settings_differ(op, partner) and _computes_other(matcher, op, partner):
                return OpPair(
                    kind="arguments",
                    a=partner,
                    b=op,
                    value_a=partner.outputs[0],
                    value_b=op.outputs[0],
                )
    return None


def _counterparts(
    matcher: ValueMatcher, op: ExecutedOp, by_output: Mapping[ValueId, ExecutedOp]
) -> Iterator[ExecutedOp]:
    """The ops of `a` that compute nearly the same by the same function from the same operands."""
    of = matcher.matches.of
    producers = [by_output.get(a) for a in of.get(op.outputs[0], ())]
    if op.outputs[0] not in of:
        readers = matcher.a.graph.consumers
        producers = [
            one for value in op.inputs for a in of.get(value, ()) for one in readers.get(a, ())
        ]
    seen: set[int] = set()
    for one in producers:
        if one is None or one.id in seen or not one.outputs:
            continue
        seen.add(one.id)
        is_alike = function_of(one) == function_of(op) and len(one.inputs) == len(op.inputs)
        if is_alike and all(
            other in of.get(own, ()) for own, other in zip(op.inputs, one.inputs, strict=True)
        ):
            yield one


def _computes_other(matcher: ValueMatcher, op: ExecutedOp, partner: ExecutedOp) -> bool:
    """Whether the arguments of two ops matter: both run on the operands of `b`, in float64."""
    own = matcher.b.values[op.outputs[0]]
    there = matcher.a.values[partner.outputs[0]]
    if own.shape != there.shape:
        return False
    if relative_distance(own, there) > _NEAR:
        return False
    run, other_run = matcher.b.rerun.get(op.id), matcher.a.rerun.get(partner.id)
    if run is None or other_run is None or not own.is_floating_point():
        return False
    exact = {one: _exact(matcher.b.values[one]) for one in op.inputs}
    replaced = {
        other: exact[mine].reshape(matcher.a.values[other].shape)
        for mine, other in zip(op.inputs, partner.inputs, strict=True)
    }
    try:
        first = next(iter(iter_tensors(run(exact))))
        second = next(iter(iter_tensors(other_run(replaced))))
    except Exception:  # noqa: BLE001 - an op may not take what another model computes
        return False
    return relative_distance(first, second) > _EFFECT


def _exact(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor

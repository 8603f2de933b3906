"""Describes the op at which two executions diverge: why, and on which operands."""

from __future__ import annotations

from dataclasses import replace

from torchglass.analyse.divergence import OpPair
from torchglass.analyse.op_chains import function_of
from torchglass.analyse.signatures import argument_name, signature
from torchglass.capture.tensor.moments import measure
from torchglass.records.comparison import (
    Divergence,
    ExecutedOp,
    ExecutionComparison,
    OperandStats,
    OutputChange,
    ValueId,
)
from torchglass.whatif.divergence import Parting
from torchglass.whatif.execution import Execution
from torchglass.whatif.value_match import relative_distance


def describe(parting: Parting) -> ExecutionComparison:
    """The record of how two executions compare."""
    first, second = parting.matcher.a, parting.matcher.b
    return ExecutionComparison(
        divergence=None if parting.pair is None else _divergence(parting, parting.pair),
        outputs=tuple(OutputChange(distance=far, rounding=near) for far, near in parting.outputs),
        same_ops=parting.same,
        ops_a=sum(not op.is_layout for op in first.graph.ops),
        ops_b=sum(not op.is_layout for op in second.graph.ops),
        eps=parting.matcher.eps,
        measured=first.is_measured,
        notes=tuple(dict.fromkeys((*first.notes, *second.notes))),
    )


def _divergence(parting: Parting, pair: OpPair) -> Divergence:
    a, b = parting.matcher.a, parting.matcher.b
    distance = rounding = None
    own = pair.b.outputs[0] if pair.b is not None and pair.b.outputs else None
    other = pair.a.outputs[0] if pair.a is not None and pair.a.outputs else None
    if pair.kind == "layout":
        own, other = pair.value_b, pair.value_a
    if own is not None and other is not None:
        rounding = parting.matcher.tolerance(other)
        if a.values[other].shape == b.values[own].shape:
            distance = relative_distance(b.values[own], a.values[other])
    return Divergence(
        kind=pair.kind,
        a=_labelled(a, pair.a),
        b=_labelled(b, pair.b),
        reason=_reason(parting, pair),
        distance=distance,
        rounding=rounding,
        operands_a=_operands(a, pair.a),
        operands_b=_operands(b, pair.b),
        result_a=None if other is None else _stats(a, other),
        result_b=None if own is None else _stats(b, own),
    )


def _labelled(execution: Execution, op: ExecutedOp | None) -> ExecutedOp | None:
    if op is None:
        return None
    return replace(op, label=execution.label(op))


def _operands(execution: Execution, op: ExecutedOp | None) -> tuple[OperandStats, ...]:
    return () if op is None else tuple(_stats(execution, value) for value in op.inputs)


def _stats(execution: Execution, value: ValueId) -> OperandStats:
    tensor = execution.values[value]
    return OperandStats(
        name=_name(execution, value),
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        stats=measure(tensor),
    )


def _name(execution: Execution, value: ValueId) -> str:
    """What a value is called: the name of a weight, or of the op that computed it."""
    graph = execution.graph
    if value in graph.names:
        return graph.names[value]
    if value in graph.inputs:
        count = len(graph.inputs)
        return "input" if count == 1 else f"input {graph.inputs.index(value) + 1}"
    op = graph.producer.get(graph.base(value))
    if op is None:
        base = graph.base(value)
        return _name(execution, base) if base != value else "a constant"
    return f"`{op.path}` {execution.label(op)}" if op.path else execution.label(op)


def _reason(parting: Parting, pair: OpPair) -> str:
    own, other = pair.b, pair.a
    if pair.kind in ("operands", "weight") and pair.value_b is not None:
        return _operand_reason(parting, pair, pair.value_b)
    if pair.kind == "layout":
        return "b has the same values in a different order"
    if pair.kind == "result":
        return "the same op on the same operands returns a different result, as random ops do"
    if own is None or other is None:
        return _one_sided_reason(parting, pair)
    reasons = {
        "arguments": f"different arguments: {_arguments(other, own)}",
        "missing": f"b has no counterpart of a's {_function(other)}",
        "extra": f"a has no counterpart of b's {_function(own)}",
    }
    if pair.kind not in reasons and function_of(own) == function_of(other):
        return f"b's {_function(own)} returns different values than a's {_function(other)}"
    return reasons.get(
        pair.kind, f"b computes {_function(own)} where a computes {_function(other)}"
    )


def _function(op: ExecutedOp) -> str:
    if op.completes or not op.step_of:
        return op.completes or op.function
    return f"{op.function} (inside {op.step_of})"


def _one_sided_reason(parting: Parting, pair: OpPair) -> str:
    """Why an op is named that has no counterpart among the ops of the other model."""
    if pair.b is None:
        return "only one model runs it"
    if pair.value_a is not None:
        there = _name(parting.matcher.a, pair.value_a)
        return f"b computes {pair.b.function} where a reads {there}"
    return f"a has no counterpart of b's {pair.b.function}"


def _operand_reason(parting: Parting, pair: OpPair, value: ValueId) -> str:
    a, b = parting.matcher.a, parting.matcher.b
    there = "" if pair.value_a is None else _name(a, pair.value_a)
    if pair.kind == "weight":
        return f"{_name(b, value)} has different values" + (f" than a's {there}" if there else "")
    return f"b reads {_also_known(parting, value)} where a reads {there}"


def _also_known(parting: Parting, value: ValueId) -> str:
    """A value of `b` by its name, and by the name of what it is in `a`."""
    name = _name(parting.matcher.b, value)
    same = parting.matcher.matches.of.get(value)
    there = _name(parting.matcher.a, same[0]) if same else name
    return name if there == name else f"{name} (a's {there})"


def _arguments(a: ExecutedOp, b: ExecutedOp) -> str:
    """The arguments that differ, by name where it is known."""
    before, after = _named_settings(a), _named_settings(b)
    words = []
    for name in dict.fromkeys([*before, *after]):
        one, other = before.get(name), after.get(name)
        if one != other:
            words.append(
                f"{name}={other if other is not None else 'default'} in b, "
                f"{one if one is not None else 'default'} in a"
            )
    return "; ".join(words) or function_of(b)


def _named_settings(op: ExecutedOp) -> dict[str, str]:
    names = signature(op.function)
    return {argument_name(place, names): text for place, text in op.settings}

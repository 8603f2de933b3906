"""Ops in a row: what led to a value, where its elements come from, how similar two ops are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from torchglass.records.comparison import ExecutedOp, ExecutionGraph, ValueId

ChainDifference = Literal["arguments", "function", "extra"]
_MOST_SIDES = 200


class OpChains:
    """Two ways to one value whose steps have no counterpart by value, compared by their form."""

    def __init__(
        self,
        graphs: tuple[ExecutionGraph, ExecutionGraph],
        of: Mapping[ValueId, Sequence[ValueId]],
        a: Sequence[ExecutedOp],
        b: Sequence[ExecutedOp],
    ) -> None:
        self.graph_a, self.graph_b = graphs
        self.a, self.b = [op for op in a if not op.is_layout], b
        self.of = of
        self.first = {one: values[0] for values in of.values() for one in values}
        self.known: dict[tuple[str, ValueId], object] = {}

    def first_other(self) -> tuple[ChainDifference, ExecutedOp, ExecutedOp] | None:
        """The first op of `b` on operands that `a` has, too, with another function or arguments."""
        forms: dict[object, list[ExecutedOp]] = {}
        for op in self.a:
            forms.setdefault(self._form("a", op), []).append(op)
        functions = {function_of(op) for op in self.a}
        operands_a = {self._operand("a", value) for op in self.a for value in op.inputs}
        results_a = {self._operand("a", value) for op in self.a for value in op.outputs}
        for op in self.b:
            alike = forms.get(self._form("b", op))
            if alike:
                if all(settings_differ(op, one) for one in alike) and op.inputs:
                    return "arguments", alike[0], op
                continue
            known = {self._operand("b", value) for value in op.inputs}
            if op.inputs and function_of(op) in functions and known <= operands_a | results_a:
                partner = next(one for one in self.a if function_of(one) == function_of(op))
                return "function", partner, op
            is_moved = function_of(op) in _MOVEMENTS and function_of(op) not in functions
            if is_moved and known <= operands_a and self.a:
                return "extra", self.a[0], op
        return None

    def _form(self, side: str, op: ExecutedOp) -> object:
        return function_of(op), tuple(self._operand(side, value) for value in op.inputs)

    def _operand(self, side: str, value: ValueId) -> object:
        """What an operand is: a value that both have, or the op that computed it."""
        key = side, value
        if key not in self.known:
            graph = self.graph_a if side == "a" else self.graph_b
            base = graph.base(value)
            while (op := graph.producer.get(base)) and function_of(op) in _SELECTIONS and op.inputs:
                base = graph.base(op.inputs[0])
            self.known[key] = key
            for one in (value, base):
                if side == "a" and one in self.first:
                    self.known[key] = self.first[one]
                    break
                if side == "b" and one in self.of:
                    self.known[key] = self.first[self.of[one][0]]
                    break
            else:
                op = graph.producer.get(base)
                self.known[key] = key if op is None else self._form(side, op)
        return self.known[key]


def side_values(graph: ExecutionGraph) -> list[ValueId]:
    """The values that do not depend on the inputs, such as masks."""
    values = (value for op in graph.ops for value in op.outputs)
    return [value for value in values if value not in graph.from_inputs][:_MOST_SIDES]


def view_chain(graph: ExecutionGraph, value: ValueId) -> list[ExecutedOp]:
    """The ops that bring a value into another shape or order, the last one first."""
    chain: list[ExecutedOp] = []
    while (op := graph.producer.get(value)) is not None and op.is_layout and op.inputs:
        chain.append(op)
        value = op.inputs[0]
    return chain


_MOVEMENTS = frozenset({"cat", "stack", "roll", "flip", "repeat", "repeatinterleave", "pad"})
_SELECTIONS = frozenset({"getitem", "indexselect", "gather", "take"})


def element_sources(graph: ExecutionGraph, value: ValueId) -> Iterator[ValueId]:
    """A value and what its elements were taken from, the nearest first."""
    while True:
        yield value
        op = graph.producer.get(value)
        is_moved = op is not None and (op.is_layout or function_of(op) in _MOVEMENTS)
        if op is None or not is_moved or not op.inputs:
            return
        if len({graph.base(one) for one in op.inputs}) > 1:
            return
        value = op.inputs[0] if op.is_layout else graph.base(op.inputs[0])


def next_functions(graph: ExecutionGraph, value: ValueId) -> set[str]:
    """The functions that read a value, views aside."""
    found: set[str] = set()
    waiting = [value]
    while waiting:
        for op in graph.consumers.get(waiting.pop(), ()):
            if op.is_layout:
                waiting += op.outputs
            else:
                found.add(function_of(op))
    return found


def ops_between(
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
    return sorted(found.values(), key=lambda op: graph.position[op.id])


def with_views(graph: ExecutionGraph, agreed: set[ValueId]) -> set[ValueId]:
    """Values that are the same, with the inputs and views of them."""
    found = {*agreed, *graph.inputs}
    for op in graph.ops:
        if op.is_layout and op.inputs and op.inputs[0] in found:
            found.update(op.outputs)
    return found


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
    "square": "pow",
    "addmm": "linear",
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
    """Whether two ops have other arguments, as far as their text tells."""
    return {text for _, text in one.settings} != {text for _, text in other.settings}

"""What is said of a failure is true: torch itself is asked."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from torchglass.analyse.failure.failure import ExceptionContext, Failure
from torchglass.capture.tensor.moments import measure
from torchglass.results.failures import Explanation, explain
from torchglass.results.trace import Trace

Call = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]

_OFFER = re.compile(r"((?:left|right|input|target)[\w.@(), -]*?) is ((?:\d+×)+\d+|\(\d+,\))")


class Does(nn.Module):
    """Calls a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.function(*tensors)


def tensors(least: int, most: int) -> st.SearchStrategy[torch.Tensor]:
    """Tensors of so many dimensions, whose sizes often meet."""
    return st.lists(st.sampled_from((1, 2, 3, 6)), min_size=least, max_size=most).map(torch.ones)


def indices(*sizes: int) -> st.SearchStrategy[torch.Tensor]:
    """Tensors of such sizes with numbers from -1 to 3."""
    shapes = st.lists(st.sampled_from(sizes), min_size=0, max_size=2)
    numbers = st.tuples(shapes, st.integers(-1, 3))
    return numbers.map(lambda drawn: torch.full(tuple(drawn[0]), drawn[1]))


def numbers(*choices: int, most: int) -> st.SearchStrategy[list[int]]:
    """A few integers."""
    return st.lists(st.sampled_from(choices), min_size=1, max_size=most)


def calls(
    function: Callable[..., Any] | st.SearchStrategy[Callable[..., Any]],
    *arguments: st.SearchStrategy[torch.Tensor],
) -> st.SearchStrategy[Call]:
    chosen = function if isinstance(function, st.SearchStrategy) else st.just(function)
    return st.tuples(chosen, st.tuples(*arguments))


def _viewing(sizes: list[int]) -> Callable[..., Any]:
    return lambda x: x.view(*sizes)


def _expanding(sizes: list[int]) -> Callable[..., Any]:
    return lambda x: x.expand(*sizes)


def _joining(dim: int) -> Callable[..., Any]:
    return lambda x, y: torch.cat([x, y], dim=dim)


def _normalizing(sizes: list[int]) -> Callable[..., Any]:
    return lambda x: functional.layer_norm(x, sizes)


def _convolving(padding: int) -> Callable[..., Any]:
    return lambda x, weight: functional.conv2d(x, weight, padding=padding)


def _subscript(index: list[Any]) -> Callable[..., Any]:
    return lambda x: x[tuple(index)]


SUBSCRIPTS = st.lists(st.sampled_from((0, 2, -3, slice(None), None)), min_size=1, max_size=3)
CALLS = st.one_of(
    calls(functional.linear, tensors(1, 4), tensors(2, 2)),
    calls(torch.matmul, tensors(1, 3), tensors(1, 3)),
    calls(torch.bmm, tensors(3, 3), tensors(3, 3)),
    calls(torch.add, tensors(0, 3), tensors(0, 3)),
    calls(st.integers(0, 1).map(_convolving), tensors(3, 4), tensors(4, 4)),
    calls(st.integers(-1, 1).map(_joining), tensors(2, 3), tensors(2, 3)),
    calls(numbers(-1, 1, 2, 3, 6, most=3).map(_viewing), tensors(1, 3)),
    calls(numbers(-1, 1, 2, 3, most=3).map(_expanding), tensors(0, 2)),
    calls(numbers(2, 3, most=2).map(_normalizing), tensors(1, 3)),
    calls(functional.binary_cross_entropy_with_logits, tensors(0, 2), tensors(0, 2)),
    calls(functional.cross_entropy, tensors(1, 3), indices(2, 3)),
    calls(functional.embedding, indices(2, 3), st.just(torch.ones(3, 2))),
    calls(SUBSCRIPTS.map(_subscript), tensors(1, 3)),
)


@settings(max_examples=300, deadline=None)
@given(call=CALLS)
def test_a_rule_applies_exactly_when_torch_raises(call: Call) -> None:
    function, arguments = call

    explanation = explain(Does(function), *arguments)

    if explanation.ok:
        assert _as_if_failed(explanation.trace).verdict is None
    else:
        assert explanation.failure.verdict is not None
        _check_offers(explanation)


def _as_if_failed(trace: Trace) -> Failure:
    """The story that would be told of a last op that in truth went well."""
    last = [op for op in trace.record.ops if op.kind == "op"][-1]
    stats = {
        operand.place: measure(trace.saved_tensors[operand.op, operand.output])
        for operand in last.operands
        if operand.op is not None
    }
    record = dataclasses.replace(
        trace.record, ops=trace.record.ops[: last.id], error="RuntimeError: none", failed=last
    )
    known = {place: found for place, found in stats.items() if found is not None}
    return Failure(record, trace.model, ExceptionContext(stats=known))


def _check_offers(explanation: Explanation) -> None:
    """Each piece of code that is offered makes the shape that is said of it."""
    failure = explanation.failure
    assert failure.verdict is not None
    named = {
        tensor.name: explanation.trace.saved_tensors[tensor.operand.op, tensor.operand.output]
        for tensor in failure.tensors
        if tensor.operand.op is not None
    }
    for advice in failure.verdict.fits:
        offer = _OFFER.search(advice)
        if offer is not None:
            made = eval(offer[1], {}, named)
            assert tuple(made.shape) == tuple(map(int, re.findall(r"\d+", offer[2]))), advice

"""Finds where two executions diverge, even if one splits up what the other computes in one op.

A port may write `softmax(q @ k.T / sqrt(d)) @ v` where the other model calls one function. What it
computes on the way is compared with the same steps of that function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchglass.analyse.divergence import (
    OpPair,
    first_divergence,
    function_of,
    settings_differ,
)
from torchglass.capture.tensor.description import iter_tensors
from torchglass.records.comparison import ExecutedOp, ValueId
from torchglass.whatif.execution import Execution
from torchglass.whatif.value_match import ValueMatcher, match_executions, relative_distance

_NEAR = 0.05
"""Ops with different arguments whose results are closer than this are run on the same operands."""
_EFFECT = 5e-7
"""The least effect of different arguments in float64: above the error of float32 inside an op."""


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


class Relation:
    """The values that two executions have in common, as the search asks for them."""

    def __init__(self, matcher: ValueMatcher) -> None:
        self.matcher = matcher

    @property
    def of(self) -> Mapping[ValueId, Sequence[ValueId]]:
        return self.matcher.matches.of

    def is_same(self, b: ValueId, a: ValueId) -> bool:
        return self.matcher.is_same(b, a)

    def is_permuted(self, b: ValueId, a: ValueId) -> bool:
        return self.matcher.is_permuted(b, a)

    def is_composed(self, b: ValueId, a: Iterable[ValueId]) -> bool:
        parts = list(dict.fromkeys(a))
        if any(self.matcher.is_part(b, one) for one in parts):
            return True
        return bool(parts) and self.matcher.is_joined(b, parts)

    def match_permuted(self, b: ValueId) -> bool:
        return self.matcher.match_permuted(b)

    def expand(self, a: ExecutedOp, b: Iterable[ValueId]) -> bool:
        """Compute what is inside of a fused op, and look for values of `b` there."""
        execution = self.matcher.a
        inside = list(_values_inside(function_of(a), execution.arguments.get(a.id)))
        if not inside:
            return False
        start = len(execution.values)
        execution.values += inside
        noise = max((execution.noise.get(one, 0.0) for one in a.inputs), default=0.0)
        noises = dict(execution.noise)
        noises.update((start + at, noise) for at in range(len(inside)))
        execution.noise = noises
        shapes = tuple(tuple(one.shape) for one in inside)
        execution.graph = replace(execution.graph, shapes=execution.graph.shapes + shapes)
        self.matcher.add_candidates(range(start, len(execution.values)))
        wanted = [value for value in b if value not in self.of]
        found = [
            self.matcher.match(value) or self.matcher.match_permuted(value) for value in wanted
        ]
        return any(found)


def compare_executions(a: Execution, b: Execution) -> Parting:
    """Where two executions diverge; the noise of `a` must have been measured."""
    inputs = dict(zip(b.graph.inputs, a.graph.inputs, strict=False))
    matcher = match_executions(a, b, inputs)
    pairs = list(_paired_outputs(a, b))
    apart = [(own, other) for own, other in pairs if not _agrees(matcher, own, other)]
    pair = first_divergence(a.graph, b.graph, Relation(matcher), apart) if apart else None
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


def _count_same(matcher: ValueMatcher, pair: OpPair | None) -> int:
    last = pair.b.id if pair is not None and pair.b is not None else len(matcher.b.graph.ops)
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
    known = {one for values in matcher.matches.of.values() for one in values}
    last = found.b.id if found is not None and found.b is not None else len(matcher.b.graph.ops)
    for op in matcher.b.graph.ops[:last]:
        if op.is_layout or not op.outputs:
            continue
        for partner in _counterparts(matcher, op, by_output):
            if settings_differ(op, partner) and _computes_other(matcher, op, partner, known):
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


def _computes_other(
    matcher: ValueMatcher, op: ExecutedOp, partner: ExecutedOp, found: set[ValueId]
) -> bool:
    """Whether the arguments of two ops matter: both run on the operands of `b`, in float64."""
    own = matcher.b.values[op.outputs[0]]
    there = matcher.a.values[partner.outputs[0]]
    if own.shape != there.shape:
        return False
    # Values that have a counterpart elsewhere are not compared with each other.
    is_orphan = op.outputs[0] not in matcher.matches.of and partner.outputs[0] not in found
    if not is_orphan and relative_distance(own, there) > _NEAR:
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


Arguments = Callable[[], tuple[Sequence[Any], Mapping[str, Any]]]


def _values_inside(function: str, arguments: Arguments | None) -> Iterator[torch.Tensor]:
    """The steps of a fused op; none if it is not one, or if its arguments are not known."""
    if function not in _STEPS or arguments is None:
        return
    args, kwargs = arguments()
    given = {**dict(zip(_SIGNATURES[function], args, strict=False)), **kwargs}
    try:
        with torch.no_grad():
            yield from (one.detach() for one in _STEPS[function](given))
    except Exception:  # noqa: BLE001 - a form of the op that is not written down here
        return


def _linear(given: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    yield given["input"] @ given["weight"].T


def _attention(given: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    query, key = given["query"], given["key"]
    scale = given.get("scale") or query.shape[-1] ** -0.5
    if given.get("enable_gqa"):
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        yield key
        yield given["value"].repeat_interleave(query.shape[-3] // given["value"].shape[-3], -3)
    yield query * scale
    yield query @ key.transpose(-1, -2)
    scores = query @ key.transpose(-1, -2) * scale
    yield scores
    mask = given.get("attn_mask")
    if given.get("is_causal"):
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        yield mask
        yield ~mask
    if mask is not None and mask.dtype == torch.bool:
        yield torch.zeros_like(scores).masked_fill(~mask, -math.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
        yield scores
    yield from _softmax({"input": scores, "dim": -1})
    yield scores.softmax(-1)


def _softmax(given: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    values, dim = given["input"], given.get("dim", -1)
    largest = values.amax(dim, keepdim=True)
    yield largest
    yield values - largest
    powers = (values - largest).exp()
    yield powers
    yield powers.sum(dim, keepdim=True)


def _layer_norm(given: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    values, eps = given["input"], given.get("eps", 1e-5)
    dims = tuple(range(-len(given["normalized_shape"]), 0))
    yield from _normalized(values, dims, eps, given)


def _normalized(
    values: torch.Tensor, dims: tuple[int, ...], eps: float, given: Mapping[str, Any]
) -> Iterator[torch.Tensor]:
    mean = values.mean(dims, keepdim=True)
    centered = values - mean
    variance = centered.square().mean(dims, keepdim=True)
    yield from (mean, centered, centered.square(), variance, variance + eps)
    yield from ((variance + eps).sqrt(), (variance + eps).rsqrt())
    normal = centered * (variance + eps).rsqrt()
    yield normal
    if given.get("weight") is not None:
        yield normal * given["weight"]


def _rms_norm(given: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    values = given["input"]
    dims = tuple(range(-len(given["normalized_shape"]), 0))
    eps = given.get("eps") or torch.finfo(values.dtype).eps
    square = values.square().mean(dims, keepdim=True)
    yield from (
        values.square(),
        square,
        square + eps,
        (square + eps).sqrt(),
        (square + eps).rsqrt(),
    )
    yield values * (square + eps).rsqrt()


def _batch_norm(given: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    values = given["input"]
    if given.get("training"):
        return
    shape = (1, -1) + (1,) * (values.dim() - 2)
    mean, variance = (given[name].view(shape) for name in ("running_mean", "running_var"))
    eps = given.get("eps", 1e-5)
    yield from (values - mean, variance + eps, (variance + eps).sqrt(), (variance + eps).rsqrt())
    yield (values - mean) * (variance + eps).rsqrt()
    if given.get("weight") is not None:
        scale = given["weight"].view(shape) * (variance + eps).rsqrt()
        yield from (scale, values * scale)


def _gelu(given: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    values = given["input"]
    if given.get("approximate", "none") == "tanh":
        inner = math.sqrt(2 / math.pi) * (values + 0.044715 * values**3)
        yield from (values**3, 0.044715 * values**3, values + 0.044715 * values**3, inner)
        yield from (inner.tanh(), 1 + inner.tanh(), 0.5 * (1 + inner.tanh()))
    else:
        error = torch.erf(values / math.sqrt(2))
        yield from (values / math.sqrt(2), error, 1 + error, 0.5 * (1 + error))
    yield 0.5 * values


def _group_norm(given: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    values = given["input"]
    groups = values.reshape(len(values), given["num_groups"], -1)
    yield groups
    yield from _normalized(groups, (-1,), given.get("eps", 1e-5), {})
    if given.get("weight") is not None:
        mean = groups.mean(-1, keepdim=True)
        variance = groups.var(-1, unbiased=False, keepdim=True) + given.get("eps", 1e-5)
        normal = ((groups - mean) * variance.rsqrt()).reshape(values.shape)
        shape = (1, -1) + (1,) * (values.dim() - 2)
        yield normal * given["weight"].view(shape)


def _multihead(given: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    """Self-attention, as the fused kernel computes it."""
    values, heads = given["query"], given["num_head"]
    yield from _linear({"input": values, "weight": given["qkv_weight"]})
    together = torch.nn.functional.linear(values, given["qkv_weight"], given["qkv_bias"])
    yield together
    query, key, value = (
        one.view(*one.shape[:2], heads, -1).transpose(1, 2) for one in together.chunk(3, -1)
    )
    yield from (query, key, value)
    yield from _attention({"query": query, "key": key, "value": value})
    result = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    yield from (result, result.transpose(1, 2).flatten(2))


def _silu(given: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    yield given["input"].sigmoid()


_STEPS: Mapping[str, Callable[[Mapping[str, Any]], Iterator[torch.Tensor]]] = {
    "linear": _linear,
    "scaleddotproductattention": _attention,
    "softmax": _softmax,
    "layernorm": _layer_norm,
    "rmsnorm": _rms_norm,
    "batchnorm": _batch_norm,
    "groupnorm": _group_norm,
    "nativemultiheadattention": _multihead,
    "gelu": _gelu,
    "silu": _silu,
}
_SIGNATURES: Mapping[str, Sequence[str]] = {
    "linear": ("input", "weight", "bias"),
    "scaleddotproductattention": (
        *("query", "key", "value", "attn_mask", "dropout_p", "is_causal"),
        "scale",
    ),
    "softmax": ("input", "dim"),
    "layernorm": ("input", "normalized_shape", "weight", "bias", "eps"),
    "rmsnorm": ("input", "normalized_shape", "weight", "eps"),
    "batchnorm": (
        *("input", "running_mean", "running_var", "weight", "bias", "training", "momentum"),
        "eps",
    ),
    "groupnorm": ("input", "num_groups", "weight", "bias", "eps"),
    "nativemultiheadattention": (
        *("query", "key", "value", "embed_dim", "num_head", "qkv_weight", "qkv_bias"),
        *("proj_weight", "proj_bias"),
    ),
    "gelu": ("input", "approximate"),
    "silu": ("input",),
}
"""The arguments by position, of what is not written in Python."""

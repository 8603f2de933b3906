"""Why an op produced NaN or Inf, judged by the ranges of its tensors, and what to change.

>>> from torchglass.records.model import Stats, TensorSpec
>>> spec = TensorSpec(shape=(4,), dtype="float32")
>>> stats = Stats(count=4, min=-5.0, max=1.0, mean=-2.0, std=2.5)
>>> cause(
...     Finding(
...         severity="error",
...         kind="nan",
...         message="",
...         op="sqrt",
...         tensors=(Evidence(name="input", role="argument", spec=spec, stats=stats),),
...     )
... )
'input goes down to -5: the square root of a negative number is NaN'
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from torchglass.analyse.signatures import plain_name
from torchglass.records.calls import CallTensor, ForwardStats
from torchglass.records.findings import Evidence, EvidenceRole, Finding
from torchglass.records.model import Stats, join_path

_LARGEST_EXPONENT = {"float64": 709.78, "float32": 88.72, "bfloat16": 88.72, "float16": 11.09}
_LARGEST = {"float16": 65504.0, "bfloat16": 3.3895e38, "float32": 3.4028e38, "float64": 1.7977e308}


def cause(finding: Finding) -> str:
    """The cause in a few words; "" if the ranges do not show one."""
    return _cause_and_remedy(finding)[0]


def cause_remedy(finding: Finding) -> str:
    """What to change in the code, by the cause; "" if the ranges do not show one."""
    return _cause_and_remedy(finding)[1]


def _cause_and_remedy(finding: Finding) -> tuple[str, str]:
    rules = _BACKWARD if finding.phase == "backward" else _FORWARD
    name = plain_name(finding.op.rpartition(".")[2])
    for rule in rules:
        if name in rule.ops:
            told = rule.tell(finding)
            if told:
                return told, rule.remedy
    return next(_general(finding), ("", ""))


def first_nan(calls: Sequence[ForwardStats]) -> Finding | None:
    """The first NaN in the output of a module, in the order of calls."""
    spoiled = [call for call in calls if _with_nan(call.outputs)]
    paths = {call.path for call in spoiled}
    inner = [call for call in spoiled if not any(_is_below(path, call.path) for path in paths)]
    if not inner:
        return None
    call = inner[0]
    made, stats = _with_nan(call.outputs)[0]
    name = f"`{call.path}`" if call.path else "the model"
    return Finding(
        severity="error",
        kind="nan",
        message=not_finite_words(stats, f"leaving {name}"),
        path=call.path,
        call=call.number,
        tensors=(
            *(_evidence("input", "argument", one) for one in call.inputs),
            _evidence("output", "result", made),
        ),
    )


def _with_nan(tensors: Sequence[CallTensor]) -> list[tuple[CallTensor, Stats]]:
    return [(one, one.stats) for one in tensors if one.stats is not None and one.stats.nan]


def _is_below(path: str, other: str) -> bool:
    return path != other and (not other or path.startswith(f"{other}."))


def _evidence(side: str, role: EvidenceRole, tensor: CallTensor) -> Evidence:
    name = join_path(side, tensor.place)
    return Evidence(name=name, role=role, spec=tensor.spec, stats=tensor.stats)


def not_finite_words(stats: Stats, of: str) -> str:
    """The number of NaN or Inf values: "3 of 64 values of `fc.weight` are NaN"."""
    counts = [(stats.nan, "NaN"), (stats.inf, "Inf")]
    bad = stats.nan + stats.inf
    what = " or ".join(word for count, word in counts if count)
    if bad == stats.count == 1:
        return f"The value {of} is {what}"
    if bad == stats.count:
        return f"All {stats.count:,} values {of} are {what}"
    return f"{bad:,} of {stats.count:,} values {of} {'is' if bad == 1 else 'are'} {what}"


def share_of_largest(dtype: str, magnitude: float) -> float:
    """A value as a share of the largest value of a float type."""
    return magnitude / _LARGEST.get(dtype, math.inf)


class _CauseRule(NamedTuple):
    ops: frozenset[str]
    tell: Callable[[Finding], str]
    remedy: str


def _rule(ops: str, tell: Callable[[Finding], str], remedy: str) -> _CauseRule:
    return _CauseRule(frozenset(ops.split()), tell, remedy)


def _seen(finding: Finding, role: Sequence[str] = ("argument", "parameter", "buffer")) -> _Given:
    return [
        (one, one.stats) for one in finding.tensors if one.role in role and one.stats is not None
    ]


_Given = list[tuple[Evidence, Stats]]


def _first(judge: Callable[[str, Evidence, Stats], str]) -> Callable[[Finding], str]:
    """A rule about the kind of finding and the first tensor of an op."""

    def tell(finding: Finding) -> str:
        return next((judge(finding.kind, *given) for given in _seen(finding)[:1]), "")

    return tell


def _below(limit: float, told: str, *, at: str = "") -> Callable[[Finding], str]:
    """A function with a lower limit: what it returns below the limit and, if set, at it."""

    def judge(_: str, given: Evidence, stats: Stats) -> str:
        if stats.min < limit:
            return f"{given.name} goes down to {stats.min:.4g}: {told}"
        return f"{given.name} contains {limit:g}: {at}" if at and stats.min == limit else ""

    return _first(judge)


def _beyond_one(_: str, given: Evidence, stats: Stats) -> str:
    largest = max(-stats.min, stats.max)
    told = f"{given.name} reaches {largest:.4g}, but the function is defined only up to 1"
    return told if largest > 1 else ""


def _division(finding: Finding) -> str:
    for stats in [stats for given, stats in _seen(finding) if given.name == "right"]:
        if 0 in (stats.min, stats.max):
            return "the divisor contains 0"
        if stats.min < 0 < stats.max:
            return f"the divisor ranges from {stats.min:.4g} to {stats.max:.4g}, across 0"
    return ""


def _exponential(_: str, given: Evidence, stats: Stats) -> str:
    dtype = given.spec.dtype
    most = _LARGEST_EXPONENT.get(dtype, math.inf)
    told = f"{given.name} reaches {stats.max:.4g}: {dtype} overflows above exp({most:g})"
    return told if stats.max > most else ""


def _masked(finding: Finding) -> str:
    masked = any(stats.inf for _, stats in _seen(finding))
    has_mask = any(given.name == "attn_mask" for given, _ in _seen(finding))
    if finding.kind == "nan" and (masked or has_mask):
        return "the softmax of a fully masked row is NaN"
    return ""


def _power(kind: str, given: Evidence, stats: Stats) -> str:
    if kind == "nan" and stats.min < 0:
        return f"{given.name} goes down to {stats.min:.4g}: a root of a negative number is NaN"
    if kind == "inf" and 0 in (stats.min, stats.max):
        return f"{given.name} contains 0: a negative power of 0 is Inf"
    return ""


def _steep_at_zero(finding: Finding) -> str:
    for given, stats in _seen(finding, ("saved", "argument")):
        if 0 in (stats.min, stats.max) or stats.min < 0 < stats.max:
            return f"{given.name} contains 0, where the derivative of {finding.op} is not finite"
    return ""


def _general(finding: Finding) -> Iterator[tuple[str, str]]:
    given = _seen(finding, ("argument", "parameter", "buffer", "saved"))
    given += _seen(finding, ("gradient",))[:-1]
    spoiled = [one for one, stats in given if stats.inf]
    if finding.kind == "nan" and spoiled:
        name = spoiled[0].name
        yield (
            f"{name} contains Inf: Inf − Inf, 0 × Inf and Inf / Inf are NaN",
            f"Find what made {name} infinite: a mask of -inf, an overflow or a division by 0",
        )
    small = [one.spec.dtype for one in finding.tensors if one.role in ("result", "gradient")][:1]
    if finding.kind == "inf" and small and small[0] in ("float16", "bfloat16"):
        yield f"the largest {small[0]} value is {_LARGEST[small[0]]:.5g}", _SMALL_FLOAT


_NEGATIVE_ROOT = "the square root of a negative number is NaN"
_NEGATIVE_LOG = "the logarithm of a negative number is NaN"
_LOG_OF_ZERO = "the logarithm of 0 is −Inf"

_CLAMP_ROOT = "Keep its input above 0: `x.clamp(min=1e-12).sqrt()`"
_CLAMP_LOG = (
    "Keep its input above 0: `x.clamp(min=1e-8).log()`. For probabilities use "
    "`F.log_softmax(logits)` or `F.logsigmoid(logits)`"
)
_CLAMP_ONE = "Keep its input inside the domain: `x.clamp(-1 + 1e-6, 1 - 1e-6)`"
_DIVISOR = "Keep the divisor away from 0: `a / (b + 1e-8)`, or `a / b.clamp(min=1e-8)`"
_EXPONENT = (
    "Keep the exponent small: subtract the maximum first, or use `torch.logsumexp`, "
    "`F.softmax` or `F.softplus`"
)
_MASK = (
    "Leave at least one position of each row unmasked, or mask with "
    "`torch.finfo(x.dtype).min` instead of -inf"
)
_BASE = "Keep the base above 0: `x.clamp(min=1e-8) ** p`"
_SLOPE = "Move its input away from 0: `torch.sqrt(x + 1e-8)`, `x / (x.norm() + 1e-8)`"
_SMALL_FLOAT = (
    "Compute this in float32 (`with torch.autocast(..., enabled=False)`), train in bfloat16, "
    "or scale the values down"
)

_FORWARD = (
    _rule("sqrt", _below(0.0, _NEGATIVE_ROOT), _CLAMP_ROOT),
    _rule("rsqrt", _below(0.0, _NEGATIVE_ROOT, at="1 / √0 is Inf"), _CLAMP_ROOT),
    _rule("log log2 log10", _below(0.0, _NEGATIVE_LOG, at=_LOG_OF_ZERO), _CLAMP_LOG),
    _rule("log1p", _below(-1.0, _NEGATIVE_LOG, at=_LOG_OF_ZERO), _CLAMP_LOG),
    _rule("acos arccos asin arcsin atanh arctanh", _first(_beyond_one), _CLAMP_ONE),
    _rule("div divide true_divide truediv", _division, _DIVISOR),
    _rule("exp expm1 exp2 cosh sinh", _first(_exponential), _EXPONENT),
    _rule("softmax log_softmax scaled_dot_product_attention", _masked, _MASK),
    _rule("pow reciprocal", _first(_power), _BASE),
)
_BACKWARD = (
    _rule(
        "sqrt rsqrt norm vector_norm linalg_norm linalg_vector_norm cdist pow log log2 log10 div "
        "truediv divide true_divide reciprocal std acos asin normalize cosine_similarity",
        _steep_at_zero,
        _SLOPE,
    ),
)

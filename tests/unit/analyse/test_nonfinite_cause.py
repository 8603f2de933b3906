"""The ranges of an op's tensors tell why it made what is not finite."""

from __future__ import annotations

import pytest

from tests import make
from torchglass.analyse.nonfinite_cause import cause, cause_remedy
from torchglass.records.findings import Evidence, EvidenceRole, Finding
from torchglass.records.json_data import from_json_data, to_json_data
from torchglass.records.model import Stats


def seen(
    name: str,
    low: float,
    high: float,
    *,
    role: EvidenceRole = "argument",
    inf: int = 0,
    dtype: str = "float32",
) -> Evidence:
    stats = Stats(count=4 + inf, min=low, max=high, mean=(low + high) / 2, std=1.0, inf=inf)
    return Evidence(name=name, role=role, spec=make.spec(4 + inf, dtype=dtype), stats=stats)


def finding(op: str, kind: str, *tensors: Evidence, back: bool = False) -> Finding:
    return Finding(
        severity="error",
        kind=kind,
        message="",
        op=op,
        phase="backward" if back else "forward",
        tensors=tensors,
    )


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (finding("sqrt", "nan", seen("input", -2, 1)), "square root of a negative number"),
        (finding("rsqrt", "inf", seen("input", 0, 1)), "1 / √0 is Inf"),
        (finding("log", "inf", seen("input", 0, 1)), "the logarithm of 0 is −Inf"),
        (finding("log1p", "nan", seen("input", -2, 1)), "logarithm of a negative"),
        (
            finding("acos", "nan", seen("input", -2, 1)),
            "reaches 2, but the function",
        ),
        (
            finding("__truediv__", "nan", seen("left", 0, 1), seen("right", 0, 1)),
            "divisor contains 0",
        ),
        (finding("div", "inf", seen("left", 0, 1), seen("right", -1, 1)), "across 0"),
        (finding("exp", "inf", seen("input", 0, 100)), "float32 overflows above exp(88.72)"),
        (finding("softmax", "nan", seen("input", 0, 1, inf=3)), "a fully masked row is NaN"),
        (finding("__pow__", "nan", seen("left", -1, 1)), "a root of a negative"),
        (finding("sub", "nan", seen("left", 0, 1, inf=1)), "left contains Inf"),
        (
            finding("mul", "inf", seen("result", 0, 1, role="result", dtype="float16")),
            "the largest float16 value is 65504",
        ),
        (
            finding("sqrt", "inf", seen("result", 0, 1, role="saved"), back=True),
            "derivative of sqrt",
        ),
        (finding("linear", "nan", seen("input", 0, 1)), ""),
        (finding("sqrt", "nan", seen("input", 1, 2)), ""),
    ],
    ids=lambda value: getattr(value, "op", None),
)
def test_a_cause_is_given_if_the_value_ranges_show_one(found: Finding, why: str) -> None:
    assert why in cause(found)
    assert bool(cause_remedy(found)) == bool(why)
    assert bool(cause(found)) == bool(why)


def test_a_finding_round_trips_through_plain_data() -> None:
    found = finding("sqrt", "nan", seen("input", -2, 1))

    assert from_json_data(Finding, to_json_data(found)) == found

"""A finding as a person reads it."""

from __future__ import annotations

from tests import make
from torchglass.records.findings import Evidence, Finding, ReplayRecord
from torchglass.records.model import Stats
from torchglass.records.trace import SourceLine
from torchglass.views.failure_text import finding_text, findings_text, replay_text

GIVEN = Evidence(
    name="input",
    role="argument",
    spec=make.spec(2, 3),
    stats=Stats(count=6, min=-5.0, max=1.5, mean=0.0, std=1.0),
)
MADE = Evidence(
    name="result",
    role="result",
    spec=make.spec(2, 3),
    stats=Stats(count=6, min=0.5, max=1.25, mean=1.0, std=0.1, nan=4),
)
FOUND = Finding(
    severity="error",
    kind="nan",
    message="sqrt produced 4 NaN among 6 values in blocks.1",
    path="blocks.1",
    call=2,
    op="sqrt",
    source=SourceLine(file="nowhere.py", line=12, function="forward"),
    facts={"first_index": [0, 1], "dump": "bad/001.safetensors"},
    tensors=(GIVEN, MADE),
)


def test_a_finding_shows_location_tensors_and_cause() -> None:
    assert finding_text(FOUND).splitlines() == [
        "sqrt produced 4 NaN among 6 values in blocks.1",
        '  File "nowhere.py", line 12, in forward',
        "  in call 2 of that module",
        "  input   2×3 float32  -5 … 1.5",
        "  result  2×3 float32  0.5 … 1.25, 4 NaN, the first at [0, 1]",
        "  why: input goes down to -5: the square root of a negative number is NaN",
        '  if intended: tg.guard(model, allow=["sqrt"]), or allow=["blocks.1"] for the module',
        "  rerun: torchglass replay bad/001.safetensors",
    ]


def test_overwritten_tensors_and_their_owners_are_named() -> None:
    weight = Evidence(name="weight", role="parameter", spec=make.spec(3), holder="fc.weight")

    told = finding_text(Finding(severity="error", kind="inf", message="bad", tensors=(weight,)))

    assert told.splitlines()[1] == "  weight (fc.weight)  3 float32  overwritten since"


def test_the_number_of_shown_tensors_is_limited() -> None:
    many = Finding(severity="error", kind="nan", message="bad", tensors=(GIVEN,) * 40 + (MADE,))

    lines = finding_text(many).splitlines()

    assert len(lines) == 14
    assert lines[-2].startswith("  result")
    assert lines[-1] == "  … and 29 more tensors"


def test_control_characters_in_names_are_shown_as_text() -> None:
    hostile = Finding(severity="error", kind="nan", message="bad\x1b[2J", path="x")

    assert "\x1b" not in finding_text(hostile)


def test_an_empty_report_says_that_nothing_was_found() -> None:
    assert findings_text(()) == "No NaN or Inf found"


def test_a_replay_says_whether_the_problem_recurs() -> None:
    again = ReplayRecord(finding=FOUND, tensors=(GIVEN, MADE), reproduced=True)
    other = ReplayRecord(finding=FOUND, tensors=(GIVEN,), reproduced=False)

    assert replay_text(again).startswith("sqrt, run alone: reproduced\n")
    assert replay_text(other).startswith("sqrt, run alone: not reproduced\n")

"""What a module takes to run."""

from __future__ import annotations

import pytest

from tests.unit.views.tui.panels import samples
from tests.unit.views.tui.panels.panel_app import module_at, seen, subject_of, text_of
from torchglass.records.reader import Document
from torchglass.views.tui.panels.performance import PerformancePanel, describe


def told(path: str, *documents: Document, differences: bool = False, width: int = 80) -> str:
    state = subject_of(samples.store(None, *documents))
    return text_of(describe(state, module_at(state, path), width, differences=differences))


def test_time_flops_and_memory_are_told_with_their_share() -> None:
    text = told("blocks.0.fc", samples.measures())

    assert "fastest run  2 calls" in text
    assert "forward             3.00ms  3.00ms    75%  ━━━━━━━╸──" in text
    assert "forward FLOPs         1.0M       –    50%" in text
    assert "saved for backward  1.0 KB       –    25%" in text
    assert "the lowest of 5 runs" in text


def test_what_was_not_measured_is_left_out() -> None:
    assert "backward  " not in told("blocks.0.fc", samples.measures()).replace("for backward", "")


def test_calls_are_told_with_what_went_in_and_out() -> None:
    text = told("blocks.0.fc", samples.statistics())

    assert "calls  7 in total, 9.00ms while recording, 1 raised" in text
    assert "last 3 calls" in text
    assert "   1  1.00ms  in   2×4          -2    2     0    1" in text
    assert "   3          ✗    ValueError" in text


def test_a_table_that_is_too_wide_is_set_closer() -> None:
    assert "   1 1.00ms in  2×4         -2   2    0   1" in told(
        "blocks.0.fc", samples.statistics(), width=46
    )


def test_differences_are_told_from_the_call_before() -> None:
    text = told("blocks.0.fc", samples.statistics(), differences=True)

    assert "differences from the previous call" in text
    assert "   2  +1.00ms  in   same         -2   +2    +0   +1" in text
    assert "               out  2×4          -2   +2    +0   +1" in text


def test_a_trace_tells_time_where_nothing_was_measured() -> None:
    text = told("blocks.0.fc", samples.traced())

    assert text.startswith("one traced forward  times include tracing\ncalls")


def test_a_module_that_did_not_run_says_so() -> None:
    panel = PerformancePanel(subject_of(samples.store(None, samples.measures())))

    assert "norm did not run in the recorded forward." in seen(panel, "norm")


@pytest.mark.parametrize("key", ["d", "space"])
def test_a_key_shows_the_differences(key: str) -> None:
    panel = PerformancePanel(subject_of(samples.store(None, samples.statistics())))

    assert "differences from" in seen(panel, "blocks.0.fc", [key])
    assert "differences from" not in seen(panel_again(), "blocks.0.fc", [key, key])


def panel_again() -> PerformancePanel:
    return PerformancePanel(subject_of(samples.store(None, samples.statistics())))

"""A run opens in Chrome and Perfetto as nested slices, with arrows from ops to their backwards."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.timings import run, timing
from torchglass.results.profile import chrome_trace


@pytest.fixture
def events() -> list[dict[str, Any]]:
    traced: list[dict[str, Any]] = chrome_trace(timing(), "Net")["traceEvents"]
    return traced


def test_every_span_is_a_slice_in_microseconds(events: list[dict[str, Any]]) -> None:
    slices = [event for event in events if event["ph"] == "X"]
    linear = next(event for event in slices if event["name"] == "linear")

    assert len(slices) == len(run())
    assert (linear["ts"], linear["dur"]) == (0.010, 0.050)
    assert linear["cat"] == "op"
    assert linear["args"] == {"module": "fc", "cpu_us": 0.050}


def test_slices_of_one_track_are_nested_or_disjoint(events: list[dict[str, Any]]) -> None:
    ends: list[float] = []
    for event in (event for event in events if event["ph"] == "X"):
        while ends and event["ts"] >= ends[-1]:
            ends.pop()
        end = event["ts"] + event["dur"]
        assert not ends or end <= ends[-1] + 1e-9
        ends.append(end)


def test_an_arrow_connects_an_op_to_its_backward(events: list[dict[str, Any]]) -> None:
    starts = {event["id"]: event["ts"] for event in events if event["ph"] == "s"}
    ends = {event["id"]: event["ts"] for event in events if event["ph"] == "f"}

    assert starts.keys() == ends.keys()
    assert (0.010, 0.160) in [(starts[arrow], ends[arrow]) for arrow in starts]
    assert all(starts[arrow] < ends[arrow] for arrow in starts)


def test_the_process_is_named_after_the_model_and_the_thread_after_the_clock(
    events: list[dict[str, Any]],
) -> None:
    names = {event["name"]: event["args"]["name"] for event in events if event["ph"] == "M"}

    assert names == {"process_name": "Net", "thread_name": "host"}
    assert any(event["name"] == "Net" for event in events if event["ph"] == "X")


def test_a_chrome_trace_is_valid_json() -> None:
    plain = json.loads(json.dumps(chrome_trace(timing(), "Net")))

    assert plain == chrome_trace(timing(), "Net")
    assert plain["displayTimeUnit"] == "ms"

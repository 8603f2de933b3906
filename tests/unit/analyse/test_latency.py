"""Several runs become one picture: the fastest run, and how far the others were from it."""

from __future__ import annotations

import dataclasses

import pytest

from tests.timings import run, timing
from torchglass.analyse.latency import Latency, attribute_time, latency, middle_half


@pytest.fixture
def found() -> Latency:
    return latency(timing())


def test_times_are_from_the_fastest_run_and_add_up(found: Latency) -> None:
    every = [*found.modules.values(), found.unattributed]

    assert found.root.total_ns == 300
    assert sum(time.self_ns for time in every) == 300
    assert sum(op.self_ns for op in found.ops) == 300
    assert found.modules["fc"].total_ns == 180
    assert found.loss_ns == 10


def test_median_and_spread_cover_all_runs(found: Latency) -> None:
    forward = found.modules["fc"].forward

    assert forward is not None
    assert forward.total_ns == 60
    assert (forward.median_ns, forward.spread_ns) == (120, (90, 150))
    assert (forward.median_self_ns, forward.self_spread_ns) == (120, (90, 150))
    assert found.modules["fc"].spread == (150 - 90) / 120


def test_one_run_has_no_spread() -> None:
    found = latency(timing([1]))

    assert found.root.spread == 0
    assert middle_half([7]) == (7, 7)


def test_ops_are_sorted_slowest_first(found: Latency) -> None:
    assert [(op.path, op.op, op.self_ns) for op in found.ops] == [
        ("fc", "linear", 170),
        (None, "", 45),
        ("act", "", 30),
        ("act", "ReluBackward0", 30),
        ("", "", 10),
        ("fc", "", 10),
        (None, "SumBackward0", 5),
    ]


def test_a_module_that_did_not_run_costs_nothing_in_that_run() -> None:
    every = timing([1, 1])
    without = attribute_time([span for span in run() if span.name != "act"][:4])
    found = latency(dataclasses.replace(every, runs=(without, every.runs[1]), published=0))

    act = found.modules["act"].forward
    assert act is not None
    assert [cost.total_ns for cost in act.runs] == [0, 30]


def test_a_busy_machine_is_detected_only_for_host_times() -> None:
    slow = attribute_time(run(10, cpu=4))

    busy = latency(timing(runs=(slow,), published=0))
    on_device = latency(timing(runs=(slow,), published=0, clock="cuda:0"))

    assert busy.busy == 2.5
    assert on_device.busy is None
    assert latency(timing()).busy is None


def test_measuring_overhead_is_in_cpu_time() -> None:
    assert latency(timing(plain_cpu_ns=(250, 200))).overhead == 1.5
    assert latency(timing()).overhead is None

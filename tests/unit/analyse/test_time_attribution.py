"""Every nanosecond of a run is charged to one module and one op, and to all that are around."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.timings import run, span
from torchglass.analyse.latency import attribute_time
from torchglass.records.measures import ModuleKey, OpKey, RunTimes, Span, Stage, StageTime


def self_and_total(charges: RunTimes, stage: Stage) -> dict[str | None, tuple[int, int]]:
    return {
        key.path: (cost.self_ns, cost.total_ns)
        for key, cost in charges.modules.items()
        if key.stage == stage
    }


def test_self_time_is_the_total_without_the_children() -> None:
    assert self_and_total(attribute_time(run()), "forward") == {
        "": (10, 100),
        "fc": (60, 60),
        "act": (30, 30),
    }


def test_backward_time_is_charged_to_the_module_that_created_the_nodes() -> None:
    assert self_and_total(attribute_time(run()), "backward") == {
        None: (50, 50),
        "": (0, 200),
        "fc": (120, 120),
        "act": (30, 30),
    }


def test_an_op_has_its_backward_time_and_the_rest_is_between_ops() -> None:
    ops = attribute_time(run()).ops

    assert ops[OpKey("fc", "linear", "forward")].self_ns == 50
    assert ops[OpKey("fc", "linear", "backward")].self_ns == 120
    assert ops[OpKey("fc", "", "forward")].self_ns == 10
    assert ops[OpKey("act", "ReluBackward0", "backward")].self_ns == 30
    assert ops[OpKey(None, "SumBackward0", "backward")].self_ns == 5


def test_cpu_time_is_attributed_like_wall_time() -> None:
    slow = attribute_time(run(10, cpu=2))

    assert slow.modules[ModuleKey("fc", "backward")] == StageTime(
        calls=0, self_ns=1200, total_ns=1200, self_cpu_ns=240, total_cpu_ns=240
    )
    assert (slow.total_ns, slow.total_cpu_ns) == (3000, 600)


def test_calls_are_counted() -> None:
    charges = attribute_time(run())

    assert charges.modules[ModuleKey("act", "forward")].calls == 2
    assert charges.ops[OpKey("fc", "linear", "forward")].calls == 1


def test_a_recursion_counts_once_in_the_total_of_its_module() -> None:
    spans = [
        span("stage", "forward", 0, 100),
        span("module", "", 0, 100, 0),
        span("module", "a", 10, 90, 1),
        span("module", "b", 20, 80, 2),
        span("module", "a", 30, 70, 3),
    ]

    assert self_and_total(attribute_time(spans), "forward") == {
        "": (20, 100),
        "a": (60, 80),
        "b": (20, 60),
    }


def test_a_run_without_a_backward_has_no_backward_time() -> None:
    charges = attribute_time(run()[:7])

    assert charges.root("backward") == StageTime()
    assert charges.total_ns == 100


@st.composite
def nested(draw: st.DrawFn) -> list[Span]:
    """Stages with any nesting of modules, ops and nodes in them, nodes charged to anything."""
    spans: list[Span] = []

    def fill(stage: str, start: int, parent: int, room: int, depth: int) -> None:
        while room > 0 and depth < 4 and draw(st.booleans()):
            gap = draw(st.integers(0, room))
            length = draw(st.integers(0, room - gap))
            index = len(spans)
            kind = "node" if stage == "backward" and draw(st.booleans()) else "module"
            kind = "op" if draw(st.integers(0, 3)) == 0 else kind
            owner = draw(st.integers(0, index - 1)) if kind == "node" else parent
            name = draw(st.sampled_from(["a", "a.b", "a.b.c", "d", "", "e.f"]))
            start, room = start + gap, room - gap - length
            spans.append(span(kind, name, start, start + length, parent, owner=owner))  # type: ignore[arg-type]
            fill(stage, start, index, length, depth + 1)
            start += length

    start = 0
    for stage in ("forward", "loss", "backward"):
        length = draw(st.integers(0, 1000))
        spans.append(span("stage", stage, start, start + length))
        fill(stage, start, len(spans) - 1, length, 0)
        start += length
    return spans


@given(nested())
def test_self_times_add_up_to_the_whole_exactly(spans: list[Span]) -> None:
    charges = attribute_time(spans)

    stages = {span.name: span.total_ns for span in spans if span.kind == "stage"}
    for stage in ("forward", "backward"):
        modules = [cost for key, cost in charges.modules.items() if key.stage == stage]
        ops = [cost for key, cost in charges.ops.items() if key.stage == stage]
        assert sum(cost.self_ns for cost in modules) == stages[stage]
        assert sum(cost.self_ns for cost in ops) == stages[stage]
        assert charges.root(stage).total_ns == stages[stage]
        assert all(0 <= cost.self_ns <= cost.total_ns <= stages[stage] for cost in modules)


@pytest.mark.parametrize("deep", [300])
def test_deep_models_are_attributed(deep: int) -> None:
    spans = [span("stage", "forward", 0, 2 * deep)]
    spans += [
        span("module", ".".join("a" * level), level, 2 * deep - level, level)
        for level in range(deep)
    ]

    costs = attribute_time(spans).modules

    assert costs[ModuleKey(".".join("a" * (deep - 1)), "forward")].self_ns == 2
    assert sum(cost.self_ns for cost in costs.values()) == 2 * deep


def test_gradient_accumulation_is_charged_to_a_contributing_module() -> None:
    # Ten nodes of 10 with 2 between them, but 50 after the third: its gradient is added there.
    spans = [
        span("stage", "forward", 0, 10),
        span("module", "", 0, 10, 0),
        span("module", "fc", 0, 5, 1),
        span("module", "act", 5, 10, 1),
        span("stage", "backward", 100, 268),
    ]
    start = 100
    for number in range(10):
        owner = 2 if number == 2 else 3
        spans.append(span("node", "Backward0", start, start + 10, 4, owner=owner))
        start += 10 + (50 if number == 2 else 2)

    backward = self_and_total(attribute_time(spans), "backward")

    assert backward["fc"] == (10 + 48, 10 + 48)
    assert backward["act"] == (90, 90)
    assert backward[None] == (168 - 100 - 48, 168 - 100 - 48)

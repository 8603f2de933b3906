"""The verdict, the loss, the timeline and the heat maps of a recorded training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tests import make
from torchglass.analyse.training_overview import (
    HeatMaps,
    execution_order,
    finding_events,
    loss_series,
    training_overview,
)
from torchglass.records.findings import Finding, Findings
from torchglass.records.model import Stats
from torchglass.records.run import Ending, Frame, RunRecord, Series, SeriesId
from torchglass.records.step_points import Point
from torchglass.records.trace import Graph, Node, NodeId
from torchglass.records.training import ParameterFacts, Probe, Track, TrainingFacts
from torchglass.store.readers import FileReader, MemoryStore
from torchglass.store.writer import FileSink

RUN = RunRecord(name="demo", created_ns=0)
MODEL = make.model(
    {
        "children": {
            "head": {"weight": (4,), "bias": (2,)},
            "body": {"children": {"1": {"weight": (3,)}, "0": {"weight": (3,)}}},
        }
    }
)
GRAPH = Graph(
    nodes=tuple(
        Node(id=NodeId(at), kind="call", path=path)
        for at, path in enumerate(["", "body", "body.0", "body.1", "body.0", "head"])
    )
)
"""The modules run in another order than they are listed in."""


def stats(rms: float, *, count: int = 4, nan: int = 0, inf: int = 0) -> Stats:
    """Values of one size: all are plus or minus `rms`, so the mean is 0."""
    std = rms * math.sqrt(count / (count - 1))
    return Stats(count=count, min=-rms, max=rms, mean=0.0, std=std, nan=nan, inf=inf)


def store_of(*steps: Mapping[tuple[str, str], Point], first: int = 0) -> MemoryStore:
    store = MemoryStore(RUN)
    store.put_model(MODEL)
    add(store, *steps, first=first)
    return store


def add(store: MemoryStore, *steps: Mapping[tuple[str, str], Point], first: int) -> None:
    for step, points in enumerate(steps, first):
        ids = {
            store.series(*name, "stats" if isinstance(one, Stats) else "scalar"): one
            for name, one in points.items()
        }
        store.put_frame(Frame(step=step, time_ns=step, points=ids))


def test_rows_are_in_execution_order() -> None:
    store = store_of({(path, "weight.grad"): stats(1.0) for path in ("head", "body.1", "body.0")})
    store.put_document(GRAPH)

    assert HeatMaps(store).of("gradient").paths == ("body.0", "body.1", "head")


def test_without_a_graph_the_order_is_that_of_the_outputs() -> None:
    series = [
        Series(id=SeriesId(at), path=path, name="output", kind="stats")
        for at, path in enumerate(["body.1", "body.0", "body", "head"])
    ]

    order = execution_order(MODEL, None, series)

    assert sorted(order, key=order.__getitem__) == ["", "body.1", "body.0", "body", "head"]


def test_an_uncalled_module_follows_its_predecessor_in_the_model() -> None:
    calls = [Node(id=NodeId(at), kind="call", path=path) for at, path in enumerate(["", "body"])]

    order = execution_order(MODEL, Graph(nodes=tuple(calls)))

    assert sorted(order, key=order.__getitem__) == ["", "head", "body", "body.1", "body.0"]


def test_the_gradient_norm_of_a_module_covers_all_its_parameters() -> None:
    store = store_of(
        {
            ("head", "weight.grad"): stats(1.5, count=4),
            ("head", "bias.grad"): Stats(count=1, min=4.0, max=4.0, mean=4.0, std=0.0),
        }
    )

    found = HeatMaps(store).of("gradient")

    # √(4 · 1.5²) = 3 and 4 make 5.
    assert found.values.tolist() == [[pytest.approx(5.0)]]


def test_nan_is_marked_and_missing_measurements_are_absent() -> None:
    store = store_of(
        {("head", "output"): stats(1.0), ("body.0", "output"): stats(2.0)},
        {("head", "output"): stats(1.0, nan=1)},
        {("head", "output"): stats(1.0, inf=4), ("body.0", "output"): stats(3.0)},
    )
    store.put_document(GRAPH)

    found = HeatMaps(store).of("activation")

    assert found.paths == ("body.0", "head")
    assert found.nonfinite.tolist() == [[False, False, False], [False, True, True]]
    assert found.absent.tolist() == [[False, True, False], [False, False, False]]
    assert found.values[0, [0, 2]] == pytest.approx([2.0, 3.0], rel=0.2)


def test_a_column_keeps_the_largest_value_and_any_nan_of_its_steps() -> None:
    sizes = [1.0, 9.0, 2.0, 3.0, 1.0, 1.0, 7.0, 1.0, 5.0]
    store = store_of(
        *(
            {("head", "weight.grad"): stats(size / 2, nan=int(step == 5))}
            for step, size in enumerate(sizes)
        )
    )

    found = HeatMaps(store, columns=3).of("gradient")

    assert found.steps.tolist() == [0, 4, 8]
    assert found.last_steps.tolist() == [3, 7, 8]
    assert found.values.tolist() == [[pytest.approx(9.0), pytest.approx(7.0), pytest.approx(5.0)]]
    assert found.nonfinite.tolist() == [[False, True, False]]
    assert [found.column_at(step) for step in (0, 3, 4, 8, 99)] == [0, 0, 1, 2, 2]


def test_an_incrementally_built_map_equals_one_built_at_once() -> None:
    steps = [
        {("head", "weight.grad"): stats(step % 7 + 0.5), ("body.0", "weight.grad"): stats(1.0)}
        if step > 4
        else {("head", "weight.grad"): stats(step + 0.5)}
        for step in range(37)
    ]
    growing = store_of(*steps[:3])
    maps = HeatMaps(growing, columns=5)
    for start in range(3, 37, 4):
        add(growing, *steps[start : start + 4], first=start)
        maps.of("gradient")

    grown, whole = maps.of("gradient"), HeatMaps(store_of(*steps), columns=5).of("gradient")

    assert grown.paths == whole.paths
    assert grown.steps.tolist() == whole.steps.tolist()
    assert np.array_equal(grown.values, whole.values, equal_nan=True)
    assert np.array_equal(grown.nonfinite, whole.nonfinite)


def test_activations_are_those_of_leaf_modules() -> None:
    store = store_of(
        {
            ("", "output"): stats(1.0),
            ("body", "output"): stats(1.0),
            ("body.0", "output"): stats(1.0),
            ("body.0", "2:output"): stats(6.0),
            ("body.0", "eval:output"): stats(9.0),
            ("body.0", "output.grad"): stats(9.0),
        }
    )

    found = HeatMaps(store).of("activation")

    assert found.paths == ("body.0",)
    assert found.values[0, 0] == pytest.approx(6.0, rel=0.2)


def test_updates_and_dead_units_fall_back_to_recorded_facts() -> None:
    store = store_of({("", "loss"): 1.0})
    track = Track(steps=(0, 10), values=(1e-3, math.inf))
    store.put_document(
        TrainingFacts(
            parameters=(
                ParameterFacts(name="head.weight", updates=track),
                ParameterFacts(name="head.bias", updates=Track(steps=(0,), values=(2e-3,))),
            ),
            probes=(
                Probe(
                    path="body.0",
                    function="relu",
                    measure="dead units",
                    track=Track(steps=(4,), values=(0.25,)),
                ),
            ),
        )
    )
    maps = HeatMaps(store)

    updates, dead = maps.of("update"), maps.of("dead")

    assert maps.available() == ["update", "dead"]
    assert (updates.paths, updates.steps.tolist()) == (("head",), [0, 10])
    assert updates.values[0, 0] == 2e-3
    assert updates.nonfinite.tolist() == [[False, True]]
    assert (dead.title, dead.paths, dead.values.tolist()) == (
        "share of dead units",
        ("body.0",),
        [[0.25]],
    )


def test_recorded_zero_fractions_are_the_dead_share() -> None:
    store = store_of({("body.0", "output.zeros"): 0.75, ("body", "output.zeros"): 0.5})

    found = HeatMaps(store).of("dead")

    assert (found.title, found.paths, found.values.tolist()) == (
        "share of zeros",
        ("body.0",),
        [[0.75]],
    )
    assert not found.is_logarithmic


def test_the_loss_is_the_series_named_loss() -> None:
    names = ["val/loss", "train/loss", "loss", "lr"]
    series = [Series(id=SeriesId(at), path="", name=name) for at, name in enumerate(names)]

    assert [getattr(loss_series(series[:end]), "name", None) for end in (1, 2, 3)] == [
        None,
        "train/loss",
        "loss",
    ]


def test_a_loss_curve_keeps_the_extremes_and_any_nan_of_its_steps() -> None:
    losses = [4.0, 2.0, 3.0, math.nan, math.nan, math.inf, 1.0]
    store = store_of(*({("", "loss"): loss} for loss in losses))

    found = training_overview(store, columns=4).loss

    assert found is not None
    assert found.steps.tolist() == [0, 2, 4, 6]
    assert found.values.tolist() == [3.0, 3.0, pytest.approx(math.nan, nan_ok=True), 1.0]
    assert (found.low[0], found.high[0], found.last) == (2.0, 4.0, 1.0)
    assert found.nonfinite.tolist() == [False, True, True, False]


def test_every_finding_is_one_event_on_the_timeline() -> None:
    findings = [
        Finding(severity="error", kind="nan", message="NaN", path="head", first_step=40),
        Finding(severity="warning", kind="lr-high", message="high", first_step=5, last_step=30),
        Finding(severity="info", kind="frozen", message="frozen", path="body"),
    ]

    events = finding_events(findings, last_step=99)

    assert [(one.kind, one.first_step, one.last_step, one.index) for one in events] == [
        ("frozen", 0, 99, 2),
        ("lr-high", 5, 30, 1),
        ("nan", 40, 99, 0),
    ]
    assert [one.is_of_all_steps for one in events] == [True, False, False]


def test_the_verdict_names_the_first_problem_and_how_the_run_ended() -> None:
    store = store_of({("", "loss"): math.nan})
    store.put_document(
        Findings(
            findings=(Finding(severity="error", kind="nan", message="The loss is NaN", step=0),)
        )
    )
    store.put_document(Ending(state="stopped", step=0, error="RuntimeError", message="no"))

    found = training_overview(store)

    assert found.verdict == "broken"
    assert found.summary == (
        "Broken: The loss is NaN; the run was stopped by RuntimeError at step 0: no"
    )


def test_a_run_without_steps_has_no_verdict() -> None:
    found = training_overview(MemoryStore(RUN))

    assert (found.verdict, found.summary) == (None, "No steps recorded yet")
    assert not HeatMaps(MemoryStore(RUN)).of("gradient")


def test_a_long_run_is_sampled_at_steps_with_full_recordings(
    tmp_path: Path,
) -> None:
    sink = FileSink(tmp_path / "run.glass", RUN)
    sink.put_model(MODEL)
    for step in range(400):
        points: dict[SeriesId, Point] = {sink.series("", "loss"): 1.0}
        if step % 10 == 0:
            points[sink.series("head", "weight.grad", "stats")] = stats(float(step + 1))
        sink.put_frame(Frame(step=step, time_ns=step, points=points))
    sink.close()
    with FileReader(sink.path) as reader:
        gradient = next(one for one in reader.series() if one.name == "weight.grad")
        (few,), (all_points,) = (reader.points_of([gradient.id], most=most) for most in (4, 1_000))

        assert few.steps.tolist() == [0, 130, 260, 390]
        assert few.column("max").tolist() == [1.0, 131.0, 261.0, 391.0]
        assert all_points.steps.tolist() == list(range(0, 400, 10))

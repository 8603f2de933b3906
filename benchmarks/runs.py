"""Many runs: listing a folder of them, overlaying their losses, and asking one curve in SQL."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import trackers
from benchmarks.cases import Measure, installed, together
from benchmarks.measure import cpu_seconds
from benchmarks.rows import OURS, Case, Effort, Reading, Topic
from benchmarks.store import SERIES, _points
from torchglass.records.model import Stats
from torchglass.records.run import ConfigValue, Ending, Frame, RunRecord, SeriesId
from torchglass.records.step_points import Point
from torchglass.store.writer import FileSink

TENSORBOARD, MLFLOW, TRACKIO = "TensorBoard", "MLflow", "trackio"
RUNS, QUICK_RUNS = 10_000, 20
CURVES = 1_000
"""Also the runs that MLflow and trackio list: it takes MLflow minutes to write 10,000."""
STEPS, QUICK_STEPS = 10_000, 50
_LOGGED = 20
_MOST_ROUNDS = 3
"""Making the folders takes longer than what is measured."""


def listing(runs: int, rounds: int, *, is_new: bool) -> dict[str, list[float]]:
    """CPU seconds until the first screen of a folder, as text."""
    with _folder(runs) as folder:
        _first_screen(folder, is_new=True)
        found = [_first_screen(folder, is_new=is_new) for _ in range(rounds)]
    return {OURS: found, **(_of_tensorboard(runs) if is_new else {})}


def _first_screen(folder: Path, *, is_new: bool) -> float:
    from torchglass.results.runs import RunFolder

    if is_new:
        for index in folder.glob(".torchglass*"):
            index.unlink()
    return cpu_seconds(lambda: RunFolder(folder).table().table(width=120))


def overlay(runs: int, rounds: int, *, is_new: bool) -> dict[str, list[float]]:
    """CPU seconds to read the losses of many runs, as the page does."""
    from torchglass.results.runs import RunFolder

    with _folder(runs) as folder:
        listed = RunFolder(folder)
        paths = [entry.path for entry in listed.table()]
        first = cpu_seconds(lambda: listed.losses(paths))
        if is_new:
            return {OURS: [first], **_of_tensorboard(runs), **_trackers(runs, "curves")}
        return {OURS: [cpu_seconds(lambda: listed.losses(paths)) for _ in range(rounds)]}


def listing_of_trackers(runs: int, rounds: int) -> dict[str, list[float]]:
    """CPU seconds to list runs for the first time, beside trackers with a database."""
    with _folder(runs) as folder:
        found = [_first_screen(folder, is_new=True) for _ in range(rounds)]
    return {OURS: found, **_of_tensorboard(runs), **_trackers(runs, "listing")}


def _trackers(runs: int, what: str) -> dict[str, list[float]]:
    there = [name for name in (MLFLOW, TRACKIO) if trackers.is_there(name.lower())]
    return {name: [trackers.measure(name.lower(), runs)[what]] for name in there}


def one_curve(steps: int, rounds: int, *, parquet: bool) -> dict[str, list[float]]:
    """CPU seconds of a query for one of many curves."""
    import torchglass as tg

    sql = "SELECT step, mean FROM points WHERE path = 'layers.7' AND name = 'output' ORDER BY step"
    with tempfile.TemporaryDirectory() as name:
        target = Path(name) / "run.glass"
        _write_long(target, steps)
        if parquet:
            with tg.open(target) as run:
                target = run.to_parquet(Path(name) / "run.parquet")
        # The first query imports DuckDB.
        tg.query(sql, target)
        found = [cpu_seconds(partial(tg.query, sql, target)) for _ in range(rounds)]
    return {OURS: found}


def _write_long(path: Path, steps: int) -> None:
    made = [_points("histogram", 100, seed) for seed in range(20)]
    sink = FileSink(path, RunRecord(name="long", created_ns=0))
    ids = [sink.series(f"layers.{number}", "output", "histogram") for number in range(SERIES)]
    for step in range(steps):
        points = dict(zip(ids, made[step % len(made)], strict=True))
        sink.put_frame(Frame(step=step, time_ns=time.time_ns(), points=points))
        if step % 100 == 0:
            sink.flush()
    sink.close()


@contextmanager
def _folder(runs: int) -> Iterator[Path]:
    """A folder of runs, each a copy of one with 30 series and 20 steps."""
    with tempfile.TemporaryDirectory() as name:
        first = Path(name) / "0.glass"
        config: dict[str, ConfigValue] = {"lr": 0.1, "optimizer": "adam", "width": 64}
        sink = FileSink(first, RunRecord(name="Net", created_ns=1, config=config, notes="a try"))
        loss = sink.series("", "loss")
        ids = [sink.series(f"layers.{number}", "output", "stats") for number in range(30)]
        stats = Stats(count=1, min=0.0, max=1.0, mean=0.5, std=0.1)
        for step in range(_LOGGED):
            points: dict[SeriesId, Point] = {loss: 1 / (step + 1)}
            points.update(dict.fromkeys(ids, stats))
            sink.put_frame(Frame(step=step, time_ns=time.time_ns(), points=points))
        sink.put_document(Ending(step=_LOGGED - 1))
        sink.close()
        for number in range(1, runs):
            shutil.copyfile(first, Path(name) / f"{number}.glass")
        yield Path(name)


def _of_tensorboard(runs: int) -> dict[str, list[float]]:
    return {TENSORBOARD: [_tensorboard(runs)]} if installed([TENSORBOARD]) else {}


def _tensorboard(runs: int) -> float:
    """The same with TensorBoard: reading a folder of as many runs with one scalar each."""
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    with tempfile.TemporaryDirectory() as name:
        first = Path(name) / "0"
        writer = EventFileWriter(str(first))
        for step in range(_LOGGED):
            value = Summary.Value(tag="loss", simple_value=1 / (step + 1))
            writer.add_event(Event(step=step, summary=Summary(value=[value])))
        writer.close()
        for number in range(1, runs):
            shutil.copytree(first, Path(name) / str(number))

        def read() -> Any:
            return EventMultiplexer().AddRunsFromDirectory(name).Reload()

        return cpu_seconds(read)


def _case(
    name: str,
    function: Measure,
    goal: float,
    sizes: tuple[str, int, int],
    others: tuple[str, ...] = (),
    **arguments: Any,
) -> Case:
    size, full, quick = sizes

    def measure(effort: Effort) -> Mapping[str, Reading]:
        rounds = min(effort.rounds, _MOST_ROUNDS)
        count = quick if effort.quick else full
        contenders = [OURS, *others]
        return together(contenders, "s", function, rounds=rounds, **{size: count}, **arguments)

    return Case(name, measure, goal)


TOPIC = Topic(
    name="runs",
    title="Many runs",
    about=(
        f"CPU seconds. A folder of {RUNS:,} runs, from reading it to the text of the first "
        f"screen, with and without an index from last time, beside TensorBoard reading as many "
        f"runs of one scalar; {CURVES:,} runs, and their losses for one chart, beside TensorBoard, "
        f"MLflow and trackio, whose runs have one scalar and are rows of one database; and a query "
        f"for one curve of a run of {STEPS:,} steps × {SERIES} histograms."
    ),
    cases=[
        _case("list a folder again", listing, 2.0, ("runs", RUNS, QUICK_RUNS), is_new=False),
        _case(
            "… for the first time",
            listing,
            2.0,
            ("runs", RUNS, QUICK_RUNS),
            (TENSORBOARD,),
            is_new=True,
        ),
        _case(
            f"list {CURVES:,} runs for the first time",
            listing_of_trackers,
            2.0,
            ("runs", CURVES, QUICK_RUNS),
            (TENSORBOARD, MLFLOW, TRACKIO),
        ),
        _case(
            f"losses of {CURVES:,} runs",
            overlay,
            1.0,
            ("runs", CURVES, QUICK_RUNS),
            (TENSORBOARD, MLFLOW, TRACKIO),
            is_new=True,
        ),
        _case("… again", overlay, 1.0, ("runs", CURVES, QUICK_RUNS), is_new=False),
        _case("one curve by SQL", one_curve, 0.3, ("steps", STEPS, QUICK_STEPS), parquet=False),
        _case("… from Parquet", one_curve, 0.3, ("steps", STEPS, QUICK_STEPS), parquet=True),
    ],
)

"""The run file: what it costs to write a step and to read a series back, and how large it is."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import Measure, together
from benchmarks.measure import cpu_seconds
from benchmarks.rows import OURS, Case, Effort, Reading, Topic
from torchglass.records.model import Histogram, Stats
from torchglass.records.run import Frame, RunRecord
from torchglass.records.step_points import Point, SeriesKind
from torchglass.store import writer
from torchglass.store.readers import FileReader
from torchglass.store.writer import FileSink

SERIES = 300
STEPS = 500
BINS = 30
DISTINCT = 20
"""So many steps are made up and written again and again."""
STEPS_A_FLUSH = 5
"""A logged step of 100 ms, and a flush every half second."""
_RUN = RunRecord(name="benchmark", created_ns=0)


def write_cost(kind: SeriesKind, sample: int, rounds: int) -> dict[str, list[float]]:
    """CPU milliseconds to write a step, the thread that writes included."""
    return {OURS: [1e3 * _written(kind, sample, _cpu) / STEPS for _ in range(rounds)]}


def size(sample: int, rounds: int) -> dict[str, list[float]]:
    """Kilobytes that a step takes in the file."""
    return {OURS: [_written("histogram", sample, _bytes) / STEPS / 1e3]}


def read_cost(sample: int, rounds: int) -> dict[str, list[float]]:
    """CPU milliseconds to read the histograms of one series at 1,000 steps."""
    found = [_written("histogram", sample, _reading) for _ in range(rounds)]
    return {OURS: [1e6 * seconds / STEPS for seconds in found]}


def _written(
    kind: SeriesKind, sample: int, measure: Callable[[Callable[[], object], Path], float]
) -> float:
    """What there is to measure when a run of some steps is written to a file."""
    writer.FLUSH_FRAMES = STEPS_A_FLUSH
    made = [_points(kind, sample, seed) for seed in range(DISTINCT)]
    with tempfile.TemporaryDirectory() as folder:
        sink = FileSink(Path(folder) / "run.glass", _RUN)
        return measure(partial(_write, sink, kind, made), sink.path)


def _write(sink: FileSink, kind: SeriesKind, made: Sequence[Sequence[Point]]) -> None:
    ids = [sink.series(f"layers.{number}", "output", kind) for number in range(SERIES)]
    for step in range(STEPS):
        points = dict(zip(ids, made[step % DISTINCT], strict=True))
        sink.put_frame(Frame(step=step, time_ns=time.time_ns(), points=points))
    sink.close()


def _cpu(write: Callable[[], object], path: Path) -> float:
    return cpu_seconds(write)


def _bytes(write: Callable[[], object], path: Path) -> float:
    write()
    return path.stat().st_size


def _reading(write: Callable[[], object], path: Path) -> float:
    write()
    with FileReader(path) as reader:
        middle = reader.series()[SERIES // 2].id
        return cpu_seconds(lambda: reader.histograms(middle))


def _points(kind: SeriesKind, sample: int, seed: int) -> list[Point]:
    random = np.random.default_rng(seed)
    return [_point(kind, random.normal(size=sample)) for _ in range(SERIES)]


def _point(kind: SeriesKind, values: np.ndarray[Any, np.dtype[np.float64]]) -> Point:
    low, high, mean, std = (
        float(number) for number in (values.min(), values.max(), values.mean(), values.std())
    )
    stats = Stats(count=values.size, min=low, max=high, mean=mean, std=std)
    if kind == "scalar":
        return mean
    if kind == "stats":
        return stats
    counts = tuple(np.histogram(values, BINS)[0].tolist())
    return Histogram(exponent=-3, first=-BINS // 2, counts=counts, stats=stats)


def _case(
    name: str, unit: str, function: Measure, goal: float | None = None, **arguments: Any
) -> Case:
    def measure(effort: Effort) -> Mapping[str, Reading]:
        return together([OURS], unit, function, rounds=effort.rounds, **arguments)

    return Case(name, measure, goal)


TOPIC = Topic(
    name="store",
    title="The run file",
    about=(
        f"CPU time, with that of the writer thread, for a step of {SERIES} series at "
        f"{STEPS_A_FLUSH} steps per flush; kilobytes per step; and the CPU time to read one "
        f"series. Histograms have {BINS} bins, of 100 values, as in `watch`, or of 10,000."
    ),
    cases=[
        _case("write numbers", "ms", write_cost, kind="scalar", sample=100),
        _case("write statistics", "ms", write_cost, 0.3, kind="stats", sample=100),
        _case("write histograms", "ms", write_cost, 0.3, kind="histogram", sample=100),
        _case("… size", "kB", size, sample=100),
        _case("… read 1,000 of one series", "ms", read_cost, sample=100),
        _case("write histograms of 10,000", "ms", write_cost, kind="histogram", sample=10_000),
        _case("… size", "kB", size, sample=10_000),
    ],
)

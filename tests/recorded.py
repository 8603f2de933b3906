"""Small runs to write and read back."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from tests import make
from torchglass.records.model import Histogram, Stats
from torchglass.records.run import Frame, RunRecord, SeriesId, Sink
from torchglass.records.step_points import Point
from torchglass.store.writer import FileSink

ROOT = Path(__file__).parent.parent
"""Where a Python that runs on its own finds this package, too."""

RUN = RunRecord(
    name="today", created_ns=1_700_000_000_000_000_000, host="here", rank=3, world_size=4
)
MODEL = make.model({"children": {"fc": {"class": "torch.nn.Linear", "weight": (2, 3)}}})


def stats(step: int) -> Stats:
    """Statistics that tell which step they are of."""
    return Stats(count=6, min=-step, max=step, mean=step / 7, std=step / 3, nan=step % 2, inf=1)


def histogram(step: int) -> Histogram:
    """Bins that tell which step they are of, small and large counts among them."""
    return Histogram(
        exponent=-step, first=step - 5, counts=(step, 254, 255, 65_535, 1 << 40), stats=stats(step)
    )


def put_step(sink: Sink, step: int) -> None:
    """A step of a training: a loss, and the weight's statistics at even steps."""
    points: dict[SeriesId, Point] = {sink.series("", "loss"): 1 / (step + 1)}
    if step % 2 == 0:
        points[sink.series("fc", "weight", "stats")] = stats(step)
    sink.put_frame(Frame(step=step, time_ns=step * 1_000, points=points))


@contextlib.contextmanager
def going_on(path: Path, *ages: float) -> Iterator[Path]:
    """A run file that this process is writing, with steps that are so many seconds old."""
    sink = FileSink(path, RunRecord(name="run", created_ns=0))
    now = time.time()
    for step, age in enumerate(ages):
        sink.put_frame(Frame(step=step, time_ns=int((now - age) * 1e9), points={}))
    sink.flush()
    yield path
    sink.close()


def write_run(path: Path, steps: int = 10) -> Path:
    """A finished run file."""
    sink = FileSink(path, RUN)
    sink.put_model(MODEL)
    for step in range(steps):
        put_step(sink, step)
    sink.close()
    return path

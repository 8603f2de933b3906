"""Shows a watched training in TensorBoard: `tg.watch(model, backend="tensorboard")`.

The events are written beside the run file, to a folder of the same name without ".glass".
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from torchglass.analyse.histograms import grid_of
from torchglass.api.backends import Backend, NamedFrame, numbers_of
from torchglass.records.model import Histogram
from torchglass.records.run import Frame, Reader, Series, SeriesId
from torchglass.tables.export import without_ending

_SECONDS_TO_FLUSH = 10
_MOST_QUEUED = 10_000
"""The most queued events; above that, the training waits for the disk."""


class TensorBoardBackend(Backend):
    """Writes each frame as events: scalars, and histograms with their own bins."""

    def __init__(self) -> None:
        self._folder = Path()
        self._writer: SummaryWriter | None = None

    def begin(self, reader: Reader) -> None:
        self._folder = _folder_of(reader)
        self._reader = reader

    def frame(self, frame: Frame, series: Mapping[SeriesId, Series]) -> None:
        if self._writer is None:
            # A run that is resumed at an earlier step replaces what came after it.
            self._writer = SummaryWriter(
                str(self._folder),
                purge_step=frame.step,
                max_queue=_MOST_QUEUED,
                flush_secs=_SECONDS_TO_FLUSH,
            )
        _write(self._writer, NamedFrame.of(frame, series))

    def close(self) -> None:
        self._reader.close()
        if self._writer is not None:
            self._writer.close()


def _write(writer: SummaryWriter, measured: NamedFrame) -> None:
    seconds = measured.time_ns / 1e9
    for series, point in measured.points:
        tag = _tag(series)
        for name, number in numbers_of(tag, point).items():
            writer.add_scalar(name, number, measured.step, seconds)
        if isinstance(point, Histogram) and point.counts:
            _write_histogram(writer, tag, point, measured.step, seconds)


def _write_histogram(
    writer: SummaryWriter, tag: str, histogram: Histogram, step: int, seconds: float
) -> None:
    stats = histogram.stats
    finite = stats.count - stats.nan - stats.inf
    first, *limits = grid_of(histogram).edges.tolist()
    counts = list(histogram.counts)
    # TensorBoard draws the outermost bars as far as the extremes. An extreme beside the bins has a
    # bar for itself, so that theirs stay as wide as they are.
    if stats.min < first:
        limits, counts = [first, *limits], [1, *counts]
    if stats.max > limits[-1]:
        limits, counts = [*limits, stats.max], [*counts, 1]
    writer.add_histogram_raw(
        tag,
        min=stats.min,
        max=stats.max,
        num=finite,
        sum=stats.mean * finite,
        sum_squares=stats.std**2 * max(finite - 1, 0) + stats.mean**2 * finite,
        bucket_limits=limits,
        bucket_counts=counts,
        global_step=step,
        walltime=seconds,
    )


def _tag(series: Series) -> str:
    """The tag of a series. TensorBoard groups by the part before the first slash: the module."""
    return f"{series.path}/{series.name}" if series.path else series.name


def _folder_of(reader: Reader) -> Path:
    path = getattr(reader, "path", None)
    if isinstance(path, Path):
        folder = without_ending(path, "glass")
        return folder if folder != path else path.with_name(f"{path.name}-tensorboard")
    run = reader.run()
    return Path("runs") / f"{run.name}-{run.created_ns}"

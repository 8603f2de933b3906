"""Sends a summary of each step of a training to another tool, from a separate thread.

The training never waits for the tool. What cannot be sent is dropped, and said once.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from torchglass.api.backends import Backend, NamedFrame, numbers_of
from torchglass.errors import warn
from torchglass.records.findings import Finding, Findings
from torchglass.records.model import Histogram, Stats
from torchglass.records.run import Frame, Reader, Series, SeriesId
from torchglass.records.step_points import Point

_MOST_WAITING, _MOST_WAITING_OF_ALL_TENSORS = 2000, 100
"""Steps; if the tool is slower than the training, further ones are dropped."""
_SECONDS_BETWEEN_SENDS = 1.0
_SECONDS_BETWEEN_FINDINGS = 10.0
_SECONDS_TO_END = 60.0
_ACTIVATIONS = ("input", "output", "eval:")
"""How the names of series begin that are not of parameters."""


class StepSummary(NamedTuple):
    """The values of a step that are sent."""

    step: int
    time_ns: int
    values: Mapping[str, float]


class MirrorBackend(Backend):
    """Sends summaries to a tool. What differs between tools are the four methods below.

    Args:
        everything: Also send min, max, mean and standard deviation of every tensor.
    """

    tool = ""
    """The name of the tool, for messages."""

    def __init__(self, *, everything: bool = False) -> None:
        self._everything = everything
        most = _MOST_WAITING_OF_ALL_TENSORS if everything else _MOST_WAITING
        self._waiting: queue.Queue[StepSummary | None] = queue.Queue(most)
        self._dropped = 0
        self._reader: Reader | None = None
        self._thread: threading.Thread | None = None
        self._told: set[tuple[str, str]] = set()

    def prepare(self) -> None:
        """In the thread of the training, before it begins: note what belongs to that thread."""

    def connect(self, reader: Reader) -> None:
        """Connect to the tool."""
        raise NotImplementedError

    def send(self, steps: Sequence[StepSummary]) -> None:
        """Send some steps."""
        raise NotImplementedError

    def send_findings(self, findings: Sequence[Finding]) -> None:
        """Send problems that were not sent before."""

    def finish(self, reader: Reader) -> None:
        """The run has ended: send what describes all of it."""

    def begin(self, reader: Reader) -> None:
        self._reader = reader
        self.prepare()
        self._thread = threading.Thread(
            target=self._run, args=(reader,), daemon=True, name=f"torchglass-{self.tool}"
        )
        self._thread.start()

    def frame(self, frame: Frame, series: Mapping[SeriesId, Series]) -> None:
        measured = NamedFrame.of(frame, series)
        values = dict(summary_values(measured, everything=self._everything))
        try:
            self._waiting.put_nowait(StepSummary(measured.step, measured.time_ns, values))
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            deadline = time.monotonic() + _SECONDS_TO_END
            self._put_end(deadline)
            thread.join(max(deadline - time.monotonic(), 0.0))
            if thread.is_alive():
                warn(
                    f"{self.tool} did not answer for {_SECONDS_TO_END:.0f} s: the rest is not sent"
                )
                return  # It still reads the run.
        if self._dropped:
            warn(f"{self._dropped} steps were not sent to {self.tool}, which was too slow")
        if self._reader is not None:
            self._reader.close()

    def _put_end(self, deadline: float) -> None:
        try:
            self._waiting.put(None, timeout=max(deadline - time.monotonic(), 0.0))
        except queue.Full:
            self._dropped += 1

    def _run(self, reader: Reader) -> None:
        try:
            self.connect(reader)
            looked = time.monotonic()
            for steps in self._batches():
                self.send(steps)
                if time.monotonic() - looked > _SECONDS_BETWEEN_FINDINGS:
                    looked = time.monotonic()
                    self._send_news(reader)
            self._send_news(reader)
            self.finish(reader)
        except Exception as error:  # noqa: BLE001 - in a thread beside someone's training
            warn(f"nothing more is sent to {self.tool}: {type(error).__name__}: {error}")
            # The training goes on, and must not wait for a queue that nobody empties.
            while self._waiting.get() is not None:
                pass

    def _batches(self) -> Iterator[list[StepSummary]]:
        """The steps that came in the last second, until the run ends."""
        while True:
            first = self._waiting.get()
            steps, is_last = [first], first is None
            deadline = time.monotonic() + _SECONDS_BETWEEN_SENDS
            while not is_last and (left := deadline - time.monotonic()) > 0:
                try:
                    steps.append(self._waiting.get(timeout=left))
                except queue.Empty:
                    break
                is_last = steps[-1] is None
            yield [step for step in steps if step is not None]
            if is_last:
                return

    def _send_news(self, reader: Reader) -> None:
        found = (reader.document(Findings) or Findings()).findings
        news = [one for one in found if (one.kind, one.path) not in self._told]
        self._told |= {(one.kind, one.path) for one in news}
        if news:
            self.send_findings(news)


def summary_values(measured: NamedFrame, *, everything: bool) -> Iterator[tuple[str, float]]:
    """What was logged, the norms of all gradients and weights, and how many values are NaN or Inf.

    With `everything` also the statistics of each tensor.
    """
    gradients, weights, nonfinite = 0.0, 0.0, 0
    for series, point in measured.points:
        if everything or (series.kind == "scalar" and not series.path):
            yield from _numbers(series.label, point).items()
        stats = _stats(point)
        if stats is None:
            continue
        nonfinite += stats.nan + stats.inf
        if not series.name.startswith(_ACTIVATIONS):
            if series.name.endswith(".grad"):
                gradients += _squares(stats)
            else:
                weights += _squares(stats)
    if any(_stats(point) is not None for _, point in measured.points):
        yield "gradient_norm", math.sqrt(gradients)
        yield "weight_norm", math.sqrt(weights)
        yield "nonfinite_values", float(nonfinite)


def _numbers(name: str, point: Point) -> dict[str, float]:
    stats = _stats(point)
    return numbers_of(name, point if stats is None else stats)


def _stats(point: Point) -> Stats | None:
    if isinstance(point, Histogram):
        return point.stats
    return point if isinstance(point, Stats) else None


def _squares(stats: Stats) -> float:
    """The sum of the squares of the finite values of a tensor."""
    finite = stats.count - stats.nan - stats.inf
    return finite * stats.mean**2 + max(finite - 1, 0) * stats.std**2 if finite else 0.0

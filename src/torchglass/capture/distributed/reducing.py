"""The steps of all ranks added up on the first one, by a thread that no training waits for.

A rank sends what it has to the one that is half as far away, a quarter as far, and so on: with a
thousand ranks none of them adds up more than ten parcels a step, and each parcel is as large as
what one rank measures.
"""

from __future__ import annotations

import contextlib
import pickle
import queue
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import torch
from torch import distributed

from torchglass.capture.distributed.parcels import Label, Parcel
from torchglass.capture.distributed.ranks import is_among_many
from torchglass.errors import TargetError, warn
from torchglass.records.documents import Document
from torchglass.records.finding import Finding, Findings
from torchglass.records.flow import Sink
from torchglass.records.model import Model, join_path
from torchglass.records.series import Frame, Kind, SeriesId

_PATIENCE = timedelta(seconds=60)
"""How long a rank waits for another before it goes on alone."""
_CLOSE_SECONDS = 90.0
_MOST_WAITING = 64
"""So many steps may wait to be added up; those beyond are left out on all ranks alike or lost."""


def reducing(sink: Sink, reduce: str, *, bins: int = 30) -> Sink:
    """A sink that adds up the frames of all ranks; all of them have to call this.

    Only the first rank's own sink is written to. With one process it is the sink itself.
    """
    if reduce != "all":
        raise TargetError(f'reduce is "all" or None, not {reduce!r}')
    return Reducing(sink, bins) if is_among_many() else sink


class Reducing:
    """Adds up frames over ranks in the order in which each rank puts them."""

    def __init__(self, sink: Sink, bins: int) -> None:
        self._sink = sink
        self._bins = bins
        self._rank = distributed.get_rank()
        self._size = distributed.get_world_size()
        # Its own group: the training's may be busy, and may not carry what lies on the CPU.
        self._group = distributed.new_group(backend="gloo", timeout=_PATIENCE)
        self._labels: dict[SeriesId, Label] = {}
        self._frames: queue.Queue[Frame | None] = queue.Queue(_MOST_WAITING)
        self._last_ns = time.time_ns()
        self._is_alone = False
        self._found: dict[Label, Finding] = {}
        self._findings = Findings()
        self._thread = threading.Thread(target=self._work, name="torchglass ranks", daemon=True)
        self._thread.start()

    def put_model(self, model: Model) -> None:
        """Keep the structure; a later one replaces it."""
        if self._rank == 0:
            self._sink.put_model(model)

    def put_document(self, document: Document) -> None:
        """Keep a record of the whole run; a later one of its class replaces it."""
        if self._rank == 0:
            if isinstance(document, Findings):
                self._findings = document
                document = self._all_findings()
            self._sink.put_document(document)

    def series(self, path: str, name: str, kind: Kind = "scalar") -> SeriesId:
        """The id of the series with this place and name, made on first use."""
        series = self._sink.series(path, name, kind)
        self._labels[series] = (path, name, kind)
        return series

    def put_frame(self, frame: Frame) -> None:
        """Have what was measured at one step added to that of the other ranks."""
        try:
            self._frames.put_nowait(frame)
        except queue.Full:
            self._go_alone("the other ranks do not keep up")

    def close(self) -> None:
        """Add up what is still waiting, then let go of the store."""
        with contextlib.suppress(queue.Full):
            self._frames.put(None, timeout=_CLOSE_SECONDS)
        self._thread.join(_CLOSE_SECONDS)
        self._sink.close()

    def _work(self) -> None:
        while (frame := self._frames.get()) is not None:
            parcel = self._parcel(frame)
            if not self._is_alone:
                try:
                    for other in _partners(self._rank, self._size):
                        if other < self._rank:
                            self._send(parcel, other)
                        else:
                            parcel = parcel.plus(self._receive(other), self._bins)
                except Exception as error:  # noqa: BLE001 - whatever a lost rank leads to
                    self._go_alone(f"{type(error).__name__}: {error}".partition("\n")[0])
            if self._rank == 0:
                self._write(frame, parcel)

    def _parcel(self, frame: Frame) -> Parcel:
        seconds = (frame.time_ns - self._last_ns) / 1e9
        self._last_ns = frame.time_ns
        points = {self._labels[series]: point for series, point in frame.points.items()}
        return Parcel.of(self._rank, points, seconds)

    def _write(self, frame: Frame, parcel: Parcel) -> None:
        points = {**parcel.points(), **parcel.about_ranks()}
        by_id = {self.series(*label): point for label, point in points.items()}
        self._sink.put_frame(Frame(step=frame.step, time_ns=frame.time_ns, points=by_id))
        new = [label for label in parcel.spoiled if label not in self._found]
        for label in new:
            self._found[label] = _finding(label, parcel.spoiled[label], self._size, frame.step)
        if new:
            self._sink.put_document(self._all_findings())

    def _all_findings(self) -> Findings:
        return Findings(findings=(*self._findings.findings, *self._found.values()))

    def _send(self, parcel: Parcel, to: int) -> None:
        data = torch.frombuffer(bytearray(pickle.dumps(parcel)), dtype=torch.uint8)
        distributed.send(torch.tensor([data.numel()]), to, group=self._group)
        distributed.send(data, to, group=self._group)

    def _receive(self, source: int) -> Parcel:
        size = torch.zeros(1, dtype=torch.int64)
        distributed.recv(size, source, group=self._group)
        data = torch.empty(int(size.item()), dtype=torch.uint8)
        distributed.recv(data, source, group=self._group)
        # It comes from a process of the same training, which runs the same code anyway.
        parcel: Parcel = pickle.loads(data.numpy().tobytes())
        return parcel

    def _go_alone(self, why: str) -> None:
        if not self._is_alone:
            self._is_alone = True
            left = "its own numbers only" if self._rank == 0 else "nothing"
            warn(f"rank {self._rank} records {left} from now on: {why}")


def _partners(rank: int, size: int) -> Iterator[int]:
    """Whom a rank hears from, in order, and last of all whom it sends to; none for the first."""
    distance = 1
    while distance < size:
        if rank & distance:
            yield rank - distance
            return
        if rank + distance < size:
            yield rank + distance
        distance *= 2


def _finding(label: Label, ranks: tuple[int, ...], size: int, step: int) -> Finding:
    path, name, _ = label
    shown = ", ".join(map(str, sorted(ranks)[:8])) + (" …" if len(ranks) > 8 else "")
    where = f"on rank {shown} of {size}" if len(ranks) < size else "on all ranks"
    return Finding(
        severity="error",
        kind="nan",
        message=f"{join_path(path, name)} has numbers that are not finite {where}",
        path=path,
        step=step,
        facts={"series": join_path(path, name), "ranks": sorted(ranks)},
    )

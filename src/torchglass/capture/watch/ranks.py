"""The ranks of a distributed training: which process this is, and adding up their steps on rank 0.

Ranks are added up in a binary tree: with a thousand ranks, none receives more than ten messages per
step, and each message is as large as the values of one rank.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import queue
import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import NamedTuple

import torch
from torch import distributed

from torchglass.analyse.diagnosis.training_view import is_loss
from torchglass.analyse.histograms import joined, merged
from torchglass.analyse.training_rules import has_bad_values
from torchglass.capture.tensor.histograms import ROOM
from torchglass.capture.torch_internals import default_store
from torchglass.errors import TargetError, warn
from torchglass.records.findings import Finding, Findings
from torchglass.records.model import Histogram, Model, Stats, join_path
from torchglass.records.run import Document, Frame, SeriesId, Sink
from torchglass.records.step_points import Point, SeriesKind

_numbers = count()
_UNKNOWN_JOB = "none"
"""torchrun's name for a job without a name."""


class TrainingId(NamedTuple):
    """What all ranks of a training have in common."""

    group: str
    """A name unique to this training; "" for a single process, or if unknown."""
    started_ns: int
    """Since the epoch."""


def this_training() -> TrainingId:
    """The training that this process is part of; the n-th call returns the same on every rank.

    The first rank to arrive writes it to the store, so that no rank waits: it may be the only rank
    that is watched.
    """
    now = time.time_ns()
    if own_rank()[1] == 1:
        return TrainingId("", now)
    own = f"{now}-{secrets.token_hex(4)}"
    with contextlib.suppress(Exception):  # This kind of store does not support it.
        agreed = (
            default_store().compare_set(f"torchglass/training/{next(_numbers)}", "", own).decode()
        )
        return TrainingId(agreed, int(agreed.partition("-")[0]))
    job = os.environ.get("TORCHELASTIC_RUN_ID", _UNKNOWN_JOB)
    return TrainingId("" if job == _UNKNOWN_JOB else job, now)


def is_among_many() -> bool:
    """Whether there is a process group of several ranks."""
    is_made = distributed.is_available() and distributed.is_initialized()
    return is_made and distributed.get_world_size() > 1


def own_rank() -> tuple[int, int]:
    """The rank of this process and the world size, even before the process group is created."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def speaks_for(tensor: torch.Tensor) -> bool:
    """Whether this rank counts the values of a tensor that several ranks have.

    Different shards are counted by every rank that has one; everything else by the first rank only.
    """
    mesh = getattr(tensor, "device_mesh", None)
    placements = getattr(tensor, "placements", None)
    if mesh is None or placements is None:
        return own_rank()[0] == 0
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return False
    copies = zip(placements, coordinate, strict=True)
    return all(place == 0 for placement, place in copies if not placement.is_shard())


Label = tuple[str, str, SeriesKind]
"""A series by its path, its name and its kind: ids differ from rank to rank."""
_SCALE: Label = ("", "grad_scale", "scalar")


@dataclass(frozen=True)
class Mean:
    """A number that differs between ranks."""

    total: float
    count: int

    def __add__(self, other: Mean) -> Mean:
        return Mean(self.total + other.total, self.count + other.count)


Part = Mean | Stats | Histogram


@dataclass(frozen=True, kw_only=True)
class RankValues:
    """The points of one or several ranks at one step."""

    parts: Mapping[Label, Part]
    seconds: Mapping[int, float] = field(default_factory=dict)
    """How long each rank took for the step."""
    spoiled: Mapping[Label, tuple[int, ...]] = field(default_factory=dict)
    """For series with values that are not finite, the ranks that had them."""

    @classmethod
    def of(cls, rank: int, points: Mapping[Label, Point], seconds: float) -> RankValues:
        """The values of one rank."""
        parts = {label: _part(point) for label, point in points.items()}
        spoiled = {label: (rank,) for label in parts if _has_bad_values(label, parts)}
        return cls(parts=parts, seconds={rank: seconds}, spoiled=spoiled)

    def plus(self, other: RankValues, bins: int) -> RankValues:
        """The sum of both: histograms, extremes and moments over all values."""
        parts = dict(self.parts)
        for label, part in other.parts.items():
            parts[label] = _sum(parts[label], part, bins) if label in parts else part
        spoiled = dict(self.spoiled)
        for label, ranks in other.spoiled.items():
            spoiled[label] = (*spoiled.get(label, ()), *ranks)
        return RankValues(parts=parts, seconds={**self.seconds, **other.seconds}, spoiled=spoiled)

    def points(self) -> dict[Label, Point]:
        """The combined values as points; single numbers are averaged."""
        return {label: _point(part) for label, part in self.parts.items()}

    def about_ranks(self) -> dict[Label, Point]:
        """How the ranks differ: the slowest rank, and the times of the slowest and the fastest."""
        if not self.seconds:
            return {}
        slowest = max(self.seconds, key=lambda rank: self.seconds[rank])
        return {
            ("", "ranks.slowest", "scalar"): float(slowest),
            ("", "ranks.longest_seconds", "scalar"): self.seconds[slowest],
            ("", "ranks.shortest_seconds", "scalar"): min(self.seconds.values()),
        }


def total(every_rank: Iterable[RankValues], bins: int) -> RankValues:
    """The values of several ranks together."""
    whole = RankValues(parts={})
    for values in every_rank:
        whole = whole.plus(values, bins)
    return whole


def _part(point: Point) -> Part:
    return point if isinstance(point, (Stats, Histogram)) else Mean(point, 1)


def _point(part: Part) -> Point:
    return part.total / part.count if isinstance(part, Mean) else part


def _sum(one: Part, other: Part, bins: int) -> Part:
    if isinstance(one, Histogram) and isinstance(other, Histogram):
        return merged([one, other], bins * ROOM)
    if isinstance(one, Stats) and isinstance(other, Stats):
        return joined([one, other])
    if isinstance(one, Mean) and isinstance(other, Mean):
        return one + other
    return one


def _has_bad_values(label: Label, parts: Mapping[Label, Part]) -> bool:
    path, name, kind = label
    part = parts[label]
    if isinstance(part, Mean):
        return not math.isfinite(part.total) and (bool(path) or is_loss(name))
    if name.endswith(".grad") and _SCALE in parts:
        # The scaler skips a step in which scaled gradients overflow.
        return False
    stats = part.stats if isinstance(part, Histogram) else part
    return has_bad_values(name, stats, is_trained=(path, f"{name}.grad", kind) in parts)


_PATIENCE = timedelta(seconds=60)
"""How long a rank waits for another before it continues alone."""
_CLOSE_SECONDS = 90.0
_MOST_WAITING = 1 << 19
"""The most points that may be pending; further ones are dropped."""
_END = math.inf
"""The step that comes after all others of a rank."""


def reduce_ranks(sink: Sink, reduce: str, *, bins: int = 30) -> Sink:
    """A sink that adds up the frames of all ranks; every rank must call this.

    Only the first rank's own sink is written to. With one process it is the sink itself.
    """
    if reduce != "all":
        raise TargetError(f'reduce must be "all" or None, not {reduce!r}')
    return RankReducer(sink, bins) if is_among_many() else sink


class _StepMessage(NamedTuple):
    """What one rank sends to another."""

    step: float
    values: RankValues


class RankReducer:
    """Adds up the frames of the same step over ranks; frames arrive in order.

    A step may have frames on some ranks only, if not all of them log values.
    """

    def __init__(self, sink: Sink, bins: int) -> None:
        self._sink = sink
        self._bins = bins
        self._rank = distributed.get_rank()
        self._size = distributed.get_world_size()
        # A separate group: the training's may be busy, and may not support CPU tensors.
        self._group = distributed.new_group(backend="gloo", timeout=_PATIENCE)
        self._labels: dict[SeriesId, Label] = {}
        self._frames: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._waiting = 0
        self._lock = threading.Lock()
        self._ahead: dict[int, _StepMessage] = {}
        """Values from other ranks of steps that this rank has not reached."""
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

    def series(self, path: str, name: str, kind: SeriesKind = "scalar") -> SeriesId:
        """The id of the series with this path and name, created on first use."""
        series = self._sink.series(path, name, kind)
        self._labels[series] = (path, name, kind)
        return series

    def put_frame(self, frame: Frame) -> None:
        """Add the values of one step to those of the other ranks."""
        with self._lock:
            has_room = not self._waiting or self._waiting + len(frame.points) <= _MOST_WAITING
            self._waiting += len(frame.points) * has_room
        if has_room:
            self._frames.put(frame)
        else:
            self._go_alone("the other ranks do not keep up")

    def close(self) -> None:
        """Add up what is pending, then release the store."""
        self._frames.put(None)
        # The garbage collector may close an unreferenced run in any thread.
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_SECONDS)
        self._sink.close()

    def _work(self) -> None:
        while (frame := self._frames.get()) is not None:
            with self._lock:
                self._waiting -= len(frame.points)
            values = self._with_others(frame.step, self._values_of(frame))
            if self._rank == 0:
                self._write(frame, values)
        if not self._is_alone:
            # Tell the ranks that wait for our steps that there are no more.
            with contextlib.suppress(Exception):
                self._added_up(_END, RankValues(parts={}))

    def _with_others(self, step: int, values: RankValues) -> RankValues:
        if self._is_alone:
            return values
        try:
            return self._added_up(step, values)
        except Exception as error:  # noqa: BLE001 - whatever a lost rank leads to
            self._go_alone(f"{type(error).__name__}: {error}".partition("\n")[0])
            return values

    def _added_up(self, step: float, values: RankValues) -> RankValues:
        """The values of a step, added to those from other ranks and sent on."""
        for other in _partners(self._rank, self._size):
            if other < self._rank:
                self._send(_StepMessage(step, values), other)
            else:
                theirs = self._received(step, other)
                values = values.plus(theirs, self._bins) if theirs is not None else values
        return values

    def _received(self, step: float, source: int) -> RankValues | None:
        """The values of another rank at a step, None if there are none; skips earlier ones."""
        there = self._ahead.pop(source, None) or self._receive(source)
        while there.step < step:
            there = self._receive(source)
        if there.step > step:
            self._ahead[source] = there
            return None
        return there.values

    def _values_of(self, frame: Frame) -> RankValues:
        seconds = (frame.time_ns - self._last_ns) / 1e9
        self._last_ns = frame.time_ns
        points = {self._labels[series]: point for series, point in frame.points.items()}
        return RankValues.of(self._rank, points, seconds)

    def _write(self, frame: Frame, values: RankValues) -> None:
        points = {**values.points(), **values.about_ranks()}
        by_id = {self.series(*label): point for label, point in points.items()}
        self._sink.put_frame(Frame(step=frame.step, time_ns=frame.time_ns, points=by_id))
        new = [label for label in values.spoiled if label not in self._found]
        for label in new:
            self._found[label] = _finding(label, values.spoiled[label], self._size, frame.step)
        if new:
            self._sink.put_document(self._all_findings())

    def _all_findings(self) -> Findings:
        return Findings(findings=(*self._findings.findings, *self._found.values()))

    def _send(self, message: _StepMessage, to: int) -> None:
        data = torch.frombuffer(bytearray(pickle.dumps(message)), dtype=torch.uint8)
        distributed.send(torch.tensor([data.numel()]), to, group=self._group)
        distributed.send(data, to, group=self._group)

    def _receive(self, source: int) -> _StepMessage:
        size = torch.zeros(1, dtype=torch.int64)
        distributed.recv(size, source, group=self._group)
        data = torch.empty(int(size.item()), dtype=torch.uint8)
        distributed.recv(data, source, group=self._group)
        # It comes from a process of the same training, which runs the same code anyway.
        message: _StepMessage = pickle.loads(data.numpy().tobytes())
        return message

    def _go_alone(self, why: str) -> None:
        if not self._is_alone:
            self._is_alone = True
            left = "only its own values" if self._rank == 0 else "nothing"
            warn(f"rank {self._rank} records {left} from now on: {why}")


def _partners(rank: int, size: int) -> Iterator[int]:
    """The ranks that a rank receives from, in order, then the one it sends to, if any."""
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
        message=f"`{join_path(path, name)}` has NaN or Inf {where} (since step {step})",
        path=path,
        step=step,
        facts={"series": join_path(path, name), "ranks": sorted(ranks)},
    )

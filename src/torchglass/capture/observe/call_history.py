"""The calls of one module: the latest one by one, all of them as totals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from torchglass.analyse import moments
from torchglass.capture.observe.tensor_batch import PENDING
from torchglass.capture.observe.tensor_reading import Reader, Reading
from torchglass.records.calls import CallTensor, ForwardStats, ModuleStatistics, Totals
from torchglass.records.tensors import Stats

if TYPE_CHECKING:
    import torch


def plus(totals: Totals, calls: Sequence[Call]) -> Totals:
    """The totals with some more calls, whose statistics are there."""
    inputs = [_first(call.located_inputs) for call in calls]
    outputs = [_first(call.located_outputs) for call in calls]
    return Totals(
        calls=totals.calls + len(calls),
        failed=totals.failed + sum(bool(call.error) for call in calls),
        total_ns=totals.total_ns + sum(call.total_ns for call in calls),
        self_ns=totals.self_ns + sum(call.self_ns for call in calls),
        inputs=joined([totals.inputs, *inputs]),
        outputs=joined([totals.outputs, *outputs]),
    )


def joined(every: Iterable[Stats | None]) -> Stats | None:
    """The statistics of the numbers of all these tensors taken together."""
    parts = [stats for stats in every if stats is not None]
    return moments.joined(parts) if len(parts) > 1 else next(iter(parts), None)


def _first(located: tuple[tuple[str, Reading], ...]) -> Stats | None:
    return located[0][1].ready_stats if located else None


Seen = Reading | tuple[tuple[str, Reading], ...]
"""Readings by their places; one alone stands at the usual place, as nearly all of them do."""

_NOTHING = Totals()
_AT_ONCE = 16
"""So many calls are dropped together, which takes less time than one by one."""


class Call:
    """One run of a module, from when it begins on."""

    __slots__ = (
        "children_ns",
        "error",
        "forward",
        "history",
        "inputs",
        "lost_ns",
        "number",
        "outputs",
        "start_ns",
        "total_ns",
    )
    start_ns: int
    lost_ns: int
    total_ns: int
    outputs: Seen
    error: str

    def __init__(self, history: History, number: int, forward: int, inputs: Seen) -> None:
        self.history = history
        self.number = number
        self.forward = forward
        self.inputs = inputs
        self.children_ns = 0

    @property
    def self_ns(self) -> int:
        """Time spent here without inner calls."""
        return self.total_ns - self.children_ns

    @property
    def located_inputs(self) -> tuple[tuple[str, Reading], ...]:
        """What went in, by place."""
        return (("0", self.inputs),) if isinstance(self.inputs, Reading) else self.inputs

    @property
    def located_outputs(self) -> tuple[tuple[str, Reading], ...]:
        """What came out, by place."""
        return (("", self.outputs),) if isinstance(self.outputs, Reading) else self.outputs

    @property
    def is_pending(self) -> bool:
        """Whether statistics of it are yet to come."""
        located = self.located_inputs + self.located_outputs
        return any(reading.stats is PENDING for _, reading in located)

    def record(self) -> ForwardStats:
        """The same as plain data."""
        return ForwardStats(
            path=self.history.path,
            number=self.number,
            forward=self.forward,
            inputs=_records(self.located_inputs),
            outputs=_records(self.located_outputs),
            start_ns=self.start_ns,
            total_ns=self.total_ns,
            self_ns=self.self_ns,
            error=self.error,
        )

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The copies of its tensors that were kept, at "in.0", "out", "out.hidden" …"""
        for side, located in (("in", self.located_inputs), ("out", self.located_outputs)):
            for place, reading in located:
                if reading.copy is not None:
                    yield f"{side}.{place}" if place else side, reading.copy


class History:
    """What a module did so far. Only `keep` calls are kept; older ones are in the totals alone."""

    __slots__ = ("_dropped", "_keep", "_latest", "_reader", "begun", "path")

    def __init__(self, path: str, reader: Reader, keep: int) -> None:
        self.path = path
        self.begun = 0
        self._latest: list[Call] = []
        self._reader = reader
        self._keep = keep
        self._dropped = _NOTHING

    @property
    def kept(self) -> list[Call]:
        """The latest calls."""
        return self._latest[-self._keep :]

    def add(self, call: Call) -> None:
        """Take in a call that has ended."""
        self._latest.append(call)
        if len(self._latest) >= self._keep + _AT_ONCE:
            self._drop(self._latest[: -self._keep])
            self._latest = self.kept

    def record(self, class_name: str) -> ModuleStatistics:
        """The same as plain data."""
        self._reader.finish()
        return ModuleStatistics(
            path=self.path,
            class_name=class_name,
            calls=tuple(call.record() for call in self.kept),
            totals=plus(self._dropped, self._latest),
        )

    def _drop(self, calls: Sequence[Call]) -> None:
        if any(call.is_pending for call in calls):
            self._reader.finish()
        self._dropped = plus(self._dropped, calls)


def _records(located: tuple[tuple[str, Reading], ...]) -> tuple[CallTensor, ...]:
    return tuple(reading.record(place) for place, reading in located)

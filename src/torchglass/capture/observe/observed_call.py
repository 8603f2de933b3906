"""One observed module call, what its backward adds, and the calls of one module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest

from torchglass.analyse import histograms
from torchglass.capture.measure.devices import DeviceMark, DeviceTimer
from torchglass.capture.tensor.description import NamedTensors
from torchglass.capture.tensor_reader import StatisticsReading
from torchglass.records.calls import (
    CallCost,
    CallTensor,
    ForwardStats,
    InspectedCall,
    ModuleStatistics,
    Totals,
)
from torchglass.records.model import Stats

Located = tuple[tuple[str, StatisticsReading], ...]
"""Readings of tensors, each with its place among the arguments or results."""
Edge = tuple[int, int]
"""Where a tensor is in the autograd graph: the number of the node, and which output of it."""

_NO_CALLS = Totals()
_DROPPED_TOGETHER = 16
"""Calls that are dropped together, which is faster than one by one."""


@dataclass(slots=True, eq=False)
class CallBackward:
    """The backward of one call: gradients, time and memory."""

    input_gradients: dict[str, StatisticsReading | None] = field(default_factory=dict)
    """By place, in the order of the inputs; None for one that has not arrived."""
    output_gradients: dict[str, StatisticsReading | None] = field(default_factory=dict)
    edges: dict[Edge, list[str]] = field(default_factory=dict)
    """The places of its inputs by their edge in the graph: one tensor may have several places."""
    partials: Counter[Edge] = field(default_factory=Counter)
    """How many nodes contribute to the gradient of an input."""
    first_node: int = 0
    total_ns: int | None = None
    self_ns: int = 0
    added_bytes: int | None = None


class ObservedCall:
    """One call of a module, running or ended."""

    # What few calls have is not in a slot: setting all of it takes as long as reading a tensor.
    __slots__ = (
        "__dict__",
        "children_ns",
        "depth",
        "forward_pass",
        "history",
        "inputs",
        "lost_ns",
        "number",
        "outputs",
        "parent",
        "recomputed",
        "start_ns",
        "total_ns",
    )
    depth: int
    recomputed: bool
    """Whether a checkpoint recomputes it in the backward."""
    start_ns: int
    lost_ns: int
    """The time that measuring had taken before the start."""
    total_ns: int
    outputs: StatisticsReading | Located
    error = ""
    start_bytes: int
    added_bytes: int | None = None
    lost_each: Sequence[int] = ()
    """The time that measuring took on each device inside of the call."""
    marks: tuple[DeviceMark, DeviceMark]
    """On a device: before and after what was measured at its start."""
    is_timed = True
    """Whether its time is known; on a device it is not until the device is done."""
    _backward: CallBackward | None = None

    def __init__(
        self, history: ModuleHistory, parent: ObservedCall | None, forward_pass: int
    ) -> None:
        history.begun += 1
        self.history = history
        self.parent = parent
        if parent is None:
            self.depth, self.recomputed = 0, False
        else:
            self.depth, self.recomputed = parent.depth + 1, parent.recomputed
        self.number = history.begun
        self.forward_pass = forward_pass
        # A single reading is at the usual place ("0" or ""), as nearly all of them are.
        self.inputs: StatisticsReading | Located = ()
        self.outputs = ()
        self.children_ns = 0

    @property
    def path(self) -> str:
        return self.history.path

    @property
    def self_ns(self) -> int:
        return self.total_ns - self.children_ns

    @property
    def backward(self) -> CallBackward:
        if self._backward is None:
            self._backward = CallBackward()
        return self._backward

    @property
    def located_inputs(self) -> Located:
        inputs = self.inputs
        return (("0", inputs),) if isinstance(inputs, StatisticsReading) else inputs

    @property
    def located_outputs(self) -> Located:
        outputs = self.outputs
        return (("", outputs),) if isinstance(outputs, StatisticsReading) else outputs

    @property
    def is_pending(self) -> bool:
        located = self.located_inputs + self.located_outputs
        return not self.is_timed or any(reading.is_pending for _, reading in located)

    def time_on(self, timer: DeviceTimer, ended: DeviceMark, node: ObservedCall | None) -> None:
        """Take its time from events; `node` is the call whose autograd node recomputes it."""
        self.is_timed = False
        self.total_ns = 0
        timer.between_each(*self.marks, self._lose)
        timer.between_each(ended, timer.mark(), self._lose)
        timer.between_each(self.marks[1], ended, partial(self._settle, node))

    def _lose(self, each: Sequence[int]) -> None:
        if self.parent is not None:
            self.parent.lost_each = [
                sum(pair) for pair in zip_longest(self.parent.lost_each, each, fillvalue=0)
            ]

    def _settle(self, node: ObservedCall | None, each: Sequence[int]) -> None:
        own = (ns - lost for ns, lost in zip_longest(each, self.lost_each, fillvalue=0))
        self.total_ns = max(own, default=0)
        self.is_timed = True
        self._lose(self.lost_each)
        outer = self.parent
        if outer is not None and outer.recomputed == self.recomputed:
            outer.children_ns += self.total_ns
        if self.recomputed:
            self.charge_time(self.self_ns)
            if node is not None:
                node.charge_time(-self.total_ns)

    def charge_time(self, ns: int) -> None:
        """Add to the time of its backward and of all calls around it."""
        self.backward.self_ns += ns
        call: ObservedCall | None = self
        while call is not None:
            call.backward.total_ns = (call.backward.total_ns or 0) + ns
            call = call.parent

    def charge_bytes(self, count: int) -> None:
        """Add to the memory of its backward and of all calls around it."""
        call: ObservedCall | None = self
        while call is not None:
            call.backward.added_bytes = (call.backward.added_bytes or 0) + count
            call = call.parent

    def is_nested(self) -> bool:
        """Whether it ran inside another call of the same module."""
        call = self.parent
        while call is not None:
            if call.history is self.history:
                return True
            call = call.parent
        return False

    def tensors(self) -> NamedTensors:
        """The copies that were kept of its tensors, at "in.0", "out", "out.hidden" …"""
        for side, located in (("in", self.located_inputs), ("out", self.located_outputs)):
            for place, reading in located:
                if reading.copy is not None:
                    yield f"{side}.{place}" if place else side, reading.copy

    def statistics(self) -> ForwardStats:
        """Its forward as plain data, as `tg.record` shows it."""
        return ForwardStats(
            path=self.history.path,
            number=self.number,
            forward=self.forward_pass,
            inputs=_measured(self.located_inputs),
            outputs=_measured(self.located_outputs),
            start_ns=self.start_ns,
            total_ns=self.total_ns,
            self_ns=self.self_ns,
            error=self.error,
        )

    def inspection(self, *, times: bool) -> InspectedCall:
        """Its forward and backward as plain data, as `tg.inspect` shows it."""
        forward = effort = None
        if times and not self.recomputed:
            forward = CallCost(
                total_ns=self.total_ns, self_ns=self.self_ns, added_bytes=self.added_bytes
            )
        backward = self.backward
        if backward.total_ns is not None:
            effort = CallCost(
                total_ns=backward.total_ns,
                self_ns=backward.self_ns,
                added_bytes=backward.added_bytes,
            )
        return InspectedCall(
            number=self.number,
            forward_pass=self.forward_pass,
            inputs=_measured(self.located_inputs),
            outputs=_measured(self.located_outputs),
            input_gradients=_measured(backward.input_gradients.items()),
            output_gradients=_measured(backward.output_gradients.items()),
            forward=forward,
            backward=effort,
            error=self.error,
            recomputed=self.recomputed,
            nested=self.is_nested(),
        )


class ModuleHistory:
    """The calls of one module: the latest `keep` of them, and the totals of all."""

    __slots__ = (
        "_dropped",
        "_finish",
        "_keep",
        "_latest",
        "_most",
        "begun",
        "class_name",
        "model",
        "path",
    )

    def __init__(
        self, model: int, path: str, class_name: str, finish: Callable[[], None], keep: int
    ) -> None:
        """`finish` completes the statistics and times of all calls."""
        self.model = model
        """Which of the observed models it is in."""
        self.path = path
        self.class_name = class_name
        self.begun = 0
        self._latest: list[ObservedCall] = []
        self._finish = finish
        self._keep = keep
        self._most = keep + _DROPPED_TOGETHER
        self._dropped = _NO_CALLS

    @property
    def kept(self) -> list[ObservedCall]:
        return self._latest[-self._keep :]

    def add(self, call: ObservedCall) -> None:
        """Add a call that has ended, and drop the oldest ones."""
        self._latest.append(call)
        if len(self._latest) >= self._most:
            dropped = self._latest[: -self._keep]
            if any(call.is_pending for call in dropped):
                self._finish()
            self._dropped = _plus(self._dropped, dropped)
            self._latest = self.kept

    def latest_of_forward(self) -> ObservedCall | None:
        """The latest call of the user's forward, or else the latest one."""
        calls = (call for call in reversed(self._latest) if not call.recomputed)
        return next(calls, self._latest[-1] if self._latest else None)

    def statistics(self) -> ModuleStatistics:
        self._finish()
        return ModuleStatistics(
            path=self.path,
            class_name=self.class_name,
            calls=tuple(call.statistics() for call in self.kept),
            totals=_plus(self._dropped, self._latest),
        )


def nearest_around(one: ObservedCall, other: ObservedCall) -> ObservedCall | None:
    """The innermost call that contains both."""
    first: ObservedCall | None = one
    second: ObservedCall | None = other
    while first is not second and first is not None and second is not None:
        if first.depth >= second.depth:
            first = first.parent
        else:
            second = second.parent
    return first if first is second else None


def joined(every: Iterable[Stats | None]) -> Stats | None:
    """The statistics of the values of several tensors together."""
    parts = [stats for stats in every if stats is not None]
    return histograms.joined(parts) if len(parts) > 1 else next(iter(parts), None)


def _plus(totals: Totals, calls: Sequence[ObservedCall]) -> Totals:
    """The totals with more calls, whose statistics have been computed."""
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


def _first(located: Located) -> Stats | None:
    return located[0][1].stats if located else None


def _measured(located: Iterable[tuple[str, StatisticsReading | None]]) -> tuple[CallTensor, ...]:
    return tuple(reading.record(place) for place, reading in located if reading is not None)

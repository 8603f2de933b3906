"""One observed module call, and what its backward adds later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torchglass.records.calls import CallCost, CallTensor, InspectedCall

if TYPE_CHECKING:
    from torchglass.capture.observe.tensor_reading import Reading

Located = dict[str, "Reading | None"]
"""Readings of tensors by their places, in the order of those; None for one that is yet to come."""
Edge = tuple[int, int]
"""Where a tensor hangs in the graph of autograd: number of the node, and which result of it."""


class Home:
    """A place in one of the models, and the calls of the module there."""

    __slots__ = ("begun", "calls", "class_name", "keep", "model", "path")

    def __init__(self, model: int, path: str, class_name: str, keep: int) -> None:
        self.model = model
        self.path = path
        self.class_name = class_name
        self.keep = keep
        self.begun = 0
        self.calls: list[Call] = []

    def add(self, call: Call) -> None:
        """Take in a call that has begun; the oldest gives way."""
        self.calls.append(call)
        del self.calls[: -self.keep]


class Call:
    """One run of a module, from when it begins on."""

    __slots__ = (
        "added_bytes",
        "backward_bytes",
        "backward_ns",
        "backward_self_ns",
        "children_ns",
        "depth",
        "edges",
        "error",
        "first_node",
        "forward_pass",
        "home",
        "input_gradients",
        "inputs",
        "number",
        "output_gradients",
        "outputs",
        "parent",
        "partials",
        "recomputed",
        "start_bytes",
        "start_ns",
        "total_ns",
    )

    def __init__(self, home: Home, parent: Call | None, forward_pass: int) -> None:
        home.begun += 1
        self.home = home
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.number = home.begun
        self.forward_pass = forward_pass
        self.recomputed = False
        self.inputs: Located = {}
        self.outputs: Located = {}
        self.input_gradients: Located = {}
        self.output_gradients: Located = {}
        self.partials: Counter[Edge] = Counter()
        """From how many nodes the gradient of an input comes together."""
        self.edges: dict[Edge, list[str]] = {}
        """The places of its inputs by where they hang in the graph: one tensor may have several."""
        self.first_node = 0
        self.start_ns = self.start_bytes = 0
        self.children_ns = 0
        self.total_ns: int | None = None
        self.added_bytes: int | None = None
        self.backward_ns: int | None = None
        self.backward_self_ns = 0
        self.backward_bytes: int | None = None
        self.error = ""

    @property
    def self_ns(self) -> int:
        """Time spent in its forward without inner calls."""
        return (self.total_ns or 0) - self.children_ns

    def charge_time(self, ns: int) -> None:
        """Add to the time of its backward, and to that of all calls around it."""
        self.backward_self_ns += ns
        call: Call | None = self
        while call is not None:
            call.backward_ns = (call.backward_ns or 0) + ns
            call = call.parent

    def charge_bytes(self, count: int) -> None:
        """Add to the memory of its backward, and to that of all calls around it."""
        call: Call | None = self
        while call is not None:
            call.backward_bytes = (call.backward_bytes or 0) + count
            call = call.parent

    def is_nested(self) -> bool:
        """Whether it ran inside another call of the same module."""
        call = self.parent
        while call is not None:
            if call.home is self.home:
                return True
            call = call.parent
        return False

    def record(self, *, times: bool) -> InspectedCall:
        """The same as plain data."""
        forward = backward = None
        if times and self.total_ns is not None and not self.recomputed:
            forward = CallCost(
                total_ns=self.total_ns, self_ns=self.self_ns, added_bytes=self.added_bytes
            )
        if self.backward_ns is not None:
            backward = CallCost(
                total_ns=self.backward_ns,
                self_ns=self.backward_self_ns,
                added_bytes=self.backward_bytes,
            )
        return InspectedCall(
            number=self.number,
            forward_pass=self.forward_pass,
            inputs=_records(self.inputs),
            outputs=_records(self.outputs),
            input_gradients=_records(self.input_gradients),
            output_gradients=_records(self.output_gradients),
            forward=forward,
            backward=backward,
            error=self.error,
            recomputed=self.recomputed,
            nested=self.is_nested(),
        )


def nearest_around(one: Call, other: Call) -> Call | None:
    """The innermost call that both lie in."""
    first: Call | None = one
    second: Call | None = other
    while first is not second and first is not None and second is not None:
        if first.depth >= second.depth:
            first = first.parent
        else:
            second = second.parent
    return first if first is second else None


def _records(located: Mapping[str, Reading | None]) -> tuple[CallTensor, ...]:
    return tuple(reading.record(place) for place, reading in located.items() if reading is not None)

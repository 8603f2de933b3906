"""A stopwatch for things that begin and end inside each other."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from torchglass.capture.timing.clocks import Clock, CpuClock
from torchglass.capture.trace.nodes import nodes_made
from torchglass.records.timing import Span, SpanKind


class RawSpan:
    """A span with the marks of its clock still to be read."""

    __slots__ = ("cpu_ns", "end", "kind", "owner", "parent", "start", "subject")

    start: Any
    end: Any
    cpu_ns: int
    """What the CPU's clock said at the start; after the end, how much it went on."""

    def __init__(self, kind: SpanKind, subject: Any, parent: int | None, owner: int | None) -> None:
        self.kind = kind
        self.subject = subject
        self.parent = parent
        self.owner = owner


class Stopwatch:
    """Takes down when things begin and end, and which of them made which node of autograd.

    Nodes are numbered as they are made, so the numbers at each beginning and end tell it.
    """

    def __init__(self, clock: Clock, cpu: CpuClock) -> None:
        self._clock = clock
        self._mark = clock.mark
        self._cpu = cpu
        self.spans: list[RawSpan] = []
        self._open: list[int] = []
        self.current: int | None = None
        """The innermost span that has not ended."""
        self._nodes: list[int] = []
        self._makers: list[int | None] = []

    @property
    def depth(self) -> int:
        """How many things have begun and not ended."""
        return len(self._open)

    def begin(self, kind: SpanKind, subject: Any, owner: int | None = None) -> int:
        """Something begins; how deep it is, which `end` wants to know."""
        depth, index = len(self._open), len(self.spans)
        parent = self.current
        span = RawSpan(kind, subject, parent, parent if owner is None else owner)
        self.spans.append(span)
        self._open.append(index)
        self.current = index
        self._nodes.append(nodes_made())
        self._makers.append(index)
        # The clock is read last here and first at the end: our own work is not in the span.
        span.cpu_ns = self._cpu()
        span.start = self._mark()
        return depth

    def end(self, depth: int) -> None:
        """What began at a depth ends, and with it all that is deeper."""
        mark = self._mark()
        cpu_ns = self._cpu()
        while len(self._open) > depth:
            span = self.spans[self._open.pop()]
            span.end = mark
            span.cpu_ns = cpu_ns - span.cpu_ns
        self.current = self._open[-1] if self._open else None
        self._nodes.append(nodes_made())
        self._makers.append(self.current)

    def innermost_path(self) -> str | None:
        """The path of the module that is at work; None outside of all modules."""
        index = self.current
        while index is not None:
            span = self.spans[index]
            if span.kind == "module":
                return str(span.subject)
            index = span.owner
        return None

    def is_in_node(self) -> bool:
        """Whether what is at work is a node of autograd, and nothing that it began."""
        return self.current is not None and self.spans[self.current].kind == "node"

    def maker(self, node: int) -> int | None:
        """The innermost span in which the node of a number was made."""
        place = bisect_right(self._nodes, node) - 1
        return self._makers[place] if place >= 0 else None

    def read(self) -> tuple[Span, ...]:
        """The spans with their times; the clock may have to wait for its device."""
        marks = [mark for span in self.spans for mark in (span.start, span.end)]
        times = self._clock.nanoseconds(marks)
        return tuple(
            Span(
                kind=span.kind,
                name=_name(span),
                parent=span.parent,
                owner=span.owner,
                start_ns=start,
                end_ns=end,
                cpu_ns=span.cpu_ns,
            )
            for span, start, end in zip(self.spans, times[::2], times[1::2], strict=True)
        )


def _name(span: RawSpan) -> str:
    if span.kind == "op":
        return str(getattr(span.subject, "__name__", type(span.subject).__name__))
    return str(span.subject)

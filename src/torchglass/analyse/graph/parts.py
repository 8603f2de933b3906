"""The parts of a drawn graph, and which box each op belongs to."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from torchglass.analyse.graph.repeats import Run
from torchglass.errors import LookupFailedError
from torchglass.records.tensors import TensorSpec
from torchglass.records.trace import CallId, CallRecord, OpId, OpRecord

NodeKind = Literal["input", "output", "op", "module", "buffer", "stub", "failure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """How often a thing that is drawn once ran."""

    passes: int = 1
    """Passes of the same layer or module, as in a recurrent net."""
    times: int = 1
    """Blocks that are built alike, of which this is the first."""
    until: str = ""
    """The name of the last of these blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What all that a node stands for took."""

    time_ns: int = 0
    parameters: int = 0
    bytes: int = 0
    """Of the tensors that it made."""
    flops: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """An op, an input or output, a closed module, a buffer, or a neighbour of what is in focus."""

    name: str
    """A key of the trace."""
    kind: NodeKind
    box: str | None = None
    """The name of the innermost box that it is in."""
    op: OpRecord | None = None
    """The op that it is, or the first of several."""
    module: str = ""
    """The path of the module that it is."""
    class_name: str = ""
    """The class of that module."""
    specs: tuple[TensorSpec, ...] = ()
    """What it makes."""
    parameters: Mapping[str, TensorSpec] = field(default_factory=dict)
    ops: int = 1
    """How many ops are in it: those of one pass, and of one block of those that are alike."""
    again: Again = Again()
    from_input: bool = True
    """Whether it depends on an input of the pass."""
    failed: bool = False
    cost: Cost = Cost()


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """What flows from one node to another."""

    source: str
    target: str
    tensors: int = 1
    """How many different tensors."""
    arguments: tuple[str, ...] = ()
    """What the target calls them, where their order matters."""
    out_passes: tuple[int, ...] = ()
    """The passes of the source that it leaves, where these are not all of them."""
    in_passes: tuple[int, ...] = ()
    """The passes of the target that it enters, where these are not all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A module call, or a stretch that repeats, around what ran in it."""

    name: str
    parent: str | None = None
    """The name of the box around it."""
    module: str = ""
    """The path of the module; "" for a stretch of several ops, and for the model itself."""
    class_name: str = ""
    again: Again = Again()


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """What a picture of a trace shows."""

    model: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    boxes: tuple[Box, ...]
    """Each after the box around it."""
    ops: int = 0
    """How many ops ran, drawn or not."""
    cost: Cost = Cost()
    """Of the whole pass."""
    parameters: int = 0
    """Of the model, used in the pass or not."""
    closed_at: int | None = None
    """The depth at which modules were closed because there were too many nodes to read."""
    focus: str = ""
    """The module whose inside this is; "" for the whole model."""
    error: str = ""


Surrounding = CallId | Run
"""What is drawn as a box: a module call, or several neighbours that run again and again."""


class Places:
    """The boxes around each op, outermost first."""

    def __init__(
        self,
        calls: Sequence[CallRecord],
        ops: Sequence[OpRecord],
        *,
        shown: Iterable[OpRecord],
        depth: int | None,
        focus: str | None,
    ) -> None:
        self.focus = focus or ""
        self._calls = calls
        self._ops = ops
        self._roots = [call.id for call in calls if call.parent is None]
        self._focus = _matching(calls, focus) if focus is not None else None
        self._depth = depth
        self._lines: dict[CallId, tuple[CallId, ...]] = {}
        self._shown: Counter[CallId] = Counter()
        for op in shown:
            self._shown.update(self.line(op.call))
        self._runs: dict[OpId, list[Run]] = {}

    @property
    def bases(self) -> Sequence[CallId | None]:
        """The calls whose insides are drawn; None for all that there is."""
        if self._focus is not None:
            return self._focus
        return self._roots if len(self._roots) == 1 else (None,)

    @property
    def open_levels(self) -> int:
        """How many levels of calls are boxes whatever the depth: a focus is, and several roots."""
        return int(self.bases != self._roots)

    def fold(self, runs: Iterable[Run]) -> list[OpId]:
        """Take up the runs; for each op, the op that is drawn for it."""
        drawn = list(range(len(self._ops)))
        for run in runs:
            for op in run.unit:
                self._runs.setdefault(OpId(op), []).append(run)
            for op in run.later:
                drawn[op] = op - run.size * ((op - run.start) // run.size)
        # What stands for an op comes before it, so its own stand-in is known by then.
        for op, other in enumerate(drawn):
            drawn[op] = drawn[other] if other != op else op
        return [OpId(op) for op in drawn]

    def has(self, op: OpRecord) -> bool:
        """Whether it is inside what is drawn, not merely next to it."""
        return self._focus is None or any(call in self._focus for call in self.line(op.call))

    def closed(self, op: OpRecord) -> CallId | None:
        """The call that is drawn as one node and has the op inside it."""
        if self._depth is None:
            return None
        level = self._depth + self.open_levels - 1
        line = self._drawn_line(op)
        # A module that is a single op tells more as that op.
        return line[level] if len(line) > level and self._shown[line[level]] > 1 else None

    def around(self, op: OpRecord) -> list[Surrounding]:
        """The boxes around an op or around the closed call that it is in."""
        closed = self.closed(op)
        runs = self._runs.get(op.id, ())
        boxes: list[Surrounding] = []
        line = self._drawn_line(op)
        for parent, call in zip((self._above(op), *line), (*line, None), strict=True):
            boxes += [run for run in runs if run.call is None and run.parent == parent]
            if call is None or call == closed:
                break
            if self._shown[call] > 1 or self.run_of(call, op) or self._is_focus(call):
                boxes.append(call)
        return boxes

    def module(self, op: OpRecord) -> str:
        """The path of the innermost module call that the op is all of; "" where there is none."""
        line = self.line(op.call)
        return self._calls[line[-1]].path if line and self._shown[line[-1]] <= 1 else ""

    def run_of(self, call: CallId, op: OpRecord) -> Run | None:
        """The run whose first unit is the call, seen from an op in it."""
        return next((run for run in self._runs.get(op.id, ()) if run.call == call), None)

    def line(self, call: CallId | None) -> tuple[CallId, ...]:
        """The calls around a place in the pass, outermost first."""
        if call is None:
            return ()
        if call not in self._lines:
            self._lines[call] = (*self.line(self._calls[call].parent), call)
        return self._lines[call]

    def _drawn_line(self, op: OpRecord) -> tuple[CallId, ...]:
        line = self.line(op.call)
        if self._focus is not None:
            start = next((i for i, call in enumerate(line) if call in self._focus), len(line))
            return line[start:]
        return line if self.open_levels else line[1:]

    def _above(self, op: OpRecord) -> CallId | None:
        skipped = len(self.line(op.call)) - len(self._drawn_line(op))
        return self.line(op.call)[skipped - 1] if skipped else None

    def _is_focus(self, call: CallId) -> bool:
        return self._focus is not None and call in self._focus


def _matching(calls: Sequence[CallRecord], focus: str) -> list[CallId]:
    found = [call.id for call in calls if focus in (call.path, f"{call.path}:{call.number}")]
    if found:
        # A call inside another of them, as in a recursion, is drawn there.
        inner = {call.id for call in calls if call.parent in found and call.id in found}
        return [call for call in found if call not in inner]
    near = difflib.get_close_matches(focus, {call.path for call in calls}, n=6, cutoff=0.5)
    hint = f"; near it are {', '.join(sorted(near))}" if near else ""
    raise LookupFailedError(f"no module {focus!r} ran in this pass{hint}")

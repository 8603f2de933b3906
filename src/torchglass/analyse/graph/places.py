"""Where in a picture of a trace an op stands: in which boxes, or inside which closed module."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence

from torchglass.analyse.graph.repeats import Run
from torchglass.errors import LookupFailedError
from torchglass.records.trace import Call, CallId, Op, OpId

Surrounding = CallId | Run
"""What is drawn as a box: a module call, or several neighbours that run again and again."""


class Places:
    """The boxes around each op, outermost first."""

    def __init__(
        self,
        calls: Sequence[Call],
        ops: Sequence[Op],
        *,
        shown: Iterable[Op],
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

    def has(self, op: Op) -> bool:
        """Whether it is inside what is drawn, not merely next to it."""
        return self._focus is None or any(call in self._focus for call in self.line(op.call))

    def closed(self, op: Op) -> CallId | None:
        """The call that is drawn as one node and has the op inside it."""
        if self._depth is None:
            return None
        level = self._depth + self.open_levels - 1
        line = self._drawn_line(op)
        # A module that is a single op tells more as that op.
        return line[level] if len(line) > level and self._shown[line[level]] > 1 else None

    def around(self, op: Op) -> list[Surrounding]:
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

    def module(self, op: Op) -> str:
        """The path of the innermost module call that the op is all of; "" where there is none."""
        line = self.line(op.call)
        return self._calls[line[-1]].path if line and self._shown[line[-1]] <= 1 else ""

    def run_of(self, call: CallId, op: Op) -> Run | None:
        """The run whose first unit is the call, seen from an op in it."""
        return next((run for run in self._runs.get(op.id, ()) if run.call == call), None)

    def line(self, call: CallId | None) -> tuple[CallId, ...]:
        """The calls around a place in the pass, outermost first."""
        if call is None:
            return ()
        if call not in self._lines:
            self._lines[call] = (*self.line(self._calls[call].parent), call)
        return self._lines[call]

    def _drawn_line(self, op: Op) -> tuple[CallId, ...]:
        line = self.line(op.call)
        if self._focus is not None:
            start = next((i for i, call in enumerate(line) if call in self._focus), len(line))
            return line[start:]
        return line if self.open_levels else line[1:]

    def _above(self, op: Op) -> CallId | None:
        skipped = len(self.line(op.call)) - len(self._drawn_line(op))
        return self.line(op.call)[skipped - 1] if skipped else None

    def _is_focus(self, call: CallId) -> bool:
        return self._focus is not None and call in self._focus


def _matching(calls: Sequence[Call], focus: str) -> list[CallId]:
    found = [call.id for call in calls if focus in (call.path, f"{call.path}:{call.number}")]
    if found:
        # A call inside another of them, as in a recursion, is drawn there.
        inner = {call.id for call in calls if call.parent in found and call.id in found}
        return [call for call in found if call not in inner]
    near = difflib.get_close_matches(focus, {call.path for call in calls}, n=6, cutoff=0.5)
    hint = f"; near it are {', '.join(sorted(near))}" if near else ""
    raise LookupFailedError(f"no module {focus!r} ran in this pass{hint}")

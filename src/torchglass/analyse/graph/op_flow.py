"""What flows between the ops of a trace, with views skipped, and which boxes each op is in."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from torchglass.analyse.graph.repeats import Repeat
from torchglass.analyse.signatures import argument_name, signature
from torchglass.errors import LookupFailedError
from torchglass.records.tensors import TensorSpec
from torchglass.records.trace import CallId, CallRecord, Operand, OpId, OpRecord

_VIEWS = frozenset(
    {
        *("adjoint", "alias", "asstrided", "broadcastto", "chunk", "contiguous", "data", "detach"),
        *("diagonal", "dsplit", "expand", "expandas", "flatten", "getitem", "h", "hsplit", "imag"),
        *("mh", "moveaxis", "movedim", "mt", "narrow", "permute", "ravel", "real", "reshape"),
        *("reshapeas", "select", "split", "splitwithsizes", "squeeze", "swapaxes", "swapdims"),
        *("t", "tensorsplit", "transpose", "unbind", "unflatten", "unsqueeze", "view", "viewas"),
        *("viewascomplex", "viewasreal", "vsplit"),
    }
)
_COMMUTATIVE = frozenset(
    {
        *("add", "and", "bitwiseand", "bitwiseor", "bitwisexor", "eq", "iadd", "imul"),
        *("logicaland", "logicalor", "logicalxor", "maximum", "minimum", "mul", "multiply", "ne"),
        *("or", "radd", "rmul", "xor"),
    }
)


@dataclass(frozen=True, slots=True)
class Link:
    """A tensor that one op produced and another used."""

    source: OpId
    output: int
    """Which output of the source."""
    target: OpId
    argument: str = ""
    """The argument name of the target, if the order of its arguments matters."""


@dataclass(slots=True)
class OpInputs:
    """The inputs of an op, traced back through ops that are not drawn."""

    made: list[tuple[OpId, int, str]] = field(default_factory=list)
    """The producing op, its output index, and the argument position."""
    parameters: dict[str, TensorSpec] = field(default_factory=dict)
    buffers: dict[str, TensorSpec] = field(default_factory=dict)


class OpFlow:
    """Which ops are drawn, and which tensors flow between them."""

    def __init__(self, ops: Sequence[OpRecord], *, hide_views: bool, hide_buffers: bool) -> None:
        self._ops = ops
        hidden = {op.id for op in ops if _only_looks(op)} if hide_views else set()
        if hide_buffers:
            hidden.update(_bookkeeping(ops))
        computed = any(op.kind == "op" and op.id not in hidden for op in ops)
        self.hidden: frozenset[OpId] = frozenset(hidden if computed else ())
        self.taken: list[OpInputs] = []
        for op in ops:
            self.taken.append(self.follow(op.operands))

    def links(self) -> Iterator[Link]:
        """Each tensor that flows between drawn ops, in the order of the using ops."""
        for op in self._ops:
            if op.id not in self.hidden:
                yield from links_into(op, self.taken[op.id])

    def follow(self, operands: Iterable[Operand]) -> OpInputs:
        """The inputs of an op with these operands."""
        taken = OpInputs()
        for operand in operands:
            if operand.parameter:
                taken.parameters[operand.parameter] = operand.spec
            if operand.buffer:
                taken.buffers[operand.buffer] = operand.spec
            # If a tensor was written through a view, several ops each produced a part of it.
            for parent in operand.parents:
                output = operand.output if parent == operand.op else 0
                if parent not in self.hidden:
                    taken.made.append((parent, output, operand.place))
                    continue
                behind = self.taken[parent]
                taken.parameters |= behind.parameters
                taken.buffers |= behind.buffers
                taken.made += [(op, number, operand.place) for op, number, _ in behind.made]
        return taken


def links_into(op: OpRecord, taken: OpInputs) -> Iterator[Link]:
    """The tensors that an op takes from other ops."""
    ordered = len(taken.made) > 1 and op.type not in _COMMUTATIVE
    names = signature(op.function)
    for source, output, place in taken.made:
        yield Link(source, output, op.id, argument_name(place, names) if ordered else "")


def from_input(ops: Sequence[OpRecord]) -> list[bool]:
    """Whether each op depends on an input of the pass, directly or not."""
    found: list[bool] = []
    for op in ops:
        found.append(op.kind == "input" or any(found[parent] for parent in op.parents))
    return found


def _only_looks(op: OpRecord) -> bool:
    return (
        op.kind == "op"
        and op.type in _VIEWS
        and not op.writes
        and len(op.operands) == 1
        and bool(op.outputs)
    )


def _bookkeeping(ops: Sequence[OpRecord]) -> Iterator[OpId]:
    """Ops that only change buffers, as batch norm does when it counts its batches."""
    used = {parent for op in ops for parent in op.parents}
    for op in ops:
        only_buffers = all(operand.buffer for operand in op.operands)
        if op.writes and op.operands and only_buffers and op.id not in used:
            yield op.id


BoxSource = CallId | Repeat
"""The source of a box: a module call, or a repeat of several neighbours."""


class BoxPlacement:
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
        self._runs: dict[OpId, list[Repeat]] = {}

    @property
    def bases(self) -> Sequence[CallId | None]:
        """The calls whose contents are drawn; None for everything."""
        if self._focus is not None:
            return self._focus
        return self._roots if len(self._roots) == 1 else (None,)

    @property
    def open_levels(self) -> int:
        """The number of levels that are always boxes: a focus, or several roots."""
        return int(self.bases != self._roots)

    def fold(self, runs: Iterable[Repeat]) -> list[OpId]:
        """Add the repeats; returns for each op the op that is drawn in its place."""
        drawn = list(range(len(self._ops)))
        for run in runs:
            for op in run.unit:
                self._runs.setdefault(OpId(op), []).append(run)
            for op in run.later:
                drawn[op] = op - run.size * ((op - run.start) // run.size)
        # The replacement of an op comes before it, so its own replacement is known by then.
        for op, other in enumerate(drawn):
            drawn[op] = drawn[other] if other != op else op
        return [OpId(op) for op in drawn]

    def has(self, op: OpRecord) -> bool:
        """Whether an op is inside the drawn part, not only next to it."""
        return self._focus is None or any(call in self._focus for call in self.line(op.call))

    def closed(self, op: OpRecord) -> CallId | None:
        """The closed call, drawn as one node, that contains the op."""
        if self._depth is None:
            return None
        level = self._depth + self.open_levels - 1
        line = self._drawn_line(op)
        # A module with a single op is drawn as that op, which says more.
        return line[level] if len(line) > level and self._shown[line[level]] > 1 else None

    def around(self, op: OpRecord) -> list[BoxSource]:
        """The boxes around an op or around the closed call that it is in."""
        closed = self.closed(op)
        runs = self._runs.get(op.id, ())
        boxes: list[BoxSource] = []
        line = self._drawn_line(op)
        whole = self.line(op.call)
        above = whole[len(whole) - len(line) - 1] if len(whole) > len(line) else None
        for parent, call in zip((above, *line), (*line, None), strict=True):
            boxes += [run for run in runs if run.call is None and run.parent == parent]
            if call is None or call == closed:
                break
            if self._shown[call] > 1 or self.repeat_of(call, op) or call in (self._focus or ()):
                boxes.append(call)
        return boxes

    def module(self, op: OpRecord) -> str:
        """The path of the innermost module whose only op this is; "" if there is none."""
        line = self.line(op.call)
        return self._calls[line[-1]].path if line and self._shown[line[-1]] <= 1 else ""

    def repeat_of(self, call: CallId, op: OpRecord) -> Repeat | None:
        """The repeat around an op whose first unit is the call."""
        return next((run for run in self._runs.get(op.id, ()) if run.call == call), None)

    def line(self, call: CallId | None) -> tuple[CallId, ...]:
        """The calls around a call and itself, outermost first."""
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


def _matching(calls: Sequence[CallRecord], focus: str) -> list[CallId]:
    found = [call.id for call in calls if focus in (call.path, f"{call.path}:{call.number}")]
    if found:
        # A call inside another of them, as in recursion, is drawn there.
        inner = {call.id for call in calls if call.parent in found and call.id in found}
        return [call for call in found if call not in inner]
    near = difflib.get_close_matches(focus, {call.path for call in calls}, n=6, cutoff=0.5)
    hint = f"; did you mean {', '.join(sorted(near))}?" if near else ""
    raise LookupFailedError(f"no module {focus!r} ran in this pass{hint}")

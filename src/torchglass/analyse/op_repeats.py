"""Which ops a graph shows and what flows between them, and which parts of a pass repeat."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from torchglass.analyse.signatures import argument_name, signature
from torchglass.analyse.trace import Label
from torchglass.errors import LookupFailedError
from torchglass.records.model import TensorSpec
from torchglass.records.trace import CallId, CallRecord, Operand, OpId, OpRecord

_LONGEST_UNIT = 64
"""The most consecutive ops and module calls that can be one unit."""
_WORTH_FOLDING = 4
"""Folding must save at least this many drawn ops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """Consecutive units with the same structure and data flow, each with its own layers."""

    parent: CallId | None
    """The call in which the units run."""
    start: OpId
    """The first op of the first unit."""
    size: int
    """The ops of a unit."""
    times: int
    items: tuple[CallId | OpId, ...]
    """The calls and ops of the first unit, in order."""
    call: CallId | None = None
    """The module call that is the first unit; None if a unit is several calls or ops."""
    last_call: CallId | None = None
    """The module call that is the last unit."""

    @property
    def unit(self) -> range:
        """The ops of the first unit."""
        return range(self.start, self.start + self.size)

    @property
    def later(self) -> range:
        """The ops of all other units."""
        return range(self.start + self.size, self.start + self.size * self.times)

    @property
    def last(self) -> OpId:
        """The last op of the last unit."""
        return OpId(self.start + self.size * self.times - 1)


@dataclass(frozen=True, slots=True)
class _Item:
    """A child of a call: an inner call with all its ops, or an op of the call itself."""

    call: CallId | None
    start: int
    end: int
    build: int
    """Equal for two items with the same structure."""


class RepeatFinder:
    """Finds the repeats of a trace; inner ones only in the first unit of outer ones."""

    def __init__(
        self,
        ops: Sequence[OpRecord],
        calls: Sequence[CallRecord],
        labels: Sequence[Label],
        *,
        classes: Mapping[str, str],
        hidden: Container[OpId],
    ) -> None:
        self._ops = ops
        self._calls = calls
        self._labels = labels
        self._classes = classes
        self._hidden = hidden
        self._children = _children(ops)
        self._inside = _contents(ops, calls)
        self._numbers: dict[Hashable, int] = {}
        self._items: dict[CallId | None, list[_Item]] = {}
        self._build_all()

    def below(self, call: CallId | None, *, depth: int | None = None) -> Iterator[Repeat]:
        """The repeats among the children of a call and, up to `depth` levels, below."""
        if depth is not None and depth <= 0:
            return
        items = self._items.get(call, [])
        place = 0
        while place < len(items):
            run = self._run_at(call, items, place, closed=depth == 1)
            shown = items[place : place + (len(run.items) if run else 1)]
            if run:
                yield run
            for item in shown:
                if item.call is not None:
                    yield from self.below(item.call, depth=None if depth is None else depth - 1)
            place += len(shown) * (run.times if run else 1)

    def _run_at(
        self, parent: CallId | None, items: Sequence[_Item], place: int, *, closed: bool
    ) -> Repeat | None:
        best: Repeat | None = None
        for period in range(1, min(_LONGEST_UNIT, (len(items) - place) // 2) + 1):
            known = best is not None and period % len(best.items) == 0
            if known or items[place].build != items[place + period].build:
                continue
            run = self._longest(parent, items, place, period)
            covered = run.size * run.times
            if run.times > 1 and (best is None or covered > best.size * best.times):
                best = run
        if best is None or self._drawn(best, closed) * (best.times - 1) < _WORTH_FOLDING:
            return None
        return best

    def _longest(
        self, parent: CallId | None, items: Sequence[_Item], place: int, period: int
    ) -> Repeat:
        first = items[place : place + period]
        start, size = first[0].start, first[-1].end - first[0].start
        alike = takewhile(
            lambda times: (
                _builds(items, place + times * period, period) == _builds(items, place, period)
                and self._continues(start, size, times)
            ),
            range(1, len(items) // period),
        )
        times = self._without_leaks(start, size, 1 + sum(1 for _ in alike))
        last = items[place + (times - 1) * period]
        single = period == 1
        return Repeat(
            parent=parent,
            start=OpId(start),
            size=size,
            times=times,
            items=tuple(OpId(item.start) if item.call is None else item.call for item in first),
            call=first[0].call if single else None,
            last_call=last.call if single else None,
        )

    def _continues(self, start: int, size: int, times: int) -> bool:
        """Whether unit number `times` has the same inputs as the previous one."""
        begin = start + times * size
        for op in range(begin, begin + size):
            before = op - size
            if self._labels[op].layer == self._labels[before].layer:
                return False
            mine = list(_references(self._ops[op]))
            theirs = list(_references(self._ops[before]))
            if len(mine) != len(theirs) or not all(
                _alike(own, other, begin, size, is_second=times == 1)
                for own, other in zip(mine, theirs, strict=True)
            ):
                return False
        return True

    def _without_leaks(self, start: int, size: int, times: int) -> int:
        """The number of units whose results go only to the next unit or to an output."""
        for number in range(times - 1):
            begin = start + number * size
            beyond = begin + 2 * size
            for op in range(begin, begin + size):
                if any(
                    child >= beyond and self._ops[child].kind != "output"
                    for child in self._children[op]
                ):
                    return number + 1
        return times

    def _drawn(self, run: Repeat, closed: bool) -> int:
        if closed:
            return len(run.items)
        return sum(op not in self._hidden for op in run.unit)

    def _build_all(self) -> None:
        """Number the structures of all calls, innermost first, as they depend on their children."""
        builds: dict[CallId, int] = {}
        for call in [*reversed(self._calls), None]:
            parent = call.id if call is not None else None
            items = [self._item(child, builds) for child in self._inside.get(parent, ())]
            self._items[parent] = [item for item in items if item.end > item.start]
            if call is not None:
                builds[call.id] = self._number(
                    self._classes.get(call.path, ""),
                    tuple((item.build, self._name(item, call)) for item in items),
                )

    def _item(self, child: CallId | OpRecord, builds: Mapping[CallId, int]) -> _Item:
        if isinstance(child, OpRecord):
            return _Item(None, child.id, child.id + 1, self._number(*_build(child)))
        inner = self._items[child]
        if not inner:
            return _Item(child, 0, 0, builds[child])
        return _Item(child, inner[0].start, inner[-1].end, builds[child])

    def _name(self, item: _Item, parent: CallRecord) -> str:
        return (
            self._calls[item.call].path.removeprefix(parent.path) if item.call is not None else ""
        )

    def _number(self, *key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))


def _contents(
    ops: Sequence[OpRecord], calls: Sequence[CallRecord]
) -> dict[CallId | None, list[CallId | OpRecord]]:
    """The ops and calls directly in each call, in order of their start."""
    inside: dict[CallId | None, list[CallId | OpRecord]] = {}
    seen: set[CallId] = set()
    for op in ops:
        unseen: list[CallId] = []
        call = op.call
        while call is not None and call not in seen:
            seen.add(call)
            unseen.append(call)
            call = calls[call].parent
        for call in reversed(unseen):
            inside.setdefault(calls[call].parent, []).append(call)
        inside.setdefault(op.call, []).append(op)
    return inside


def _children(ops: Sequence[OpRecord]) -> list[list[OpId]]:
    children: list[list[OpId]] = [[] for _ in ops]
    for op in ops:
        for parent in op.parents:
            children[parent].append(op.id)
    return children


def _build(op: OpRecord) -> tuple[Hashable, ...]:
    return (
        op.kind,
        op.function,
        op.settings,
        tuple((value.spec.shape, value.spec.dtype) for value in op.outputs),
        tuple(map(_operand_build, op.operands)),
    )


def _operand_build(operand: Operand) -> Hashable:
    return (
        operand.place,
        operand.spec.shape,
        operand.spec.dtype,
        operand.output,
        bool(operand.parameter),
        bool(operand.buffer),
    )


def _builds(items: Sequence[_Item], place: int, period: int) -> list[int]:
    return [item.build for item in items[place : place + period]]


def _references(op: OpRecord) -> Iterable[OpId | None]:
    for operand in op.operands:
        yield operand.op
        yield from operand.writers


def _alike(
    mine: OpId | None, theirs: OpId | None, begin: int, size: int, *, is_second: bool
) -> bool:
    """Whether an input of the unit at `begin` has the same origin as in the previous unit."""
    if mine is None or theirs is None:
        return mine is theirs
    if mine >= begin:
        return mine - size == theirs
    if mine >= begin - size:
        # The first unit takes from before the repeat what the others take from the previous unit.
        return theirs < begin - size if is_second else mine - size == theirs
    return mine == theirs


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
        hidden = {op.id for op in ops if is_view_op(op)} if hide_views else set()
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


def is_view_op(op: OpRecord) -> bool:
    """Whether an op only changes the view of its one tensor."""
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
"""The source of a box: a module call, or a repeat of several neighbors."""


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

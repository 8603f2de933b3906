"""Finds parts of a pass that repeat the same computation, such as a stack of blocks."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from torchglass.analyse.op_names import Label
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

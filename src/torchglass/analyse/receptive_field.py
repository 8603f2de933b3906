"""Which positions of an input each position of an op's output depends on.

Each op maps ranges of positions: a convolution widens them, a stride spreads them, attention makes
them cover everything. Ranges are composed along the trace, for each axis of an input separately.
They are computed twice: once as they are, where padding is empty, and once as if there were
no borders, which gives the size that is quoted for an architecture even if the input is smaller.

A range is the smallest that contains all positions: the holes of a dilated convolution count. An op
that reads positions chosen by values, such as `gather`, makes what follows unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from torchglass.analyse.op_reach import Reach, Unknown
from torchglass.analyse.reach_rules import output_reaches
from torchglass.errors import LookupFailedError
from torchglass.records.trace import OpId, TraceRecord


@dataclass(frozen=True, slots=True)
class FieldAxis:
    """What is seen along one axis of an input."""

    length: int
    """The length of the input along this axis."""
    size: int
    """Positions that one position of the output sees; more than `length` if borders cut it."""
    stride: float
    """How far that moves from one position of the output to the next; 0 if it does not."""
    start: int
    """The first position that the first position of the output sees; negative in padding."""
    is_global: bool
    """Whether every position of the output sees the whole axis, however long it is."""

    def __str__(self) -> str:
        if self.is_global:
            return f"all {self.length}"
        if self.size == 1 and self.stride == 1 and self.start == 0:
            return "own index"
        moves = f", stride {self.stride:g}" if self.stride else ""
        return f"{self.size} of {self.length}{moves}, starts at {self.start}"


@dataclass(frozen=True, slots=True)
class ReceptiveField:
    """The part of an input that an op sees; print it, or ask for one position with `at`."""

    op: str
    input: str
    axes: tuple[FieldAxis, ...]
    """For each axis of the input."""
    _reaches: tuple[Reach, ...]
    _shape: tuple[int, ...]

    @property
    def size(self) -> tuple[int, ...]:
        """Positions that one position of the output sees, for each axis of the input."""
        return tuple(axis.length if axis.is_global else axis.size for axis in self.axes)

    @property
    def stride(self) -> tuple[float, ...]:
        """How far that moves from one position of the output to the next."""
        return tuple(axis.stride for axis in self.axes)

    @property
    def start(self) -> tuple[int, ...]:
        """The first position that the first position of the output sees."""
        return tuple(axis.start for axis in self.axes)

    def at(self, *position: int) -> tuple[range, ...] | None:
        """The positions of the input that one position of the output sees, borders included.

        Args:
            *position: An index of the op's output, one number per axis.

        Returns:
            A range for each axis of the input; None if it sees nothing of it.

        Raises:
            LookupFailedError: The output has no such position.
        """
        is_known = len(position) == len(self._shape) and all(
            -length <= place < length for place, length in zip(position, self._shape, strict=False)
        )
        if not is_known:
            raise LookupFailedError(
                f"{self.op} has the shape {self._shape}, so there is no position {position}"
            )
        ranges = [reach.at(position) for reach in self._reaches]
        return tuple(ranges) if all(ranges) else None

    def __str__(self) -> str:
        seen = "×".join(map(str, self.size))
        whole = "×".join(str(axis.length) for axis in self.axes)
        lines = [f"{self.op} sees {seen} of {self.input} ({whole})"]
        lines += [f"  axis {number}: {axis}" for number, axis in enumerate(self.axes)]
        return "\n".join(lines)

    def line(self) -> str:
        """The field in one line."""
        seen = "×".join(map(str, self.size))
        whole = "×".join(str(axis.length) for axis in self.axes)
        moving = [axis for axis in self.axes if not axis.is_global and str(axis) != "own index"]
        starts = ", ".join(str(axis.start) for axis in moving)
        strides = "×".join(f"{axis.stride:g}" for axis in moving if axis.stride)
        rest = [f"stride {strides}"] if strides else []
        rest += [f"starts at {starts}"] if moving else []
        return ", ".join([f"{seen} of {self.input} ({whole})", *rest])


def receptive_field(
    trace: TraceRecord, op: OpId, input: OpId, *, label: str = ""
) -> ReceptiveField:
    """The part of an input that an op sees."""
    needed = _ancestors(trace, op)
    found = [_reaches_of(trace, needed, op, input, exact=exact) for exact in (True, False)]
    return _field(trace, op, input, found, label)


def _field(
    trace: TraceRecord,
    op: OpId,
    input: OpId,
    found: Sequence[Sequence[Reach] | None],
    label: str = "",
) -> ReceptiveField:
    """The field from the reaches of an op, with borders and without."""
    shape = trace.ops[input].outputs[0].spec.shape or ()
    if found[0] is None or found[1] is None:
        raise LookupFailedError(f"{label or op} does not depend on {_name(trace, input)}")
    output = trace.ops[op].outputs[0].spec.shape or ()
    axes = tuple(
        _summary(bordered, free, length)
        for bordered, free, length in zip(found[0], found[1], shape, strict=True)
    )
    return ReceptiveField(label, _name(trace, input), axes, tuple(found[0]), tuple(output))


def field_lines(trace: TraceRecord) -> Mapping[OpId, str]:
    """The field of every op in the first input that it depends on, in one line.

    All ops are composed in one pass for each input. Ops whose field is not known are left out.
    """
    lines: dict[OpId, str] = {}
    every = {op.id for op in trace.ops}
    for source in (op.id for op in trace.ops if op.kind == "input" and op.outputs):
        both = [_compose(trace, every, source, exact=exact) for exact in (True, False)]
        for op in trace.ops:
            found = [one.get((op.id, 0)) for one in both]
            if op.kind != "op" or op.id in lines or not all(isinstance(one, list) for one in found):
                continue
            reaches = cast("list[list[Reach]]", found)
            lines[op.id] = _field(trace, op.id, source, reaches).line()
    return lines


def field_line(trace: TraceRecord, op: OpId, *, most_ops: int) -> str:
    """The field of an op in the first input that it depends on, in one line.

    "" for an input, for what depends on none, and after more than `most_ops` ops.
    """
    if trace.ops[op].kind == "input" or op > most_ops:
        return ""
    try:
        first = next(inputs_of(trace, op), None)
        return "" if first is None else receptive_field(trace, op, first).line()
    except LookupFailedError as error:
        _, found, reason = str(error).partition(" is not known: ")
        return f"not known: {reason}" if found else ""


def inputs_of(trace: TraceRecord, op: OpId) -> Iterator[OpId]:
    """The inputs of the pass that an op depends on."""
    for number in sorted(_ancestors(trace, op)):
        if trace.ops[number].kind == "input":
            yield number


def _ancestors(trace: TraceRecord, op: OpId) -> set[OpId]:
    found, left = {op}, [op]
    while left:
        for parent in trace.ops[left.pop()].parents:
            if parent not in found and parent < len(trace.ops):
                found.add(parent)
                left.append(parent)
    return found


def _name(trace: TraceRecord, input: OpId) -> str:
    return trace.ops[input].function or "the input"


def _reaches_of(
    trace: TraceRecord, needed: set[OpId], goal: OpId, input: OpId, *, exact: bool
) -> Sequence[Reach] | None:
    """The reach of an op along each axis of an input; None if it does not depend on it."""
    made = _compose(trace, needed, input, exact=exact)[goal, 0]
    if isinstance(made, Unknown):
        raise LookupFailedError(f"the receptive field is not known: {made.reason}")
    return made


def _compose(
    trace: TraceRecord, needed: set[OpId], input: OpId, *, exact: bool
) -> Mapping[tuple[OpId, int], list[Reach] | Unknown | None]:
    """The reaches of each output of some ops along each axis of an input."""
    rank = len(trace.ops[input].outputs[0].spec.shape or ())
    reaches: dict[tuple[OpId, int], list[Reach] | Unknown | None] = {
        (input, 0): [
            Reach.of_input(trace.ops[input].outputs[0].spec.shape or (), axis)
            for axis in range(rank)
        ]
    }
    for number in sorted(needed - {input}):
        op = trace.ops[number]
        operands = [
            None if one.op is None else reaches.get((one.op, one.output)) for one in op.operands
        ]
        for index, made in enumerate(output_reaches(op, operands, rank, exact=exact)):
            reaches[number, index] = made
    return reaches


def _summary(bordered: Reach, free: Reach, length: int) -> FieldAxis:
    moving = [axis for axis, count in enumerate(free.low.shape) if count > 1]
    start = int(free.low.flat[0])
    size = int((free.high - free.low).max()) + 1
    if not moving:
        low, high = int(bordered.low.min()), int(bordered.high.max())
        whole = low <= 0 and high >= length - 1
        return FieldAxis(length, high - low + 1, 0.0, low, whole)
    stride = 0.0
    if len(moving) == 1:
        line = free.low.reshape(-1)
        stride = float(line[-1] - line[0]) / (len(line) - 1)
    return FieldAxis(length, size, stride, start, False)

"""How tensors flow between the ops of a trace, with views skipped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from torchglass.analyse.signatures import argument_name, signature
from torchglass.records.tensors import TensorSpec
from torchglass.records.trace import Operand, OpId, OpRecord

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
        *(
            "add",
            "and",
            "bitwiseand",
            "bitwiseor",
            "bitwisexor",
            "eq",
            "iadd",
            "imul",
            "logicaland",
        ),
        *("logicalor", "logicalxor", "maximum", "minimum", "mul", "multiply", "ne", "or", "radd"),
        *("rmul", "xor"),
    }
)


@dataclass(frozen=True, slots=True)
class Link:
    """A tensor that one op made and another took."""

    source: OpId
    output: int
    """Which output of the source."""
    target: OpId
    argument: str = ""
    """What the target calls it, where the order of its arguments matters."""


@dataclass(slots=True)
class Taken:
    """What an op takes, its arguments followed back past the ops that are not drawn."""

    made: list[tuple[OpId, int, str]] = field(default_factory=list)
    """The op, which output of it, and the place among the arguments."""
    parameters: dict[str, TensorSpec] = field(default_factory=dict)
    buffers: dict[str, TensorSpec] = field(default_factory=dict)


class Flow:
    """Which ops are seen, and what each of them takes from which other."""

    def __init__(self, ops: Sequence[OpRecord], *, hide_views: bool, hide_buffers: bool) -> None:
        self._ops = ops
        hidden = {op.id for op in ops if _only_looks(op)} if hide_views else set()
        if hide_buffers:
            hidden.update(_bookkeeping(ops))
        computed = any(op.kind == "op" and op.id not in hidden for op in ops)
        self.hidden: frozenset[OpId] = frozenset(hidden if computed else ())
        self.taken: list[Taken] = []
        for op in ops:
            self.taken.append(self.follow(op.operands))

    def links(self) -> Iterator[Link]:
        """Each tensor that goes from one seen op to another, in the order of the takers."""
        for op in self._ops:
            if op.id not in self.hidden:
                yield from links_into(op, self.taken[op.id])

    def follow(self, operands: Iterable[Operand]) -> Taken:
        """What an op with these operands takes."""
        taken = Taken()
        for operand in operands:
            if operand.parameter:
                taken.parameters[operand.parameter] = operand.spec
            if operand.buffer:
                taken.buffers[operand.buffer] = operand.spec
            # Of a tensor that was written through a view of it, several ops made a part each.
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


def links_into(op: OpRecord, taken: Taken) -> Iterator[Link]:
    """The tensors that an op takes from others."""
    ordered = len(taken.made) > 1 and op.type not in _COMMUTATIVE
    names = signature(op.function)
    for source, output, place in taken.made:
        yield Link(source, output, op.id, argument_name(place, names) if ordered else "")


def from_input(ops: Sequence[OpRecord]) -> list[bool]:
    """Whether each op, however indirectly, depends on an input of the pass."""
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

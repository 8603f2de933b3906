"""A module call of a trace, as a user holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchglass.records import trace as records
from torchglass.records.model import Module
from torchglass.records.trace import Value

if TYPE_CHECKING:
    from torchglass.results.op import Op
    from torchglass.results.trace import Trace


class Call:
    """One run of one module."""

    __slots__ = ("__weakref__", "record", "trace")

    def __init__(self, trace: Trace, record: records.Call) -> None:
        self.trace = trace
        self.record = record

    @property
    def path(self) -> str:
        """Dotted path of the module; "" is the model itself."""
        return self.record.path

    @property
    def number(self) -> int:
        """Which call of that module it is, from 1."""
        return self.record.number

    @property
    def label(self) -> str:
        """The module's path, with ":2" where the module ran several times."""
        return self.trace.anatomy.call_name(self.record)

    @property
    def module(self) -> Module | None:
        """The module in the model; None for one that is not part of it."""
        return self.trace.model.find(self.path)

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The tensors that went in: where each stood, what it was, and the op that made it."""
        return self.record.inputs

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The tensors that it returned."""
        return self.record.outputs

    @property
    def seconds(self) -> float:
        """How long it took, inner calls included."""
        return self.record.total_ns / 1e9

    @property
    def parent(self) -> Call | None:
        """The call that made this one."""
        return None if self.record.parent is None else self.trace.calls[self.record.parent]

    @property
    def children(self) -> tuple[Call, ...]:
        """The calls that this one made."""
        return tuple(call for call in self.trace.calls if call.record.parent == self.record.id)

    @property
    def ops(self) -> tuple[Op, ...]:
        """The ops that ran in it, inner calls included."""
        inside = self.trace.anatomy.ops_of_call[self.record.id]
        return tuple(self.trace.ops[op] for op in inside)

    def __repr__(self) -> str:
        count = len(self.ops)
        return f"<call {self.label or 'of the model'}: {count} op{'s' * (count != 1)}>"

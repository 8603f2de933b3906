"""What one pass through a model did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

from torchglass.records.tensors import TensorSpec

CallId = NewType("CallId", int)


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A tensor that went into or came out of a call, and its place there."""

    place: str
    """"0" for the first positional argument, "mask" for a keyword, "hidden.0" inside containers."""
    spec: TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One run of one module's forward. A module run twice has two calls."""

    id: CallId
    parent: CallId | None
    path: str
    """Dotted path of the module in the model; "" is the model itself."""
    number: int
    """Counted per module from 1."""
    inputs: tuple[Value, ...] = ()
    outputs: tuple[Value, ...] = ()
    start_ns: int = 0
    end_ns: int = 0

    @property
    def total_ns(self) -> int:
        """Time spent here, inner calls included."""
        return self.end_ns - self.start_ns

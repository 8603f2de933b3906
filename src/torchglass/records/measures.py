"""What the modules of a model take to run, a row for each, as tables and colours show it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleMeasure:
    """One module in one pass, all its calls together. What was not measured is None.

    `total_` includes the modules inside, `self_` does not.
    """

    path: str
    calls: int = 0
    total_forward_ns: int | None = None
    self_forward_ns: int | None = None
    total_backward_ns: int | None = None
    self_backward_ns: int | None = None
    total_forward_flops: int | None = None
    self_forward_flops: int | None = None
    total_backward_flops: int | None = None
    self_backward_flops: int | None = None
    total_activation_bytes: int | None = None
    """What is kept of it for the backward pass."""
    self_activation_bytes: int | None = None
    total_peak_bytes: int | None = None
    """The most that was allocated at once while it ran, above what there was before."""
    gradient_bytes: int | None = None
    output_shapes: tuple[tuple[int, ...], ...] = ()
    """Of the tensors that its last call returned."""


@dataclass(frozen=True, kw_only=True)
class Measures:
    """The rows of all modules that ran, and how they were measured."""

    rows: tuple[ModuleMeasure, ...] = ()
    notes: tuple[str, ...] = ()

"""What is said about a pass as a whole, the same in every view."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

from torchglass.analyse.trace.anatomy import Anatomy, parameters_of
from torchglass.records.model import Model
from torchglass.records.tensors import TensorSpec
from torchglass.records.trace import OpId
from torchglass.views.formats import format_bytes

T = TypeVar("T")

Saved = Collection[tuple[OpId, int]]
"""The tensors that were saved, by number of the op and of its output."""


def structure(anatomy: Anatomy, model: Model) -> str:
    """The shape of the graph, and how many modules the model has."""
    loops = anatomy.loops
    kind = f"recurrent (at most {loops} loops)" if loops > 1 else "purely feedforward"
    branching = "with branching" if anatomy.is_branching else "without branching"
    modules = sum(module.alias_of is None for module in model.modules) - 1
    return f"{kind}, {branching}; {modules} total modules"


def tensors(anatomy: Anatomy, saved: Saved) -> str:
    """How many tensors the pass made, and how many of them are here."""
    specs = {
        (op.id, index): value.spec
        for op in anatomy.record.ops
        for index, value in enumerate(op.outputs)
    }
    kept = [specs[key] for key in saved if key in specs]
    return f"{_sum(specs.values())} computed in forward pass; {_sum(kept)} saved"


def parameters(anatomy: Anatomy) -> str:
    """How many ops used parameters, and how much those are, each counted once."""
    operations = sum(bool(parameters_of(op)) for op in anatomy.record.ops)
    specs = anatomy.parameters.values()
    elements = sum(spec.elements for spec in specs)
    size = format_bytes(sum(spec.bytes for spec in specs))
    return f"{operations} parameter operations ({elements} params total; {size})"


def ends(items: Sequence[T], most: int) -> tuple[Sequence[T], int, Sequence[T]]:
    """The beginning of a long list, how many are left out of its middle, and its end."""
    if len(items) <= most:
        return items, 0, ()
    half = most // 2
    return items[:half], len(items) - 2 * half, items[-half:]


def _sum(specs: Collection[TensorSpec]) -> str:
    size = format_bytes(sum(spec.bytes for spec in specs))
    return f"{len(specs)} tensor{'s' * (len(specs) != 1)} ({size})"

"""A parameter or buffer of the model, as the ops of a trace used it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from torchglass.records.model import Slot
from torchglass.records.tensors import Stats
from torchglass.views.formats import format_shape, harmless

if TYPE_CHECKING:
    import torch

    from torchglass.results.op import Op
    from torchglass.results.trace import Trace


class Held:
    """A tensor that the model holds; it is found by its dotted name: `trace["bn.running_mean"]`."""

    parents: tuple[Op, ...] = ()

    def __init__(self, trace: Trace, name: str, slot: Slot) -> None:
        self.trace = trace
        self.label = name
        self.slot = slot

    @property
    def lookup_keys(self) -> tuple[int | str, ...]:
        """The key that means it."""
        return (self.label,)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Its shape."""
        return self.slot.spec.shape

    @property
    def dtype(self) -> str:
        """Its dtype: "float32"."""
        return self.slot.spec.dtype

    @property
    def device(self) -> str:
        """Where it is: "cuda:0"."""
        return self.slot.spec.device

    @property
    def bytes(self) -> int:
        """What it takes."""
        return self.slot.spec.bytes

    @property
    def tensor(self) -> torch.Tensor | None:
        """It, as it was when the pass began; None for a trace from a file, or if no op used it."""
        return self.trace.held_tensor(self.label)

    @property
    def tensor_contents(self) -> torch.Tensor | None:
        """Another name of `tensor`."""
        return self.tensor

    @property
    def gradient(self) -> torch.Tensor | None:
        """The gradient that it has now."""
        return self.tensor.grad if self.tensor is not None and self.tensor.is_leaf else None

    @cached_property
    def stats(self) -> Stats | None:
        """Its numbers summed up; None where there are none to see."""
        from torchglass.capture.tensor.describing import measure

        return measure(self.tensor) if self.tensor is not None else None

    @property
    def children(self) -> tuple[Op, ...]:
        """The ops that used it."""
        return tuple(
            op
            for op in self.trace.ops
            if any(self.label in (use.parameter, use.buffer) for use in op.record.operands)
        )

    def __repr__(self) -> str:
        kind = f"{format_shape(self.shape) or 'scalar'} {self.dtype}"
        used = ", ".join(op.label for op in self.children) or "no op"
        return f"<{self.slot.role} {harmless(self.label)}: {kind}, used by {used}>"

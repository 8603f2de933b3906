"""Something that can run, or that ran: a model with inputs, or a recorded forward."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from torchglass.capture.torch_internals import tree_map_only
from torchglass.whatif.execution import Execution, estimated_noise, execute, rounding_noise


class Runnable(Protocol):
    """A side of a comparison."""

    def execute(self) -> Execution:
        """Run once; every value is kept."""

    def measure_noise(self, execution: Execution, eps: float) -> None:
        """Find how far rounding moves each value, at best by another run."""


class Forward:
    """A model with inputs: something that can be run, and run again with changed rounding."""

    def __init__(self, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.model = model
        self.args, self.kwargs = inputs_for(model, args, kwargs)

    def execute(self) -> Execution:
        return execute(self.model, self.args, self.kwargs)

    def measure_noise(self, execution: Execution, eps: float) -> None:
        execution.noise = rounding_noise(execution, self.model, self.args, self.kwargs, eps)

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype of all floating-point parameters; None if there are several or none."""
        found = {one.dtype for one in self.model.parameters() if one.is_floating_point()}
        return found.pop() if len(found) == 1 else None

    def in_float32(self, rounded_to: torch.dtype) -> Forward:
        """A copy with the same weights and inputs, rounded to a dtype, that runs in float32."""
        copied = copy.deepcopy(self.model).to(rounded_to).float()

        def rounded(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(rounded_to).float() if tensor.is_floating_point() else tensor

        args, kwargs = tree_map_only(torch.Tensor, rounded, (self.args, self.kwargs))
        return Forward(copied, args, kwargs)


class Unrepeatable:
    """What cannot run again with other rounding, of which the noise is estimated."""

    def measure_noise(self, execution: Execution, eps: float) -> None:
        execution.noise = estimated_noise(execution, eps)
        execution.is_measured = False


class Recorded(Unrepeatable):
    """A forward that ran before, of which a trace is left."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution

    def execute(self) -> Execution:
        return self._execution


def in_float32(a: Runnable, b: Runnable) -> tuple[Forward, Execution, Execution] | None:
    """Both run in float32 with the same rounded weights, and a copy of `a` to run again.

    None if neither has half precision, or if one of them cannot run so.
    """
    if not (isinstance(a, Forward) and isinstance(b, Forward)):
        return None
    dtypes = [a.dtype, b.dtype]
    halves = [one for one in dtypes if one in (torch.bfloat16, torch.float16)]
    if None in dtypes or not halves:
        return None
    try:
        first, second = a.in_float32(halves[0]), b.in_float32(halves[0])
        return first, first.execute(), second.execute()
    except Exception:  # noqa: BLE001 - code may ask for a dtype, and not all models can be copied
        return None


def inputs_for(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The inputs on the device of a model, and in its dtype if it has one alone."""
    floats = {one.dtype for one in model.parameters() if one.is_floating_point()}
    dtype = floats.pop() if len(floats) == 1 else None
    device = next((one.device for one in model.parameters()), None)

    def fit(tensor: torch.Tensor) -> torch.Tensor:
        wanted = dtype if tensor.is_floating_point() else None
        return tensor.to(device=device, dtype=wanted)

    fitted: tuple[tuple[Any, ...], dict[str, Any]] = tree_map_only(
        torch.Tensor, fit, (tuple(args), dict(kwargs))
    )
    return fitted

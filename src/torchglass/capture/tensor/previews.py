"""What a person sees of a tensor: some of its numbers, and how they are spread."""

from __future__ import annotations

import math

import torch

_CORNER = 5
_MOST_SAMPLED = 1 << 16


def corner(tensor: torch.Tensor) -> str:
    """The first numbers of the last two dimensions as torch prints them, "..." if there are more.

    "" for a tensor that has no such numbers: sparse, nested, or one that holds no data.
    """
    try:
        # Neither a subclass nor a tracing mode is to see what printing does.
        with torch._C.DisableTorchFunction():
            if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_meta:
                return ""
            shown = tensor.detach()[(0,) * (tensor.dim() - 2)]
            shown = shown[(slice(_CORNER),) * shown.dim()]
            return f"{shown!s}{'...' if shown.numel() < tensor.numel() else ''}"
    except Exception:  # noqa: BLE001 - a tensor class is foreign code, and this is only its picture
        return ""


def histogram(tensor: torch.Tensor, bins: int = 16) -> tuple[float, ...]:
    """How many numbers lie in each of equal parts of the range, by a sample of a large tensor.

    Empty where there is nothing to tell apart, and for tensors that are not dense.
    """
    try:
        with torch._C.DisableTorchFunction():
            values = _sample(tensor.detach())
            values = values.abs() if values.is_complex() else values
            values = values.to(torch.float32).flatten()
            values = values[torch.isfinite(values)]
            low, high = (float(end) for end in torch.aminmax(values))
            counts = torch.histc(values, bins, low, high).tolist() if low < high else ()
            return tuple(counts)
    except Exception:  # noqa: BLE001 - a device or tensor class may lack any of these operations
        return ()


def _sample(values: torch.Tensor) -> torch.Tensor:
    """A view of a tensor that skips so many of its numbers that few enough remain."""
    for dim, size in enumerate(values.shape):
        step = min(math.ceil(values.numel() / _MOST_SAMPLED), size)
        if step > 1:
            values = values[(slice(None),) * dim + (slice(None, None, step),)]
    return values

"""The arguments of a forward, in the forms in which users pass them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from torchglass.errors import CaptureError

Size = Sequence[int]
Dtype = torch.dtype | str


class Arguments(NamedTuple):
    """What a forward is called with."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def arguments_from_data(data: Any) -> Arguments:
    """A tensor is one argument, a list or tuple is all of them, a mapping gives them by name."""
    if isinstance(data, Mapping):
        return Arguments((), dict(data))
    if isinstance(data, (list, tuple)):
        return Arguments(tuple(data), {})
    return Arguments((data,), {})


def arguments_from_sizes(
    sizes: Size | Iterable[Size],
    dtypes: Dtype | Sequence[Dtype] | None,
    device: torch.device,
    default_dtype: torch.dtype,
) -> Arguments:
    """A made-up tensor for each size: one size alone is `(1, 3, 224, 224)`, several are a list."""
    wanted = _sizes(sizes)
    if dtypes is None:
        kinds: list[Dtype] = [default_dtype] * len(wanted)
    elif isinstance(dtypes, (torch.dtype, str)):
        kinds = [dtypes] * len(wanted)
    else:
        kinds = list(dtypes)
    if len(kinds) != len(wanted):
        raise CaptureError(f"{len(wanted)} input sizes need as many dtypes, not {len(kinds)}")
    made = (
        make_tensor(size, _dtype(kind), device) for size, kind in zip(wanted, kinds, strict=True)
    )
    return Arguments(tuple(made), {})


def make_tensor(size: Size, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Random numbers for a float, always the same ones; zeros for all else."""
    if device.type == "meta":
        return torch.empty(size, dtype=dtype, device=device)
    if not (dtype.is_floating_point or dtype.is_complex):
        # Every embedding has a row 0.
        return torch.zeros(size, dtype=dtype, device=device)
    generator = torch.Generator("cpu").manual_seed(0)
    return torch.rand(size, generator=generator, device="cpu").to(dtype).to(device)


def _sizes(sizes: Size | Iterable[Size]) -> list[tuple[int, ...]]:
    listed: list[Any] = list(sizes)
    if all(isinstance(size, int) for size in listed):
        listed = [listed]
    try:
        return [tuple(map(int, size)) for size in listed]
    except (TypeError, ValueError):
        raise CaptureError(
            f"input_size is a size such as (1, 3, 224, 224) or a list of them, not {sizes!r}"
        ) from None


def _dtype(kind: Dtype) -> torch.dtype:
    if isinstance(kind, torch.dtype):
        return kind
    dtype = getattr(torch, kind.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise CaptureError(f"torch has no dtype {kind!r}")
    return dtype

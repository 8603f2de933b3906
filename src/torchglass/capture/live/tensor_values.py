"""The values of a tensor as the explorer shows them: slices, pictures and statistics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import adaptive_avg_pool2d
from torch.nn.parameter import is_lazy

from torchglass.analyse.histograms import joined
from torchglass.analyse.nonfinite_cause import not_finite_words
from torchglass.capture.guard.tensor_health import Health, look_again
from torchglass.capture.tensor.description import describe
from torchglass.capture.tensor.moments import measure
from torchglass.capture.torch_internals import DisableTorchFunction
from torchglass.errors import error_line
from torchglass.records.attributes import Index, LinearHistogram, Progress, TensorFacts
from torchglass.records.findings import Evidence, EvidenceRole, Finding
from torchglass.records.model import join_path
from torchglass.records.tensors import Stats

_SLAB = 1 << 22
"""Elements that are measured between two checks for cancellation."""
_FINER = 4
"""How many values are read per pixel, in each direction."""
_TO_NUMPY = {torch.float64, torch.float32, torch.complex64, torch.complex128, torch.bool}


def tensor_facts(tensor: torch.Tensor) -> TensorFacts:
    """How any tensor lies in memory."""
    spec = describe(tensor)
    unreadable = _unreadable(tensor)
    try:
        storage = tensor.untyped_storage().nbytes()
        stride, offset = tuple(tensor.stride()), int(tensor.storage_offset())
        contiguous = tensor.is_contiguous()
    except Exception:  # noqa: BLE001 - many tensors have neither strides nor a storage
        stride, offset, storage, contiguous = None, 0, 0, True
    return TensorFacts(
        spec=spec,
        stride=stride,
        offset=offset,
        storage_bytes=storage,
        contiguous=contiguous,
        requires_grad=tensor.requires_grad,
        grad_fn="" if tensor.grad_fn is None else tensor.grad_fn.name(),
        has_grad=tensor.is_leaf and tensor.grad is not None,
        unreadable=unreadable,
    )


def cut(tensor: torch.Tensor, index: Index, rows: range, columns: range) -> npt.NDArray[Any]:
    """Rows and columns of a slice, copied: the user's memory is not pinned by numpy."""
    with DisableTorchFunction():
        plane = _plane(tensor, index)[rows.start : rows.stop, columns.start : columns.stop]
        numbers: npt.NDArray[Any] = _for_numpy(plane).cpu().clone().numpy()
        return numbers


def image(tensor: torch.Tensor, index: Index, height: int, width: int) -> npt.NDArray[np.float32]:
    """A slice scaled to at most this many pixels; complex values by their magnitudes."""
    with DisableTorchFunction():
        plane = _plane(tensor, index)
        steps = [
            max(size // (_FINER * room), 1)
            for size, room in zip(plane.shape, (height, width), strict=True)
        ]
        pixels = _for_numpy(plane[:: steps[0], :: steps[1]]).cpu()
        pixels = (pixels.abs() if pixels.is_complex() else pixels).to(torch.float32)
        room = min(height, pixels.shape[0]), min(width, pixels.shape[1])
        fitted: npt.NDArray[np.float32] = adaptive_avg_pool2d(pixels[None], room)[0].numpy()
        return fitted


def part_of(tensor: torch.Tensor, index: Index) -> torch.Tensor:
    """A view of a part of a tensor; without an index, the tensor itself."""
    if not index:
        return tensor
    with DisableTorchFunction():
        return tensor.detach()[tuple(map(_slice, index))]


def measure_all(tensor: torch.Tensor, progress: Progress) -> Stats | None:
    """The statistics of all values, in parts; None if there are no values, or if stopped."""
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        return measure(tensor)
    parts: list[Stats] = []
    done = 0
    for slab in _slabs(tensor.detach()):
        if not progress(done / max(tensor.numel(), 1)):
            return None
        part = measure(slab)
        parts += [part] if part else []
        done += slab.numel()
    return joined(parts) if parts else None


def spread(
    tensor: torch.Tensor, stats: Stats, bins: int, progress: Progress
) -> LinearHistogram | None:
    """The histogram of the finite values, with bins of equal width."""
    finite = stats.count - stats.nan - stats.inf
    if not stats.min < stats.max:
        return LinearHistogram(low=stats.min, high=stats.max, counts=(finite,)) if finite else None
    counts = torch.zeros(bins, dtype=torch.float64)
    done = 0
    with DisableTorchFunction():
        for slab in _slabs(tensor.detach()):
            if not progress(done / tensor.numel()):
                return None
            numbers = _for_numpy(slab.reshape(-1))
            numbers = (numbers.abs() if numbers.is_complex() else numbers).to(torch.float64)
            numbers = numbers[torch.isfinite(numbers)]
            counts += torch.histc(numbers, bins, stats.min, stats.max).cpu()
            done += slab.numel()
    return LinearHistogram(low=stats.min, high=stats.max, counts=tuple(map(int, counts.tolist())))


def not_finite(path: str, name: str, role: EvidenceRole, tensor: torch.Tensor) -> Finding | None:
    """The finding that a parameter or buffer has NaN or Inf; None if it is healthy.

    An Inf that is meant is healthy: −Inf in a mask, Inf in a buffer that keeps a limit.
    """
    if look_again(tensor) < Health.INF:
        return None
    stats = measure_all(tensor, lambda share: True)
    is_limit = role == "buffer" and not name.startswith("running_")
    if stats is None or (not stats.nan and (is_limit or _is_mask(tensor, stats))):
        return None
    full_name = join_path(path, name)
    kind = "nan" if stats.nan else "inf"
    return Finding(
        severity="error",
        kind=kind,
        message=not_finite_words(stats, f"of `{full_name}`"),
        path=path,
        facts={"nan": stats.nan, "inf": stats.inf, "count": stats.count},
        tensors=(
            Evidence(name=name, role=role, spec=describe(tensor), stats=stats, holder=full_name),
        ),
    )


def _is_mask(tensor: torch.Tensor, stats: Stats) -> bool:
    """Whether its values are −Inf and at most one other value."""
    alike = stats.inf == stats.count or stats.min == stats.max
    return alike and not tensor.is_complex() and not bool(torch.isposinf(tensor.detach()).any())


def _unreadable(tensor: torch.Tensor) -> str:
    """Why the values of a tensor cannot be shown; "" if they can."""
    try:
        with DisableTorchFunction():
            if is_lazy(tensor):
                return "not initialized, its module was never run"
            if tensor.is_meta:
                return "the tensor is on the meta device"
            if tensor.numel() == 0:
                return "the tensor is empty"
            if tensor.is_nested or tensor.layout is not torch.strided:
                return "the tensor is sparse or nested"
            if not tensor.untyped_storage().nbytes():
                return "its memory was freed"
            _for_numpy(tensor.detach()[(0,) * tensor.dim()]).cpu()
            return ""
    except Exception as error:  # noqa: BLE001 - a tensor class is foreign code
        return error_line(error)


def _plane(tensor: torch.Tensor, index: Index) -> torch.Tensor:
    """A slice as a matrix; a vector is one row."""
    plane = part_of(tensor.detach(), index)
    return plane.reshape((1,) * (2 - plane.dim()) + tuple(plane.shape))


def _slice(part: int | range | None) -> int | slice:
    if isinstance(part, range):
        return slice(part.start, part.stop, part.step)
    return slice(None) if part is None else part


def _for_numpy(numbers: torch.Tensor) -> torch.Tensor:
    """The same values in a dtype that numpy has."""
    if numbers.is_quantized:
        return numbers.dequantize()
    if numbers.dtype in _TO_NUMPY or not (numbers.is_floating_point() or numbers.is_complex()):
        return numbers
    return numbers.to(torch.complex64 if numbers.is_complex() else torch.float32)


def _slabs(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Views of parts that together are the tensor, none of them large."""
    if tensor.numel() <= _SLAB:
        yield tensor
        return
    rows = max(_SLAB // tensor[0].numel(), 1)
    for part in torch.split(tensor, rows):
        yield from _slabs(part[0]) if part.numel() > _SLAB else (part,)

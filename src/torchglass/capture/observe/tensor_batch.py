"""Measures many small tensors at once.

A copy of each is put aside: those of one kind are rows of one matrix, which are measured together
once there are enough of them. What does not fit that way is left to `measure`, which also has the
last word on whatever is not finite.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from torchglass.capture.hidden_from_modes import quietly
from torchglass.capture.tensor.description import measure
from torchglass.capture.torch_internals import is_functorch_wrapped_tensor
from torchglass.records.tensors import Stats, TensorSpec

Thing = TypeVar("Thing")

MOST_ROWS = 1 << 8


class Shelf(Generic[Thing]):
    """Numbers of tensors that are all alike, in rows of a matrix that is used again and again.

    New memory would take longer to get than the numbers take to copy.
    """

    def __init__(self, like: torch.Tensor, most_bytes: int) -> None:
        self._free = max(1, min(MOST_ROWS, most_bytes // like.nbytes))
        # What is made in inference mode could not be written to outside of it.
        with torch.inference_mode(False):
            self._matrix = like.detach().new_empty((self._free, *like.shape))
            self._rows = self._matrix.unbind(0)
        self._waiting: list[Thing] = []

    @property
    def bytes(self) -> int:
        """The memory that it takes."""
        return self._matrix.nbytes

    def put(self, tensor: torch.Tensor, waiting: Thing) -> bool:
        """Copy the numbers of a tensor that has no gradient; whether there is no room for more."""
        self._rows[-self._free].copy_(tensor)
        self._waiting.append(waiting)
        self._free -= 1
        return not self._free

    def take(self) -> tuple[torch.Tensor, list[Thing]]:
        """The rows, good until more is put here, and who waits for each of them."""
        waiting, self._waiting = self._waiting, []
        self._free = len(self._rows)
        return self._matrix[: len(waiting)], waiting


LARGEST_BYTES: Final = 1 << 16
"""The largest tensor that is worth a copy."""
_FULL_BYTES = 1 << 21
"""What is measured together at most: it stays in the caches of a CPU."""
_MOST_BYTES = 1 << 24
"""The memory of all that is put aside; a model with tensors of many shapes begins anew then."""
_SMALLEST, _LARGEST = 1e-15, 1e15
"""Where the squares of float32 neither vanish nor overflow."""
_FAR = 10
"""How many times the squares around a mean that of the mean itself may be, and they are exact."""
_NARROW = {torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.bool}
_DTYPES = {
    *_NARROW,
    *(torch.float64, torch.int64, torch.int32, torch.int16, torch.complex64),
}
"""The dtypes that can be stacked and whose numbers fit into a float."""
_PLAIN = (torch.Tensor, torch.nn.Parameter)

Column = npt.NDArray[np.float64]


class Pending(Enum):
    """Says in the place of statistics that they are yet to come."""

    PENDING = "not measured yet"


PENDING: Final = Pending.PENDING


class Awaiting(Protocol):
    """Whoever wants the statistics of a tensor."""

    spec: TensorSpec
    stats: Stats | Pending | None


class Batch:
    """Copies of small tensors, and who waits for their statistics."""

    def __init__(self) -> None:
        self._shelves: dict[int, tuple[TensorSpec, Shelf[Awaiting]]] = {}
        self._bytes = 0

    def put(self, tensor: torch.Tensor, awaiting: Awaiting) -> None:
        """Take the numbers of a tensor; all that come with one spec are alike."""
        known = self._shelves.get(id(awaiting.spec))
        shelf = known[1] if known is not None else self._new_shelf(tensor, awaiting.spec)
        awaiting.stats = PENDING
        if shelf.put(tensor.detach(), awaiting):
            _measure(shelf)

    def finish(self) -> None:
        """Measure all that was put aside."""
        for _, shelf in self._shelves.values():
            _measure(shelf)

    def _new_shelf(self, like: torch.Tensor, spec: TensorSpec) -> Shelf[Awaiting]:
        if self._bytes > _MOST_BYTES:
            self.finish()
            self._shelves.clear()
            self._bytes = 0
        shelf: Shelf[Awaiting] = Shelf(like, _FULL_BYTES)
        # The spec is held, so that no other gets its id.
        self._shelves[id(spec)] = spec, shelf
        self._bytes += shelf.bytes
        return shelf


def _measure(shelf: Shelf[Awaiting]) -> None:
    rows, waiting = shelf.take()
    if waiting:
        for awaiting, stats in zip(waiting, measure_rows(rows).stats(), strict=True):
            awaiting.stats = stats


def can_wait(tensor: torch.Tensor) -> bool:
    """Whether a copy of a tensor can be measured later, together with others."""
    return (
        type(tensor) in _PLAIN
        and not tensor.is_nested
        and tensor.numel() > 0
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and tensor.dtype in _DTYPES
        and tensor.is_contiguous()
        # A storage given back, as FSDP does between passes, must not be read.
        and tensor.untyped_storage().nbytes() > 0
        # Inside vmap or grad a tensor is only there until the transform ends.
        and not is_functorch_wrapped_tensor(tensor)
    )


class Rows(NamedTuple):
    """The statistics of tensors that are all alike, as columns of plain numbers."""

    size: int
    """How many numbers each tensor has."""
    lows: list[float]
    highs: list[float]
    means: list[float]
    deviations: list[float]
    others: dict[int, Stats | None]
    """By their index, those that columns are not exact enough for."""

    def stats(self) -> list[Stats | None]:
        """A record of each."""
        columns = zip(self.lows, self.highs, self.means, self.deviations, strict=True)
        found: list[Stats | None] = [
            Stats(count=self.size, min=low, max=high, mean=mean, std=std)
            for low, high, mean, std in columns
        ]
        for index, stats in self.others.items():
            found[index] = stats
        return found


def measure_rows(tensors: torch.Tensor) -> Rows:
    """What `measure` finds in each of some stacked tensors, which are ours to write over."""
    with quietly():
        rows = tensors.reshape(len(tensors), -1)
        try:
            if rows.is_complex():
                rows = rows.abs()
            rows = rows.to(torch.float32 if rows.dtype in _NARROW else torch.float64)
            return _rows_measured(rows)
        except Exception:  # noqa: BLE001 - statistics never stop a forward
            nothing = [math.nan] * len(rows)
            others = {index: measure(row) for index, row in enumerate(tensors)}
            return Rows(rows.shape[1], nothing, nothing, nothing, nothing, others)


def _rows_measured(rows: torch.Tensor) -> Rows:
    count = rows.shape[1]
    lows, highs = _column(rows.amin(1)), _column(rows.amax(1))
    largest = np.maximum(-lows, highs)
    is_exact = ((largest > _SMALLEST) & (largest < _LARGEST)) | ((lows == 0) & (highs == 0))
    is_finite = np.isfinite(largest)
    is_far = is_finite & ~is_exact
    far = rows[torch.from_numpy(is_far)].double() if is_far.any() else None
    others = {index: measure(rows[index]) for index in np.flatnonzero(~is_finite).tolist()}
    # What is not finite is among the others, whatever comes out for it here.
    with np.errstate(invalid="ignore", over="ignore"):
        means, deviations = _spread(rows)
        if far is not None:
            means[is_far], deviations[is_far] = _scaled_spread(far, largest[is_far])
    return Rows(
        size=count,
        lows=lows.tolist(),
        highs=highs.tolist(),
        means=means.tolist(),
        deviations=deviations.tolist(),
        others=others,
    )


def _spread(rows: torch.Tensor) -> tuple[Column, Column]:
    """The mean and the standard deviation of each row."""
    count = rows.shape[1]
    means, squares = _moments(rows)
    if (squares * _FAR < means * means * count).any():
        # Shifted by its mean, a small spread around a large mean is not lost. The mean is rounded
        # as the numbers are: else more would be taken off them than is put back.
        shifts = torch.from_numpy(means).to(rows.dtype)
        offsets, squares = _moments(rows.sub_(shifts.unsqueeze(1)))
        means = _column(shifts) + offsets
    return means, np.sqrt(squares.clip(min=0) / max(count - 1, 1))


def _scaled_spread(rows: torch.Tensor, largest: Column) -> tuple[Column, Column]:
    """The same for doubles whose squares would vanish or overflow: each row is scaled first."""
    exponents = np.frexp(largest)[1]
    # In two steps, as a power of two may be too large where what comes of it is not.
    half = -exponents // 2
    for power in (half, -exponents - half):
        rows *= torch.from_numpy(np.ldexp(1.0, power)).unsqueeze(1)
    means, deviations = _spread(rows)
    return np.ldexp(means, exponents), np.ldexp(deviations, exponents)


def _moments(rows: torch.Tensor) -> tuple[Column, Column]:
    count = rows.shape[1]
    means = _column(rows.sum(1)) / count
    norms = _column(torch.linalg.vector_norm(rows, dim=1))
    return means, norms * norms - means * means * count


def _column(values: torch.Tensor) -> Column:
    """One number a row, for which numpy takes a fraction of the time that torch does."""
    column: Column = values.numpy().astype(np.float64)
    return column

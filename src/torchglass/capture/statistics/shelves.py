"""Where the numbers of small tensors wait until there are enough of them to be measured at once."""

from __future__ import annotations

from typing import Generic, TypeVar

import torch

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

"""The storages that a tensor of any kind lies in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from torchglass.capture.tensor.describing import inner_tensors

_COMPRESSED_BY_ROW = (torch.sparse_csr, torch.sparse_bsr)
_COMPRESSED_BY_COLUMN = (torch.sparse_csc, torch.sparse_bsc)


def plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors with a storage of their own that a tensor is made of; mostly itself.

    A sparse tensor is made of its indices and values, a wrapper of what it wraps. One that keeps
    its numbers where torch cannot see them, as those of oneDNN do, is made of none.
    """
    if is_lazy(tensor):
        return
    if inner := inner_tensors(tensor):
        for part in inner:
            yield from plain_tensors(part)
    elif tensor.layout is torch.strided:
        yield tensor
    elif tensor.layout is torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
    elif tensor.layout in _COMPRESSED_BY_ROW:
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in _COMPRESSED_BY_COLUMN:
        yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())


def storage_key(storage: Any) -> int:
    """A number for a storage that no other has while it lives."""
    key: int = storage._cdata
    return key

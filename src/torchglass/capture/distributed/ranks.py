"""Which of the processes of a training this is."""

from __future__ import annotations

import os

import torch
from torch import distributed


def own_rank() -> tuple[int, int]:
    """The rank of this process and how many there are, also before the process group is made."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def speaks_for(tensor: torch.Tensor) -> bool:
    """Whether, of all ranks that hold the same numbers of a tensor, this is the one to count them.

    A tensor that is cut into shards is counted by every rank that holds another one; all else by
    the first rank alone.
    """
    mesh = getattr(tensor, "device_mesh", None)
    placements = getattr(tensor, "placements", None)
    if mesh is None or placements is None:
        return own_rank()[0] == 0
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return False
    copies = zip(placements, coordinate, strict=True)
    return all(place == 0 for placement, place in copies if not placement.is_shard())

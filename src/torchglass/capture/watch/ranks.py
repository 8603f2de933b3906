"""Which process of a distributed training this is."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from itertools import count
from typing import NamedTuple

import torch
from torch import distributed

from torchglass.capture.torch_internals import default_store

_numbers = count()
_UNKNOWN_JOB = "none"
"""What torchrun calls a job that it was given no name for."""


class TrainingId(NamedTuple):
    """What all ranks of a training have in common."""

    group: str
    """A name that no other training has; "" for one process, or where nothing is known."""
    started_ns: int
    """Since the epoch."""


def this_training() -> TrainingId:
    """The training that this process is a part of; the n-th call of each rank gives them the same.

    The first rank to come leaves word for the others, so that none waits for another: a training
    may well have only one of its ranks watched.
    """
    now = time.time_ns()
    if own_rank()[1] == 1:
        return TrainingId("", now)
    own = f"{now}-{secrets.token_hex(4)}"
    with contextlib.suppress(Exception):  # A store of a kind that cannot do this.
        agreed = (
            default_store().compare_set(f"torchglass/training/{next(_numbers)}", "", own).decode()
        )
        return TrainingId(agreed, int(agreed.partition("-")[0]))
    job = os.environ.get("TORCHELASTIC_RUN_ID", _UNKNOWN_JOB)
    return TrainingId("" if job == _UNKNOWN_JOB else job, now)


def is_among_many() -> bool:
    """Whether there is a process group of several ranks."""
    is_made = distributed.is_available() and distributed.is_initialized()
    return is_made and distributed.get_world_size() > 1


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

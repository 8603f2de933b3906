"""The optimizers and gradient scalers of a training, which nobody hands to a watcher."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.optim import Optimizer


class Living(NamedTuple):
    """What of a training was found in memory."""

    optimizers: set[Optimizer]
    scalers: list[torch.amp.GradScaler]


def find_living(is_ours: Callable[[Optimizer], bool]) -> Living:
    """All optimizers that are ours, and all gradient scalers that scale."""
    found = Living(set(), [])
    for thing in gc.get_objects():
        # Asked of its type: a thing may lie about its class, or compute it.
        kind = type(thing)
        if issubclass(kind, Optimizer):
            if hasattr(thing, "param_groups") and is_ours(thing):
                found.optimizers.add(thing)
        elif issubclass(kind, torch.amp.GradScaler) and thing.is_enabled():
            found.scalers.append(thing)
    return found

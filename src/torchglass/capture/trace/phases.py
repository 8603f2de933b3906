"""Whether an op ran on the way forward, on the way back, or in a step of an optimizer."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch.autograd import graph

from torchglass.records.trace import Phase

BACKWARD: types.CodeType = graph._engine_run_backward.__code__
"""The last frame of Python before autograd takes over."""

_STEP = next(
    part
    for part in torch.optim.Optimizer.profile_hook_step.__code__.co_consts
    if isinstance(part, types.CodeType)
)
"""What torch puts around the `step` of every optimizer."""


def phase_of(chain: tuple[Any, ...]) -> Phase:
    """The phase of an op that was called along a chain of code."""
    if BACKWARD in chain:
        return "backward"
    return "optimizer" if _STEP in chain else "forward"

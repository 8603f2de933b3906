"""Which steps of optimizers are under way, told by the stack: one that raised has left it.

An optimizer whose `step` calls that of its parent class runs torch's hooks twice in one step, where
torch has put its wrapper around both.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType

from torch.optim import Optimizer


def _code_around_steps() -> CodeType:
    around = Optimizer.profile_hook_step(_code_around_steps)
    return around.__code__


_AROUND_STEPS = _code_around_steps()


def is_within_own(optimizer: Optimizer) -> bool:
    """Whether the step of an optimizer that runs now is part of another step of its own."""
    return sum(one is optimizer for one in _under_way()) > 1


def is_any_under_way() -> bool:
    """Whether an optimizer of this thread is in its step."""
    return next(_under_way(), None) is not None


def _under_way() -> Iterator[Optimizer]:
    """The optimizer of each step that this thread is in, the innermost first."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code is _AROUND_STEPS:
            yield frame.f_locals["args"][0]

"""Numbers that the user hands over in the loop, as what they have to be."""

from __future__ import annotations

import operator
from typing import SupportsIndex

from torch import Tensor

from torchglass.errors import TargetError


def step_number(number: SupportsIndex) -> int:
    """The number of a step, which a tensor may tell that counts on."""
    try:
        whole = operator.index(number)
    except (TypeError, ValueError, RuntimeError):
        whole = -1
    if whole < 0:
        raise TargetError(f"step(…) takes a whole number from 0 on, not {number!r}")
    return whole


def logged_number(name: str, value: float | Tensor) -> float | Tensor:
    """One number of a step; that of another device is read later."""
    if not isinstance(value, Tensor):
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            raise _no_number(name, repr(value)) from None
    if value.numel() != 1:
        raise _no_number(name, f"{tuple(value.shape)} of them")
    if value.is_meta or value.is_complex():
        raise _no_number(name, "a tensor on the meta device" if value.is_meta else "a complex one")
    # A copy, as the training may change the tensor before it is read. Reading a number that is
    # still being computed on a GPU would make the training wait for it.
    return value.detach().clone() if value.device.type != "cpu" else float(value.detach())


def _no_number(name: str, what: str) -> TargetError:
    return TargetError(f"log({name!r}, …) takes one number, not {what}")

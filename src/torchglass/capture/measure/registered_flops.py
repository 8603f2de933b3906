"""Formulas that users register for the FLOPs of their own ops.

@register_flops(torch.ops.mylib.mix)
def flops(x, weight, *, out_shape):
    return 2 * x[0] * x[1] * weight[1]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch

from torchglass.analyse.flop_formulas import Formula
from torchglass.capture.torch_internals import (
    CustomOpDef,
    OpOverload,
    OpOverloadPacket,
    qualified_name,
)
from torchglass.errors import CaptureError

F = TypeVar("F", bound=Formula)

REGISTERED_OPS: dict[str, Formula] = {}
"""By torch's name, "mylib::mix", or by that of one overload, "mylib::mix.out"."""


class FunctionFormulas(NamedTuple):
    """The registered formulas of an autograd Function."""

    forward: Formula | None = None
    backward: Formula | None = None


REGISTERED_FUNCTIONS: dict[type, FunctionFormulas] = {}


def register_flops(op: Any, *, backward: bool = False) -> Callable[[F], F]:
    """Register a FLOP formula for an op, which replaces the count of everything inside the op.

    The op is one of `torch.ops`, its name "mylib::mix", the result of `torch.library.custom_op`, or
    an autograd Function, whose backward gets its own formula with `backward=True`. The formula is
    called like the op, with shapes instead of tensors, and with `out_shape`, the shape of the
    result or a list of shapes. It takes precedence over a formula of Torchglass or torch.
    """
    key = _key(op)
    if backward and isinstance(key, str):
        raise CaptureError("backward=True is only for the backward of an autograd Function")

    def register(formula: F) -> F:
        if isinstance(key, str):
            REGISTERED_OPS[key] = formula
        else:
            known = REGISTERED_FUNCTIONS.get(key, FunctionFormulas())
            direction = "backward" if backward else "forward"
            REGISTERED_FUNCTIONS[key] = known._replace(**{direction: formula})
        return formula

    return register


def unregister_flops(op: Any) -> None:
    """Remove the formulas that a user registered for an op, if any."""
    key = _key(op)
    if isinstance(key, str):
        REGISTERED_OPS.pop(key, None)
    else:
        REGISTERED_FUNCTIONS.pop(key, None)


def _key(op: Any) -> str | type:
    if isinstance(op, type) and issubclass(op, torch.autograd.Function):
        return op
    if isinstance(op, OpOverload):
        return str(op.name())  # type: ignore[no-untyped-call]
    if isinstance(op, (CustomOpDef, OpOverloadPacket)):
        return qualified_name(op)
    if isinstance(op, str) and "::" in op:
        return op
    raise CaptureError(
        f"{op!r} is not an op: pass an op of torch.ops, its name ('mylib::mix'), the result of "
        f"torch.library.custom_op, or an autograd Function"
    )

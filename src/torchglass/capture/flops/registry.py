"""The formulas that users gave for ops of their own.

@register_flops(torch.ops.mylib.mix)
def flops(x, weight, *, out_shape):
    return 2 * x[0] * x[1] * weight[1]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import torch
from torch._library.custom_ops import CustomOpDef
from torch._ops import OpOverload, OpOverloadPacket
from torch.utils.flop_counter import flop_registry

from torchglass.analyse.flops.formulas import Formula
from torchglass.errors import CaptureError

F = TypeVar("F", bound=Formula)

_ops: dict[str, Formula] = {}
"""By torch's name, "mylib::mix", or by that of one overload, "mylib::mix.out"."""


class FunctionFormulas(NamedTuple):
    """What a user's autograd Function takes in its two directions, where it was told."""

    forward: Formula | None = None
    backward: Formula | None = None


_functions: dict[type, FunctionFormulas] = {}


def register_flops(op: Any, *, backward: bool = False) -> Callable[[F], F]:
    """Count an op by a formula, which stands for all that runs inside of it.

    The op is one of `torch.ops`, its name "mylib::mix", what `torch.library.custom_op` made, or an
    autograd Function, whose own backward has a formula of its own with `backward=True`. The formula
    is called as the op is, with the shape of each tensor in the tensor's stead, and with
    `out_shape`, the shape of the result or a list of those of several. It is also taken instead of
    a formula that Torchglass or torch has.
    """
    key = _key(op)
    if backward and isinstance(key, str):
        raise CaptureError("only an autograd Function has a backward; other ops are counted by it")

    def register(formula: F) -> F:
        if isinstance(key, str):
            _ops[key] = formula
        else:
            known = _functions.get(key, FunctionFormulas())
            direction = "backward" if backward else "forward"
            _functions[key] = known._replace(**{direction: formula})
        return formula

    return register


def unregister_flops(op: Any) -> None:
    """Forget the formulas that a user gave for an op; without any, nothing happens."""
    key = _key(op)
    if isinstance(key, str):
        _ops.pop(key, None)
    else:
        _functions.pop(key, None)


def full_name(func: Any) -> str:
    """torch's name of an op: "aten::mm", with its overload where it has one: "aten::add.out"."""
    return str(func.name())


def formula_by_user(func: OpOverload) -> Formula | None:
    """The formula that a user registered for an op with us."""
    return _ops.get(full_name(func)) or _ops.get(func._schema.name)


def formula_of_torch(func: Any) -> Callable[..., int] | None:
    """The formula that torch has, or was given by a user, for an op; it is called with tensors."""
    packet = func.overloadpacket if isinstance(func, OpOverload) else func
    formula: Callable[..., int] | None = flop_registry.get(packet)
    return formula


def registered_functions() -> Iterator[tuple[type, FunctionFormulas]]:
    """The autograd Functions that have formulas."""
    yield from _functions.items()


def _key(op: Any) -> str | type:
    if isinstance(op, type) and issubclass(op, torch.autograd.Function):
        return op
    if isinstance(op, CustomOpDef):
        return op._qualname
    if isinstance(op, OpOverload):
        return full_name(op)
    if isinstance(op, OpOverloadPacket):
        return str(op._qualified_op_name)
    if isinstance(op, str) and "::" in op:
        return op
    raise CaptureError(
        f"{op!r} is no op: give one of torch.ops, its name as 'mylib::mix', what "
        "torch.library.custom_op made, or an autograd Function"
    )

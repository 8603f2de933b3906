"""Which formula counts which kernel, users' own formulas included.

@register_flops(torch.ops.mylib.mix)
def flops(x, weight, *, out_shape):
    return 2 * x[0] * x[1] * weight[1]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import torch
from torch.utils.flop_counter import flop_registry

from torchglass.analyse.flop_formulas import Formula, formula_of
from torchglass.analyse.flops import is_free
from torchglass.capture.torch_internals import (
    COMPOSITE,
    CustomOpDef,
    OpOverload,
    OpOverloadPacket,
    has_kernel_for,
    nested_sizes,
    qualified_name,
)
from torchglass.errors import CaptureError
from torchglass.records.measures import FlopStatus

F = TypeVar("F", bound=Formula)

_ops: dict[str, Formula] = {}
"""By torch's name, "mylib::mix", or by that of one overload, "mylib::mix.out"."""


class FunctionFormulas(NamedTuple):
    """The registered formulas of an autograd Function."""

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
        raise CaptureError("backward=True is only for the backward of an autograd Function")

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
    if isinstance(op, OpOverload):
        return full_name(op)
    if isinstance(op, (CustomOpDef, OpOverloadPacket)):
        return qualified_name(op)
    if isinstance(op, str) and "::" in op:
        return op
    raise CaptureError(
        f"{op!r} is not an op: pass an op of torch.ops, its name ('mylib::mix'), the result of "
        f"torch.library.custom_op, or an autograd Function"
    )


Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]
Count = Callable[[Args, Kwargs, Any], int | None]
"""The FLOPs of a kernel from its arguments and result; None if they are not known."""

_OURS = ("aten", "quantized", "mkldnn")
"""The namespaces that our formulas are for: another "linear" may be something else."""
_WITHOUT_WORK = ("aten", "prims", "prim", "quantized", "profiler", "c10d", "_c10d_functional")
_PARTLY_READ = frozenset(
    {"embedding", "gather", "index", "index_select", "take", "_embedding_bag", "masked_select"}
)
"""Kernels that read of their first argument only as much as they return."""


class FlopRule(NamedTuple):
    """What is known of a kernel before it runs."""

    name: str
    """As torch writes it: "aten.addmm"."""
    nature: FlopStatus
    flops: Count | None
    moves: Callable[[Args, Any], int] | None
    """The bytes that it reads and writes; None for a view."""
    opens: bool
    """Whether it is composed of other kernels, which are counted instead."""


def rule_of(func: Any) -> FlopRule:
    """What is known of a kernel, or of an op that takes functions."""
    if not isinstance(func, OpOverload):
        torchs = formula_of_torch(func)
        nature: FlopStatus = "uncounted" if torchs is None else "counted"
        return FlopRule(
            full_name(func), nature, torchs and _with_tensors(torchs), _all_bytes, False
        )
    namespace, name = func._schema.name.split("::")
    by_user, count = formula_by_user(func), _formula(func, namespace, name)
    return FlopRule(
        name=f"{namespace}.{name}",
        nature="counted" if count else "free" if _is_free(func, namespace, name) else "uncounted",
        flops=count,
        moves=None if _is_view(func) else _part_bytes if name in _PARTLY_READ else _all_bytes,
        opens=by_user is None and has_kernel_for(func, COMPOSITE),
    )


def rule_of_function(name: str, formula: Formula) -> FlopRule:
    """The rule of an autograd Function that a user has registered a formula for."""
    return FlopRule(name, "counted", _with_shapes(formula), _all_bytes, False)


def shape_of(value: Any) -> Any:
    """A tensor's shape, also inside of lists; all else as it is.

    A sparse matrix has a row of one for each element that it stores, a nested tensor the shape of
    each of its parts, and a packed weight that of the weight in it.
    """
    if type(value) in _NUMBERS:
        return value
    if isinstance(value, torch.Tensor):
        return _tensor_shape(value)
    if isinstance(value, (list, tuple)):
        return [shape_of(part) for part in value]
    if isinstance(value, torch.ScriptObject) and hasattr(value, "unpack"):
        return shape_of(value.unpack()[0])
    return value


def _tensor_shape(tensor: torch.Tensor) -> Any:
    if tensor.layout is torch.strided:
        if not tensor.is_nested:
            return tuple(tensor.shape)
        return nested_sizes(tensor)
    if tensor.layout in _SPARSE:
        return tensor._nnz(), math.prod(tensor.shape[tensor.sparse_dim() :])
    return tuple(tensor.shape)


_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)
_NUMBERS = frozenset({int, bool, float, type(None)})


def _formula(func: OpOverload, namespace: str, name: str) -> Count | None:
    """A user's formula, else ours, else torch's."""
    formula = formula_by_user(func) or (formula_of(name) if namespace in _OURS else None)
    if formula is not None:
        return _with_shapes(formula)
    torchs = formula_of_torch(func)
    return None if torchs is None else _with_tensors(torchs)


def _with_shapes(formula: Formula) -> Count:
    def count(args: Args, kwargs: Kwargs, output: Any) -> int | None:
        named = {name: shape_of(value) for name, value in kwargs.items()}
        return formula(*map(shape_of, args), **named, out_shape=shape_of(output))

    return count


def _with_tensors(formula: Callable[..., int]) -> Count:
    def count(args: Args, kwargs: Kwargs, output: Any) -> int:
        return formula(*args, **kwargs, out_val=output)

    return count


@lru_cache(maxsize=4096)
def _is_free(func: OpOverload, namespace: str, name: str) -> bool:
    if namespace not in _WITHOUT_WORK:
        return False
    return (
        torch.Tag.pointwise in func.tags
        or _is_view(func)
        or namespace in {"prim", "profiler", "c10d", "_c10d_functional"}
        or is_free(name)
    )


@lru_cache(maxsize=4096)
def _is_view(func: OpOverload) -> bool:
    """Whether it returns a view of an argument, or no tensor."""
    schema = func._schema
    looks = any(a.alias_info and not a.alias_info.is_write for a in schema.arguments)
    return looks or not any("Tensor" in str(made.type) for made in schema.returns)


def _all_bytes(args: Args, output: Any) -> int:
    return _bytes((*args, output))


def _part_bytes(args: Args, output: Any) -> int:
    return _bytes((output, output, *args[1:]))


def _bytes(values: Iterable[Any]) -> int:
    """The bytes of the tensors among values, also in lists."""
    total = 0
    for value in values:
        if isinstance(value, torch.Tensor):
            total += value.numel() * value.element_size()
        elif isinstance(value, (list, tuple)):
            total += _bytes(value)
    return total

"""Facts about torch's functions: which write in place, and into which argument."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any

import torch
from torch.nn import functional

from torchglass.capture.torch_internals import OpOverload, OpOverloadPacket, first_overload


class Handling(Enum):
    """What a mode that records ops does with a function."""

    RECORD = "record it"
    RECORD_WRITE = "record it; it writes into its first argument"
    MAY_WRITE = "record it; its `inplace` argument tells whether it writes"
    BY_SCHEMA = "record it; its schema tells what it writes"
    MAY_RENORM = "record it; with a `max_norm` it writes into the weight it is given"
    MAY_UPDATE = "record it; while training it writes into the running statistics it is given"
    OPEN = "run its Python code with the mode on, and record what is inside"
    PASS = "let it by: it computes nothing"


# Asked for with every activation, and looking into an Enum takes fifteen times as long as a name.
_MAY_WRITE = Handling.MAY_WRITE


def iter_tensors(nest: Any) -> Iterator[torch.Tensor]:
    """The tensors in an op's arguments or output, which nest in tuples, lists and dicts only."""
    if isinstance(nest, torch.Tensor):
        yield nest
    elif isinstance(nest, (tuple, list)):
        for item in nest:
            yield from iter_tensors(item)
    elif isinstance(nest, dict):
        for item in nest.values():
            yield from iter_tensors(item)


_OPERATORS = (
    *("add", "and", "div", "floordiv", "lshift", "matmul", "mod", "mul", "or", "pow", "rshift"),
    *("sub", "truediv", "xor"),
)
_IN_PLACE_OPERATORS = frozenset(f"__i{name}__" for name in _OPERATORS)
_WRITES_NO_NUMBERS = frozenset(
    {"detach_", "requires_grad_", "share_memory_", "rename_", "retain_grad"}
)
_PASSED = frozenset(
    {
        "requires_grad_",
        "retain_grad",
        "register_hook",
        "__set__",
        "__delete__",
        "__len__",
        "__bool__",
        "__contains__",
        "backward",
        "numpy",
        "__array__",
        "tolist",
        "item",
        "dim",
        "size",
        "stride",
    }
)
_VIEWS_BY_ATTRIBUTE = frozenset({"data", "T", "mT", "H", "mH", "real", "imag"})
SETS_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]
"""`y.data = x`, after which `y` lies in the memory of `x`; nothing is written there."""
OPENED = frozenset(
    {
        functional.gumbel_softmax,
        functional.local_response_norm,
        functional.lp_pool1d,
        functional.lp_pool2d,
        functional.lp_pool3d,
        functional.multi_head_attention_forward,
        functional.normalize,
        functional.softsign,
        functional.tanhshrink,
    }
)
"""Functions of torch that are written in Python, and made of others worth seeing."""


_STATISTICS: dict[Any, slice] = {
    functional.batch_norm: slice(1, 3),
    functional.instance_norm: slice(1, 3),
    torch.batch_norm: slice(3, 5),
    torch.instance_norm: slice(3, 5),
}
"""Where normalisations take their running statistics; whether they update them comes sixth."""
_EMBEDDINGS = (functional.embedding, functional.embedding_bag)
"""Take their weight second and `max_norm` fourth."""


@functools.lru_cache(maxsize=4096)
def handling_of(func: Any) -> Handling:
    """What is to be done with a function."""
    name = getattr(func, "__name__", "")
    if func == SETS_DATA:
        return Handling.RECORD_WRITE
    if name in _PASSED or (name == "__get__" and not _makes_a_view(func)):
        return Handling.PASS
    if func in OPENED:
        return Handling.OPEN
    if func in _STATISTICS:
        return Handling.MAY_UPDATE
    if func in _EMBEDDINGS:
        return Handling.MAY_RENORM
    if isinstance(func, (OpOverload, OpOverloadPacket)):
        return Handling.BY_SCHEMA if _schema(func).is_mutable else Handling.RECORD
    if _named_as_in_place(name):
        return Handling.RECORD_WRITE
    return Handling.RECORD if _place_of_inplace(func) is None else Handling.MAY_WRITE


def _makes_a_view(getter: Any) -> bool:
    """Whether reading an attribute gives a new tensor: `.T` does, `.shape` and `.grad` do not."""
    return getattr(getattr(getter, "__self__", None), "__name__", "") in _VIEWS_BY_ATTRIBUTE


def _named_as_in_place(name: str) -> bool:
    if name == "__setitem__" or name in _IN_PLACE_OPERATORS:
        return True
    return name.endswith("_") and not name.endswith("__") and name not in _WRITES_NO_NUMBERS


@functools.lru_cache(maxsize=4096)
def _place_of_inplace(func: Any) -> int | None:
    code = getattr(func, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code is not None else ()
    return names.index("inplace") if "inplace" in names else None


def written_by(
    func: Any, handling: Handling, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[torch.Tensor, ...]:
    """The arguments that a function is about to change in place."""
    if "out" in kwargs:
        return tuple(iter_tensors(kwargs["out"]))
    if handling is _MAY_WRITE:
        place = _place_of_inplace(func)
        assert place is not None
        if not (kwargs.get("inplace") or (len(args) > place and args[place])):
            return ()
    elif handling is Handling.RECORD:
        return ()
    elif handling is Handling.BY_SCHEMA:
        return tuple(written_by_schema(func, args, kwargs))
    elif handling is Handling.MAY_RENORM:
        max_norm = next(iter(args[3:4]), kwargs.get("max_norm"))
        return (
            tuple(iter_tensors(args[1:2] or kwargs.get("weight"))) if max_norm is not None else ()
        )
    elif handling is Handling.MAY_UPDATE:
        training = args[5:6] or (kwargs.get("training"), kwargs.get("use_input_stats"))
        running = (*args[_STATISTICS[func]], kwargs.get("running_mean"), kwargs.get("running_var"))
        return tuple(iter_tensors(running)) if any(training) else ()
    return tuple(iter_tensors(args[0] if args else kwargs.get("input")))


def _schema(func: OpOverload[..., Any] | OpOverloadPacket[..., Any]) -> Any:
    """What an op declares; of several overloads the first, as all of them write or none does."""
    if isinstance(func, OpOverloadPacket):
        func = first_overload(func)
    return func._schema


def written_by_schema(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[torch.Tensor]:
    """The same by what an op declares."""
    for place, argument in enumerate(_schema(func).arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            yield from iter_tensors(value)


@functools.lru_cache(maxsize=4096)
def without_guards(func: Any) -> Callable[..., Any]:
    """A copy of a function of torch that does not hand itself to the mode before it runs."""
    world = dict(func.__globals__)
    for name in world:
        if name.startswith("has_torch_function"):
            world[name] = _never
    copy = types.FunctionType(
        func.__code__, world, func.__name__, func.__defaults__, func.__closure__
    )
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy


def _never(*_: object) -> bool:
    return False

"""A copy of a model without values: shapes and dtypes only, so that any size fits anywhere."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from torchglass.capture.torch_internals import tree_map_only
from torchglass.errors import CaptureError

MIXED = "-mixed"
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
PRECISIONS = (*_DTYPES, "tf32", *(f"{name}{MIXED}" for name in ("bf16", "fp16")))


def check_precision(precision: str | None) -> None:
    """Raise for a precision that is not known."""
    if precision is not None and precision not in PRECISIONS:
        raise CaptureError(f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r}")


def product_precision(model: nn.Module, precision: str | None) -> str:
    """The precision that products run in, by the name that data sheets use."""
    if precision is not None:
        return precision.removesuffix(MIXED)
    dtypes = [one.dtype for one in model.parameters() if one.dtype.is_floating_point]
    return _NAMES.get(dtypes[0], "fp32") if dtypes else "fp32"


def run_in(precision: str | None) -> AbstractContextManager[object]:
    """Run a step in a mixed precision, as `torch.autocast` does; otherwise as it is."""
    if precision is None or not precision.endswith(MIXED):
        return contextlib.nullcontext()
    return torch.autocast("cpu", dtype=_DTYPES[precision.removesuffix(MIXED)])


def valueless_copy(model: nn.Module, precision: str | None = None) -> nn.Module:
    """A copy of a model on "meta"; its floating-point tensors are in `precision`, if it names one.

    The memory of the original is not copied, and what is shared in it is shared in the copy.
    """
    dtype = _DTYPES.get(precision or "")
    memo: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        memo[id(tensor)] = _without_values(tensor, dtype)
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:
        raise CaptureError(
            f"{type(model).__name__} cannot be copied: {error}. "
            "Move tensors that are neither parameters nor buffers out of the model."
        ) from error


def valueless(inputs: Any, precision: str | None = None) -> Any:
    """Inputs on "meta"; floating-point ones in `precision`, if it names one."""
    dtype = _DTYPES.get(precision or "")
    return tree_map_only(torch.Tensor, partial(_without_values, dtype=dtype), inputs)


def _without_values(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    wanted = dtype if dtype is not None and tensor.dtype.is_floating_point else tensor.dtype
    made = torch.empty_like(tensor, device="meta", dtype=wanted)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made.requires_grad_(tensor.requires_grad)


def repeated_blocks(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The outermost modules of one class that follow each other in a list, such as the layers."""
    return list(_repeated("", model))


def _repeated(path: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    children = [(f"{path}.{name}" if path else name, one) for name, one in module.named_children()]
    if isinstance(module, (nn.ModuleList, nn.Sequential)):
        kinds = [type(child) for _, child in children]
        for child_path, child in children:
            if kinds.count(type(child)) > 1 and next(child.children(), None) is not None:
                yield child_path, child
            else:
                yield from _repeated(child_path, child)
        return
    for child_path, child in children:
        yield from _repeated(child_path, child)


def checkpointed(blocks: Sequence[nn.Module]) -> None:
    """Make blocks of a copy recompute their activations in the backward."""
    for block in blocks:
        run: Callable[..., Any] = block.forward
        block.forward = partial(checkpoint, run, use_reentrant=False)

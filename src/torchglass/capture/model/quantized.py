"""The weights that quantized modules keep in packed objects, where torch does not list them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

PACKED = frozenset(
    ("_packed_params", "_packed_weight", "_packed_weight_ih", "_packed_weight_hh", "param")
)
"""The attributes in which torch's quantized modules keep packed objects."""
_SCRIPTED_HALF = 5
"""What torch.float16 is called in a scripted module."""


def packed_tensors(module: nn.Module) -> Iterator[tuple[str, object, torch.Tensor]]:
    """For each packed weight of a module its name, the object that it is in, and the tensor.

    The objects tell what is in them only by unpacking a copy: let go of each before the next.
    """
    held = object.__getattribute__(module, "__dict__")
    if isinstance(module, torch.jit.ScriptModule):
        held = _scripted(held["_c"])
    half = held.get("dtype") in (torch.float16, _SCRIPTED_HALF)
    for attribute in sorted(PACKED.intersection(held)):
        value = held[attribute]
        if isinstance(value, torch.ScriptObject):
            suffix = attribute[-3:] if attribute.endswith(("_ih", "_hh")) else ""
            for name, tensor in _unpacked(value, half=half):
                yield name + suffix, value, tensor


def _unpacked(value: Any, *, half: bool) -> Iterator[tuple[str, torch.Tensor]]:
    if hasattr(value, "unpack"):
        with warnings.catch_warnings():
            # That quantized tensors are to go from torch is not news of the reader's making.
            warnings.simplefilter("ignore")
            content = value.unpack()
        weight, bias = (content, None) if isinstance(content, torch.Tensor) else content[:2]
        # Half precision is how it is kept, though float32 is how it comes out.
        yield "weight", weight.half() if half else weight
        if bias is not None:
            yield "bias", bias
    elif value._type().name() == "CellParamsBase":
        (kind, *_, packed), _ = value.__getstate__()
        for suffix, part in zip(("_ih", "_hh"), packed, strict=False):
            for name, tensor in _unpacked(part, half=kind == "quantized_fp16"):
                yield name + suffix, tensor


def _scripted(module: Any) -> dict[str, Any]:
    return {name: module.getattr(name) for name in (*PACKED, "dtype") if module.hasattr(name)}

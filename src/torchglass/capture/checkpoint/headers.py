"""Files of safetensors, of which only the header is read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from pathlib import Path

from safetensors import safe_open

from torchglass.capture.checkpoint.dotted import CHECKPOINT, stored_slot, tree
from torchglass.errors import TargetError
from torchglass.records.model import FilePart, Model, TensorId
from torchglass.records.tensors import TensorSpec

_LONGEST = 60
_DTYPE = re.compile(r"([A-Z]+?)(\d+)(.*)")
_KINDS = {"F": "float", "BF": "bfloat", "I": "int", "U": "uint", "C": "complex"}
_TORCH_NAMES = {
    "float8_e4m3": "float8_e4m3fn",
    "float8_e8m0": "float8_e8m0fnu",
    "float4": "float4_e2m1fn",
}


def read_safetensors(files: Sequence[Path]) -> Model:
    """The tensors of one file or of several shards, in the order of their names."""
    specs: dict[str, TensorSpec] = {}
    beside: dict[str, str] = {}
    for file in files:
        if not file.exists():
            raise TargetError(f"there is no file {file}")
        with safe_open(file, framework="numpy") as opened:
            for name in opened.keys():  # noqa: SIM118 - it is no mapping
                part = opened.get_slice(name)
                specs[name] = _spec(part.get_shape(), part.get_dtype())
            beside.update(opened.metadata() or {})
    slots = (
        stored_slot(name, specs[name], TensorId(number))
        for number, name in enumerate(sorted(specs, key=_natural))
    )
    parts = (
        FilePart(name=name, text=text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…")
        for name, text in beside.items()
        if name != "format"
    )
    return Model(name="", modules=tree(slots, root=CHECKPOINT), also_in_file=tuple(parts))


def _spec(shape: Sequence[int], dtype: str) -> TensorSpec:
    """Of a tensor whose elements are smaller than a byte, the shape is that of the elements."""
    name, bits = _torch_dtype(dtype)
    return TensorSpec(shape=tuple(shape), dtype=name, bytes=-(-prod(shape) * bits // 8))


def _torch_dtype(name: str) -> tuple[str, int]:
    """What torch calls a dtype of the format, and its size in bits."""
    match = _DTYPE.fullmatch(name)
    if match is None or match[1] not in _KINDS:
        return name.lower(), 8
    torch_name = _KINDS[match[1]] + match[2] + match[3].lower()
    return _TORCH_NAMES.get(torch_name, torch_name), int(match[2])


def _natural(name: str) -> list[tuple[int, str]]:
    """A key that puts layer 10 after layer 9; the files are in the order of the alphabet."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in name.split(".")]

"""The formats of checkpoint files: torch.save and safetensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from torchglass.capture.model.checkpoint_contents import (
    CHECKPOINT,
    beside_modules,
    divided,
    stored_slot,
    tree,
)
from torchglass.capture.model.exported_programs import allowing, is_archive, open_archive
from torchglass.capture.model.live_modules import module_parts
from torchglass.capture.model.structure import read_model
from torchglass.capture.model.tensor_identity import Identities
from torchglass.capture.tensor.description import describe
from torchglass.errors import TargetError, UnsafeFileError
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


_REFUSED = re.compile(r"GLOBAL ([\w.]+)")


def read_pickled(files: Sequence[Path], *, unsafe: bool) -> Model:
    """The tensors in one file or in several shards, or the module that is in it."""
    return read_contents([_load(file, unsafe=unsafe) for file in files], files[0].name)


def read_contents(contents: Sequence[Any], name: str) -> Model:
    """The same of what was loaded already: a state dict, or what holds one."""
    if len(contents) == 1 and (isinstance(contents[0], nn.Module) or module_parts(contents[0])):
        return replace(read_model(contents[0]), also_in_file=beside_modules(contents[0]))
    identities = Identities()
    parts = [divided(content) for content in contents]
    slots = [
        stored_slot(
            name,
            describe(tensor),
            identities.of(tensor),
            trainable=not isinstance(tensor, nn.Parameter) or tensor.requires_grad,
            state=state,
        )
        for one in parts
        for name, tensor, state in one.tensors
    ]
    if not slots:
        raise TargetError(f"there are no tensors in {name}")
    beside = tuple(part for one in parts for part in one.beside)
    return Model(name="", modules=tree(slots, root=CHECKPOINT), also_in_file=beside)


def load_tensors(files: Sequence[Path], *, unsafe: bool) -> dict[str, torch.Tensor]:
    """The tensors in one file or in several shards, by the names that `read_pickled` gives them."""
    return checkpoint_tensors([_load(file, unsafe=unsafe) for file in files])


def checkpoint_tensors(contents: Sequence[Any]) -> dict[str, torch.Tensor]:
    """The same of what was loaded already."""
    if len(contents) == 1 and isinstance(contents[0], nn.Module):
        return dict(contents[0].state_dict(keep_vars=True))
    found = (part for content in contents for part in divided(content).tensors)
    return {name: tensor for name, tensor, _ in found}


def _load(path: Path, *, unsafe: bool) -> Any:
    archived = is_archive(path)
    if archived:
        with open_archive(path) as archive:
            scripted = any(name.endswith("/constants.pkl") for name in archive.namelist())
        if scripted:
            return _load_script(path, unsafe=unsafe)
    try:
        return torch.load(path, map_location="cpu", mmap=archived, weights_only=not unsafe)
    except UnpicklingError as error:
        refused = _refused_names(path, str(error))
        if not refused:
            raise TargetError(f"{path.name} is corrupt, or not from torch.save") from error
        raise UnsafeFileError(
            f"{path.name} holds more than tensors: to read it, {', '.join(refused)} would be"
            f" imported and run; {allowing('where it comes from')}"
        ) from error
    except (ImportError, AttributeError) as error:
        raise TargetError(f"{path.name} needs code that is not installed: {error}") from error


def _load_script(path: Path, *, unsafe: bool) -> Any:
    if not unsafe:
        raise UnsafeFileError(
            f"{path.name} is a TorchScript program, and loading it can run its code;"
            f" {allowing('where it comes from')}"
        )
    load: Callable[..., Any] = torch.jit.load
    return load(path, map_location="cpu")


def _refused_names(path: Path, message: str) -> list[str]:
    """What a file would import beyond what tensors need."""
    if is_archive(path):
        return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    # Files from before torch 1.6 are no archives; the refusal names the first one it met.
    return _REFUSED.findall(message)[:1]

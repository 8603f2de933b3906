"""Models on disk, read without their code.

The root of such a model has the class "checkpoint" and its other nodes the class "group", because a
file of tensors does not say what computes with them. It does not say what is trained either:
everything counts as a trainable parameter, except integers and booleans, running statistics of
norms and optimizer state, which count as buffers. Exported programs and pickled modules keep their
classes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from math import prod
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from torchglass.capture.model.checkpoint_contents import (
    CHECKPOINT,
    allowing,
    beside_modules,
    divided,
    is_archive,
    is_program_file,
    open_archive,
    read_program_file,
    stored_slot,
    tree,
)
from torchglass.capture.model.module_parts import module_parts
from torchglass.capture.model.structure import Identities, read_model
from torchglass.capture.tensor.description import Load, constant, describe
from torchglass.errors import TargetError, UnsafeFileError
from torchglass.records.model import FilePart, Model, TensorId, TensorSpec

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
    """The shape counts elements, even if an element is smaller than a byte."""
    name, bits = _torch_dtype(dtype)
    return TensorSpec(shape=tuple(shape), dtype=name, bytes=-(-prod(shape) * bits // 8))


def _torch_dtype(name: str) -> tuple[str, int]:
    """torch's name of a safetensors dtype, and its size in bits."""
    match = _DTYPE.fullmatch(name)
    if match is None or match[1] not in _KINDS:
        return name.lower(), 8
    torch_name = _KINDS[match[1]] + match[2] + match[3].lower()
    return _TORCH_NAMES.get(torch_name, torch_name), int(match[2])


def _natural(name: str) -> list[tuple[int, str]]:
    """A sort key that puts layer 10 after layer 9; the files are sorted alphabetically."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in name.split(".")]


_REFUSED = re.compile(r"GLOBAL ([\w.]+)")


def read_pickled(files: Sequence[Path], *, unsafe: bool) -> Model:
    """The tensors in one file or in several shards, or the module that is in it."""
    return read_contents([_load(file, unsafe=unsafe) for file in files], files[0].name)


def read_contents(contents: Sequence[Any], name: str) -> Model:
    """The same for loaded contents: a state dict, or an object that contains one."""
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
    """The same for loaded contents."""
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
            f"{path.name} contains more than tensors: loading it would import and run "
            f"{', '.join(refused)}; {allowing('where it comes from')}"
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
    """The imports of a file that tensors do not need."""
    if is_archive(path):
        return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    # Files from before torch 1.6 are not archives; the error names the first refused import.
    return _REFUSED.findall(message)[:1]


_INDEX = ".index.json"
_SAFE = ".safetensors"
_PICKLED = (".pt", ".pth", ".bin", ".ckpt")
_SHARD = re.compile(r".*-\d+-of-\d+\..*")
_PICKLE_START = b"\x80"


def read_checkpoint(path: Path, *, unsafe: bool = False) -> Model:
    """The tensors of a file, of an index of several, or of a folder, as a tree.

    Nothing is loaded: headers are read and storages mapped. Nothing that came with the file is run
    unless `unsafe` allows it.
    """
    try:
        model = _read(checkpoint_files(path), unsafe=unsafe)
    except TargetError:
        raise
    except FileNotFoundError as error:
        raise TargetError(f"there is no file {error.filename or path}") from error
    except Exception as error:
        # Parsers of corrupt files raise anything.
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise TargetError(f"{path.name} cannot be read and may be corrupt: {reason}") from error
    return replace(model, name=path.name, origin=str(path))


def _read(files: Sequence[Path], *, unsafe: bool) -> Model:
    first = files[0]
    with first.open("rb") as file:
        head = file.read(9)
    # A safetensors file is the length of a JSON object in eight bytes, and then the object.
    if first.suffix == _SAFE or head[8:] == b"{":
        return read_safetensors(files)
    if is_program_file(first):
        return read_program_file(first, unsafe=unsafe)
    if is_archive(first) or head.startswith(_PICKLE_START):
        return read_pickled(files, unsafe=unsafe)
    raise TargetError(
        f"{first.name} is not a checkpoint, or is corrupt; {', '.join(_PICKLED)}, .pt2, {_SAFE}"
        f" files, *{_SAFE}{_INDEX} and folders of them can be read"
    )


def checkpoint_files(path: Path) -> Sequence[Path]:
    """The files that make up the checkpoint at a path."""
    if path.name.endswith(_INDEX):
        return _shards(path)
    if not path.is_dir():
        return [path]
    for pattern in (f"*{_SAFE}{_INDEX}", f"*{_INDEX}"):
        if indexes := sorted(path.glob(pattern)):
            return checkpoint_files(_only(indexes, path))
    for suffixes in ((_SAFE,), (*_PICKLED, ".pt2")):
        files = sorted(file for file in path.iterdir() if file.suffix in suffixes)
        if files:
            shards = all(_SHARD.fullmatch(file.name) for file in files)
            return files if shards else [_only(files, path)]
    raise TargetError(f"there is no checkpoint in the folder {path}")


def _only(files: Sequence[Path], folder: Path) -> Path:
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise TargetError(f"the folder {folder} contains several checkpoints; name one: {names}")
    return files[0]


def _shards(index: Path) -> Sequence[Path]:
    names = dict.fromkeys(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    for name in names:
        if Path(name).name != name:
            raise TargetError(f"{index.name} lists a file outside its folder: {name}")
    if not names:
        raise TargetError(f"{index.name} lists no files")
    return [index.with_name(name) for name in names]


class StoredTensors(Mapping[str, Load]):
    """How to load each tensor of a file, of several shards or of a folder, by its dotted name.

    The files are opened when the first tensor is requested. An exported program has none.
    """

    def __init__(self, path: Path, *, unsafe: bool = False) -> None:
        self._path = path
        self._unsafe = unsafe

    @cached_property
    def _loads(self) -> dict[str, Load]:
        files = checkpoint_files(self._path)
        if is_program_file(files[0]):
            return {}
        if files[0].suffix != ".safetensors":
            loaded = load_tensors(files, unsafe=self._unsafe)
            return {name: constant(tensor) for name, tensor in loaded.items()}
        found: dict[str, Load] = {}
        for file in files:
            with safe_open(file, framework="pt") as opened:
                names = list(opened.keys())
            found.update({name: partial(_tensors_read, file, name) for name in names})
        return found

    def __getitem__(self, name: str) -> Load:
        return self._loads[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._loads)

    def __len__(self) -> int:
        return len(self._loads)


def _tensors_read(file: Path, name: str) -> torch.Tensor:
    with safe_open(file, framework="pt") as opened:
        tensor: torch.Tensor = opened.get_tensor(name)
        return tensor

"""Models on disk, read without their code.

The root of such a model has the class "checkpoint" and its other nodes the class "group", because a
file of tensors does not say what computes with them. Nor does it say what is trained: all counts as
trainable parameters, except whole numbers and flags, the running statistics of norms and the state
of optimizers, which count as buffers. Files that name classes, which are exported programs and
pickled modules, keep them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

import torch
from safetensors import safe_open

from torchglass.capture.model.checkpoint_files import load_tensors, read_pickled, read_safetensors
from torchglass.capture.model.exported_programs import (
    is_archive,
    is_program_file,
    read_program_file,
)
from torchglass.errors import TargetError
from torchglass.records.model import Model

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
        # Parsers of broken files raise whatever they meet.
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise TargetError(f"{path.name} cannot be read, it may be corrupt: {reason}") from error
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
    """The files that together are the checkpoint at a path."""
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
            raise TargetError(f"{index.name} names a file outside its folder: {name}")
    if not names:
        raise TargetError(f"{index.name} names no files")
    return [index.with_name(name) for name in names]


Load = Callable[[], torch.Tensor]


class StoredTensors(Mapping[str, Load]):
    """How to load each tensor of a file, of several shards or of a folder, by its dotted name.

    The files are opened when the first one is asked for. An exported program gives none.
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
            return {name: partial(_itself, tensor) for name, tensor in loaded.items()}
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


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _tensors_read(file: Path, name: str) -> torch.Tensor:
    with safe_open(file, framework="pt") as opened:
        tensor: torch.Tensor = opened.get_tensor(name)
        return tensor

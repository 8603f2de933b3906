"""The tensors of a checkpoint, each loaded when someone asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path

import torch
from safetensors import safe_open

from torchglass.capture.checkpoint.exported import is_program_file
from torchglass.capture.checkpoint.pickled import load_tensors
from torchglass.capture.checkpoint.reading import checkpoint_files

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
            found.update({name: partial(_read, file, name) for name in names})
        return found

    def __getitem__(self, name: str) -> Load:
        return self._loads[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._loads)

    def __len__(self) -> int:
        return len(self._loads)


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _read(file: Path, name: str) -> torch.Tensor:
    with safe_open(file, framework="pt") as opened:
        tensor: torch.Tensor = opened.get_tensor(name)
        return tensor

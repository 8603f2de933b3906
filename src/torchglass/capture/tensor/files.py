"""Tensors of a trace in one safetensors file, which is read without running any code.

Tensors that safetensors does not support (sparse, nested, complex, quantized) are stored as their
dense parts. The file's header says how to reassemble them, as JSON:

    {"tensors/7.0": {"kind": "dense", "part": "4", "shape": [1, 384, 13, 13]}, …}

Several tensors may share one part: an output is often the same tensor as the result of the last op.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save, save_file

from torchglass.capture.tensor.description import COMPRESSED_INDICES
from torchglass.capture.torch_internals import DisableTorchFunction, FakeTensor, make_quantized
from torchglass.errors import StoreError, warn
from torchglass.records.trace import OpId

Key = tuple[OpId, int]
Tensors = Mapping[Key, torch.Tensor]
Entry = dict[str, Any]

_LAYOUT = "torchglass"
_CORRUPT = (
    *(ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError),
    SafetensorError,
)
"""What reading a corrupt or forged file raises."""
_QUANTIZED = (torch.per_tensor_affine, torch.per_tensor_symmetric)


def write_tensors(
    path: Path, groups: Mapping[str, Tensors], notes: Mapping[str, str] | None = None
) -> None:
    """Write named groups of tensors to a new file, with notes in its header."""
    parts, header = _encoded(groups)
    # safetensors creates files that only their owner can read; an existing one keeps its mode.
    path.touch()
    mode = path.stat().st_mode
    save_file(parts, path, {**header, **(notes or {})})
    path.chmod(mode)


def read_note(path: Path, name: str) -> str | None:
    """A note that `write_tensors` put into a file; None if there is none."""
    if path.is_dir():
        raise StoreError(f"cannot read {path}: it is a folder, not a file of tensors")
    try:
        with safe_open(path, framework="pt") as file:
            return (file.metadata() or {}).get(name)
    except (OSError, ValueError, SafetensorError) as error:
        raise StoreError(f"cannot read {path}: {error}") from error


def pack_tensors(groups: Mapping[str, Tensors]) -> bytes:
    """The same as bytes."""
    parts, header = _encoded(groups)
    packed: bytes = save(parts, header)
    return packed


def unpack_tensors(packed: bytes, group: str) -> dict[Key, torch.Tensor]:
    """A group of tensors from the bytes of `pack_tensors`."""
    try:
        # The header's length in eight bytes, then the header.
        header = json.loads(packed[8 : 8 + int.from_bytes(packed[:8], "little")])
        parts = load(packed)
        entries = json.loads(header["__metadata__"][_LAYOUT])
        return {key: _decoded(entry, parts) for key, entry in _of_group(entries, group).items()}
    except _CORRUPT as error:
        raise StoreError(f"these tensors are corrupt: {error!r}") from error


class SavedTensors(Mapping[Key, torch.Tensor]):
    """A group of tensors in a file, each read on demand and kept while it is used."""

    def __init__(self, path: Path, group: str) -> None:
        self._path = path
        self._group = group
        self._alive: WeakValueDictionary[Key, torch.Tensor] = WeakValueDictionary()

    def __getitem__(self, key: Key) -> torch.Tensor:
        entry = self._entries[key]
        tensor = self._alive.get(key)
        if tensor is None:
            try:
                tensor = self._alive[key] = _decoded(entry, _Parts(self._file))
            except _CORRUPT as error:
                raise StoreError(f"a tensor in {self._path} is corrupt: {error!r}") from error
        return tensor

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[Key]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @cached_property
    def _entries(self) -> dict[Key, Entry]:
        if not self._path.exists():
            return {}
        try:
            return _of_group(json.loads(self._file.metadata()[_LAYOUT]), self._group)
        except _CORRUPT as error:
            raise StoreError(f"the tensors in {self._path} are corrupt: {error!r}") from error

    @cached_property
    def _file(self) -> Any:
        try:
            return safe_open(self._path, framework="pt")
        except (OSError, SafetensorError) as error:
            raise StoreError(f"cannot read the tensors in {self._path}: {error}") from error


class _Parts:
    """The parts in an open file, by name."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def __getitem__(self, name: str) -> torch.Tensor:
        part: torch.Tensor = self._file.get_tensor(name)
        return part


def _of_group(entries: Mapping[str, Entry], group: str) -> dict[Key, Entry]:
    found = {}
    for name, entry in entries.items():
        of, _, place = name.partition("/")
        if of == group:
            op, _, output = place.partition(".")
            found[OpId(int(op)), int(output)] = entry
    return found


def _encoded(groups: Mapping[str, Tensors]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    encoder = _Encoder()
    entries = {}
    left_out = 0
    # Hidden from subclasses and tracing modes.
    with DisableTorchFunction():
        for group, tensors in groups.items():
            for (op, output), tensor in tensors.items():
                entry = encoder.entry_or_none(tensor)
                if entry is None:
                    left_out += 1
                else:
                    entries[f"{group}/{op}.{output}"] = entry
    if left_out:
        warn(f"{left_out} tensors cannot be saved and are left out")
    return encoder.parts, {_LAYOUT: json.dumps(entries)}


class _Encoder:
    """Takes tensors apart into dense parts, and stores shared memory once."""

    def __init__(self) -> None:
        self.parts: dict[str, torch.Tensor] = {}
        self._names: dict[tuple[Any, ...], str] = {}
        # Kept alive, so that no other tensor gets the same address.
        self._seen: list[torch.Tensor] = []
        self._memories: set[tuple[torch.device, int]] = set()

    def entry_or_none(self, tensor: torch.Tensor) -> Entry | None:
        """The entry of a tensor; None if its kind cannot be saved."""
        try:
            return self.entry(tensor)
        except Exception:  # noqa: BLE001 - a tensor class is foreign code
            return None

    def entry(self, tensor: torch.Tensor) -> Entry:
        """How to reassemble a tensor from its parts."""
        tensor = tensor.detach()
        shape = list(tensor.shape)
        if tensor.is_nested:
            return {"kind": "nested", "items": [self.entry(item) for item in tensor.unbind()]}
        if tensor.is_meta or isinstance(tensor, FakeTensor):
            return {"kind": "meta", "shape": shape, "dtype": _name(tensor.dtype)}
        if hasattr(type(tensor), "__tensor_flatten__"):
            raise TypeError(f"{type(tensor).__name__} cannot be saved")
        if tensor.layout is torch.sparse_coo:
            tensor = tensor.coalesce()
            parts = {"indices": tensor.indices(), "values": tensor.values()}
            return {"kind": "sparse_coo", "shape": shape, **self._entries(parts)}
        if tensor.layout in COMPRESSED_INDICES:
            names = (*COMPRESSED_INDICES[tensor.layout], "values")
            parts = {name: getattr(tensor, name)() for name in names}
            return {"kind": _name(tensor.layout), "shape": shape, **self._entries(parts)}
        if tensor.is_quantized and tensor.qscheme() in _QUANTIZED:
            scale = {"scale": tensor.q_scale(), "zero_point": tensor.q_zero_point()}
            return {"kind": "quantized", **scale, **self._entries({"numbers": tensor.int_repr()})}
        if tensor.is_complex():
            pairs = torch.view_as_real(tensor.resolve_conj())
            return {"kind": "complex", **self._entries({"pairs": pairs})}
        return {"kind": "dense", "part": self._part(tensor.resolve_neg()), "shape": shape}

    def _entries(self, parts: Mapping[str, torch.Tensor]) -> dict[str, Entry]:
        return {name: self.entry(part) for name, part in parts.items()}

    def _part(self, tensor: torch.Tensor) -> str:
        place = (tensor.device, tensor.data_ptr(), tensor.dtype)
        dense = tensor.is_contiguous()
        key = (*place, tensor.numel() if dense else (tensor.shape, tensor.stride()))
        if not tensor.numel() or key not in self._names:
            self._names[key] = str(len(self.parts))
            memory = (tensor.device, tensor.untyped_storage().data_ptr())
            # Two parts of one memory are refused by safetensors, whether or not they overlap.
            copy = not dense or memory in self._memories
            self._memories.add(memory)
            self._seen.append(tensor)
            self.parts[self._names[key]] = (
                tensor.clone(memory_format=torch.contiguous_format) if copy else tensor
            )
        return self._names[key]


def _decoded(entry: Entry, parts: Any) -> torch.Tensor:
    kind = entry["kind"]
    if kind == "dense":
        dense: torch.Tensor = parts[entry["part"]].reshape(entry["shape"])
        return dense
    if kind == "meta":
        return torch.empty(entry["shape"], dtype=getattr(torch, entry["dtype"]), device="meta")
    if kind == "nested":
        return torch.nested.as_nested_tensor(
            [_decoded(item, parts) for item in entry["items"]], layout=torch.jagged
        )
    made = {name: _decoded(part, parts) for name, part in entry.items() if isinstance(part, dict)}
    if kind == "complex":
        return torch.view_as_complex(made["pairs"])
    if kind == "quantized":
        return make_quantized(made["numbers"], entry["scale"], entry["zero_point"])
    if kind == "sparse_coo":
        return torch.sparse_coo_tensor(
            made["indices"],
            made["values"],
            entry["shape"],
            is_coalesced=True,
            check_invariants=True,
        )
    layout = getattr(torch, kind)
    compressed, plain = (made[name] for name in COMPRESSED_INDICES[layout])
    return torch.sparse_compressed_tensor(
        compressed, plain, made["values"], entry["shape"], layout=layout, check_invariants=True
    )


def _name(kind: torch.dtype | torch.layout) -> str:
    return str(kind).removeprefix("torch.")

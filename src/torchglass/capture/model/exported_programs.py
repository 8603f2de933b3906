"""Programs from torch.export: the live object and the .pt2 file.

A program knows its tensors by dotted name, and each operation in its graph says which modules it
came from. Together they give back the tree, with a class wherever something was computed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import torch
from torch.export import ExportedProgram

from torchglass.capture.model.checkpoint_contents import GROUP, tree
from torchglass.capture.model.live_modules import Identities
from torchglass.capture.tensor.description import describe
from torchglass.capture.torch_internals import exported_dtypes
from torchglass.errors import TargetError, UnsafeFileError
from torchglass.records.model import Model, Slot
from torchglass.records.tensors import TensorSpec

_TEXT = "/code/"
"""Where an archive keeps the source of TorchScript, the one thing that torch compresses."""


def allowing(what: str) -> str:
    """How to have something read that may run code."""
    return f"if you trust {what}, allow that with --unsafe (in code: unsafe=True)"


def is_archive(path: Path) -> bool:
    """Whether torch takes a file for a zip file."""
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


@contextmanager
def open_archive(path: Path) -> Iterator[ZipFile]:
    """A zip file whose content is no larger than itself.

    Torch stores its data without compression, to map it into memory. What is compressed, or
    declares more than the file has room for, was made to fill the memory of whoever loads it.
    """
    try:
        archive = ZipFile(path)
    except BadZipFile as error:
        raise TargetError(f"{path.name} is truncated or corrupt: {error}") from error
    with archive:
        stored = [member for member in archive.infolist() if _TEXT not in member.filename]
        actual, declared = path.stat().st_size, sum(member.file_size for member in stored)
        if any(member.compress_type != ZIP_STORED for member in stored) or declared > actual:
            raise TargetError(
                f"{path.name} is refused: it would grow from {actual:,} to {declared:,} bytes when"
                " loaded, but torch does not compress its files"
            )
        yield archive


_PROGRAM = f"{ExportedProgram.__module__}.{ExportedProgram.__qualname__}"
_MODEL_FILE = re.compile(r"(?P<top>.*?)models/(?P<name>[^/]+)\.json")
_LATER_CALL = re.compile(r"@\d+$")


def read_exported(program: ExportedProgram) -> Model:
    """The tree of the model that a program was exported from."""
    identities = Identities()
    parameters = set(program.graph_signature.parameters)
    slots = []
    for name, tensor in {**program.state_dict, **program.constants}.items():
        if isinstance(tensor, torch.Tensor):
            path, _, last = name.rpartition(".")
            slot = Slot(
                name=last,
                role="parameter" if name in parameters else "buffer",
                spec=describe(tensor),
                tensor=identities.of(tensor),
                trainable=name in parameters and tensor.requires_grad,
                persistent=name in program.state_dict,
            )
            slots.append((path, slot))
    stacks = [node.meta.get("nn_module_stack") or {} for node in program.graph.nodes]
    classes = _classes(
        [call.fqn for call in program.module_call_graph],
        [place for stack in stacks for place in stack.values()],
    )
    modules = tree(slots, root=_PROGRAM, classes=classes)
    return Model(name=modules[0].kind, modules=modules)


def is_program_file(path: Path) -> bool:
    """Whether a file is an exported program, of whichever version."""
    if not is_archive(path):
        return False
    with open_archive(path) as archive:
        names = {name.rpartition("/")[2] for name in archive.namelist()}
    return path.suffix == ".pt2" or "archive_format" in names


def read_program_file(path: Path, *, unsafe: bool) -> Model:
    """The tree of a program on disk, from the plain text that lies beside its weights.

    `torch.export.load` unpickles objects and evaluates expressions that it finds in the file. It is
    left to files without such text, of older versions, and to those who allow it.
    """
    with open_archive(path) as archive:
        found = [match for name in archive.namelist() if (match := _MODEL_FILE.fullmatch(name))]
        if len(found) == 1:
            return _read_text(archive, found[0])
    if not unsafe:
        raise UnsafeFileError(
            f"{path.name} can only be read by torch.export.load, which can run code from the "
            f"file; {allowing('it')}"
        )
    return read_exported(torch.export.load(path))


def _read_text(archive: ZipFile, found: re.Match[str]) -> Model:
    module = json.loads(archive.read(found[0]))["graph_module"]
    stacks = [node["metadata"].get("nn_module_stack", "") for node in module["graph"]["nodes"]]
    classes = _classes(
        [call["fqn"] for call in module["module_call_graph"]],
        [place.split(",")[1:] for stack in stacks if stack for place in stack.split(";")],
    )
    slots = _listed(archive, f"{found['top']}data", found["name"])
    modules = tree(slots, root=_PROGRAM, classes=classes)
    return Model(name=modules[0].kind, modules=modules)


def _listed(archive: ZipFile, data: str, name: str) -> Iterator[tuple[str, Slot]]:
    """The tensors that an archive lists, state dict first."""
    identities = Identities()
    for folder in ("weights", "constants"):
        config = json.loads(archive.read(f"{data}/{folder}/{name}_{folder}_config.json"))
        for full_name, entry in config["config"].items():
            path, _, last = full_name.rpartition(".")
            meta = entry["tensor_meta"] or {}
            yield (
                path,
                Slot(
                    name=last,
                    role="parameter" if entry["is_param"] else "buffer",
                    spec=_spec(meta),
                    tensor=identities.of_key((folder, entry["path_name"], str(meta))),
                    trainable=entry["is_param"] and meta.get("requires_grad", True),
                    persistent=folder == "weights",
                ),
            )


def _classes(paths: Iterable[str], places: Iterable[Sequence[Any]]) -> dict[str, str]:
    """Class names by path, as far as operations say which modules they come from."""
    classes = {path: GROUP for path in paths if path}
    for path, cls in places:
        name = f"{cls.__module__}.{cls.__qualname__}" if isinstance(cls, type) else cls
        classes[_LATER_CALL.sub("", path)] = name
    return classes


def _spec(meta: Mapping[str, Any]) -> TensorSpec:
    """The description of a tensor in the file, by way of one on "meta"."""
    if not meta:
        return TensorSpec(shape=None, dtype="unknown")
    sizes, strides = ([size["as_int"] for size in meta[key]] for key in ("sizes", "strides"))
    dtype = exported_dtypes()[meta["dtype"]]
    device = torch.device(meta["device"]["type"], meta["device"]["index"])
    spec = describe(torch.empty_strided(sizes, strides, dtype=dtype, device="meta"))
    return replace(spec, device=str(device))

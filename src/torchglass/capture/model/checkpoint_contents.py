"""The contents of checkpoints and exported programs, as trees of modules.

A program knows its tensors by dotted name, and each operation in its graph says which modules it
came from. Together they give back the tree, with a class wherever something was computed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import torch
from torch import nn
from torch.export import ExportedProgram

from torchglass.capture.model.module_parts import module_parts
from torchglass.capture.model.structure import Identities
from torchglass.capture.tensor.description import describe
from torchglass.capture.torch_internals import exported_dtypes
from torchglass.errors import TargetError, UnsafeFileError
from torchglass.records.model import (
    FilePart,
    Model,
    Module,
    ModuleId,
    Slot,
    SlotRole,
    TensorId,
    TensorSpec,
    join_path,
)

_MOST = 500_000
"""The limit of what is read: a small file can refer to its parts any number of times."""

Named = tuple[str, torch.Tensor, bool]
"""Name, tensor, and whether it is not part of the model: the state of an optimizer."""


class Divided(NamedTuple):
    """The tensors of a file by their names in the tree, and what else it contains."""

    tensors: list[Named]
    beside: list[FilePart]


def divided(content: Any) -> Divided:
    """The tensors of the one model in a file by the names that the model has for them.

    What else is in the file is prefixed with its key. If there are several models,
    as in a GAN or with averaged weights, all are prefixed.
    """
    others: list[tuple[str, Any]] = []
    while isinstance(content, Mapping) and not is_state_dict(content):
        chosen = _only_model(content)
        if chosen is None:
            break
        others += [(str(key), part) for key, part in content.items() if key != chosen]
        content = content[chosen]
    tensors = list(_tensors(content))
    top = {name.partition(".")[0] for name, _, _ in tensors}
    beside = []
    for key, part in others:
        name = f"{key} (file)" if key in top else key
        held = [(join_path(name, inner), tensor, True) for inner, tensor, _ in _tensors(part, "")]
        tensors += held
        beside.append(_described(key, part, name if held else ""))
    if isinstance(content, Mapping):
        beside += [
            _described(str(key), part)
            for key, part in content.items()
            if next(_tensors(part), None) is None
        ]
    return Divided(tensors, beside)


def is_state_dict(part: Any) -> bool:
    """Whether an object is probably a state dict, by its contents."""
    if not isinstance(part, Mapping) or _is_optimizer(part):
        return False
    tensors = [value for value in part.values() if isinstance(value, torch.Tensor)]
    is_named = all(isinstance(key, str) for key in part)
    weights = any(one.dim() and (one.is_floating_point() or one.is_complex()) for one in tensors)
    return is_named and weights and 2 * len(tensors) > len(part)


def _only_model(content: Mapping[Any, Any]) -> Any:
    """The key of the only model in a dict, or of the only dict with tensors."""
    models = [key for key, part in content.items() if is_state_dict(part)]
    if not models:
        holders = [key for key, part in content.items() if next(_tensors(part), None) is not None]
        models = [key for key in holders if isinstance(content[key], Mapping)]
        if len(holders) != 1:
            return None
    return models[0] if len(models) == 1 else None


def _is_optimizer(part: Any) -> bool:
    return isinstance(part, Mapping) and {"state", "param_groups"} <= part.keys()


def beside_modules(content: Any) -> tuple[FilePart, ...]:
    """The other entries of a dict of whole modules."""
    if not isinstance(content, Mapping):
        return ()
    parts = ((str(key), part) for key, part in content.items() if not _has_modules(part))
    return tuple(_described(key, part) for key, part in parts)


def _has_modules(part: Any) -> bool:
    return isinstance(part, nn.Module) or bool(module_parts(part))


def _described(key: str, part: Any, path: str = "") -> FilePart:
    tensors = list(_tensors(part))
    if not tensors:
        kind = "optimizer without state" if _is_optimizer(part) else _plain_text(part)
        return FilePart(name=key, text=kind)
    return FilePart(
        name=key,
        text=_optimizer_text(part),
        path=path,
        tensors=len(tensors),
        bytes=sum(describe(tensor).bytes for _, tensor, _ in tensors),
    )


def _optimizer_text(part: Any) -> str:
    """The optimizer that a state is probably of, by the names in it."""
    several = part if isinstance(part, (list, tuple)) else [part]
    found = [one for one in several if _is_optimizer(one)]
    if not found:
        return ""
    states = [state for one in found for state in one["state"].values()]
    names = {str(name) for state in states if isinstance(state, Mapping) for name in state}
    known = (kind for needed, kind in _OPTIMIZERS if needed <= names)
    return f"state of {next(known, 'an optimizer')}"


_OPTIMIZERS: tuple[tuple[set[str], str], ...] = (
    ({"exp_avg", "exp_avg_sq"}, "Adam or AdamW"),
    ({"exp_avg", "exp_inf"}, "Adamax"),
    ({"momentum_buffer"}, "SGD with momentum"),
    ({"square_avg"}, "RMSprop"),
    ({"exp_avg"}, "Lion"),
    ({"sum"}, "Adagrad"),
)
_LONGEST = 60


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _plain_text(part: Any) -> str:
    """A value, or the number of items of a container."""
    if isinstance(part, Mapping) and part:
        inner = ", ".join(f"{key}={_plain_text(value)}" for key, value in islice(part.items(), 8))
        return _short(inner)
    if isinstance(part, (Mapping, list, tuple)):
        return f"{len(part):,} item{'s' * (len(part) != 1)}" if part else "empty"
    try:
        return _short(" ".join(repr(part).split()))
    except Exception:  # noqa: BLE001 - a repr is foreign code
        return type(part).__qualname__


def _tensors(content: Any, alone: str = "tensor") -> Iterator[Named]:
    """All tensors in nested containers; `alone` names one that is not in a container."""
    waiting = [("", content, False)]
    for _ in range(_MOST):
        if not waiting:
            return
        name, part, state = waiting.pop()
        if isinstance(part, torch.Tensor):
            yield name or alone, part, state
            continue
        state = state or _is_optimizer(part)
        waiting += [(join_path(name, key), inner, state) for key, inner in reversed(_below(part))]
    raise TargetError(f"it has more than {_MOST:,} containers and tensors, or contains itself")


def _below(part: Any) -> list[tuple[str, Any]]:
    """The named parts that are tensors or containers."""
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(part, Mapping):
        items = part.items()
    elif isinstance(part, (list, tuple)):
        items = enumerate(part)
    return [
        (str(name), inner)
        for name, inner in items
        if isinstance(inner, (torch.Tensor, Mapping, list, tuple))
    ]


GROUP = "group"
"""The class of a node if only its name is known."""

CHECKPOINT = "checkpoint"
"""The class of the root of a model that was read from a file of tensors."""

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
_WHOLE_NUMBERS = ("int", "uint", "bool")
_DEEPEST = 500
"""Further dots stay part of the last name: no model is this deep, but a file may claim so."""


def stored_slot(
    name: str, spec: TensorSpec, tensor: TensorId, *, trainable: bool = True, state: bool = False
) -> tuple[str, Slot]:
    """The place of a stored tensor and the slot it has there, by its full name.

    A file does not distinguish parameters and buffers. Integers, running statistics of norms, and
    tensors known to be `state` count as buffers.
    """
    path, _, last = name.rpartition(".")
    buffer = state or last in _STATISTICS or spec.dtype.startswith(_WHOLE_NUMBERS)
    role: SlotRole = "buffer" if buffer else "parameter"
    return path, Slot(
        name=last, role=role, spec=spec, tensor=tensor, trainable=trainable and not buffer
    )


@dataclass(slots=True)
class _Group:
    path: str
    name: str
    parent: _Group | None
    slots: list[Slot] = field(default_factory=list)
    groups: dict[str, _Group] = field(default_factory=dict)
    id: ModuleId = field(init=False)

    def at(self, path: str) -> _Group:
        """The group at a dotted path below this one, created if missing."""
        group = self
        for name in path.split(".", _DEEPEST) if path else ():
            if name not in group.groups:
                group.groups[name] = _Group(join_path(group.path, name), name, group)
            group = group.groups[name]
        return group


def tree(
    slots: Iterable[tuple[str, Slot]], *, root: str, classes: Mapping[str, str] | None = None
) -> tuple[Module, ...]:
    """The modules that hold slots at dotted paths, in the order of the slots.

    `classes` are the class names by path where they are known, and `root` is that of the root;
    the class of any other node is "group", because a name does not say what it names.
    """
    known = {"": root, **(classes or {})}
    top = _Group("", "", None)
    for path in known:
        top.at(path)
    for path, slot in slots:
        top.at(path).slots.append(slot)
    return tuple(
        Module(
            id=group.id,
            path=group.path,
            name=group.name,
            class_name=known.get(group.path, GROUP),
            parent=None if group.parent is None else group.parent.id,
            children=tuple(child.id for child in group.groups.values()),
            slots=tuple(group.slots),
        )
        for group in _numbered(top)
    )


def _numbered(top: _Group) -> list[_Group]:
    groups: list[_Group] = []
    waiting = [top]
    while waiting:
        group = waiting.pop()
        group.id = ModuleId(len(groups))
        groups.append(group)
        waiting += reversed(group.groups.values())
    return groups


_TEXT = "/code/"
"""Where an archive keeps the source of TorchScript, the one thing that torch compresses."""


def allowing(what: str) -> str:
    """How to allow reading a file that may run code."""
    return f"if you trust {what}, allow that with --unsafe (in code: unsafe=True)"


def is_archive(path: Path) -> bool:
    """Whether a file is a zip file to torch."""
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


@contextmanager
def open_archive(path: Path) -> Iterator[ZipFile]:
    """A zip file whose content is no larger than itself.

    Torch stores its data without compression, to map it into memory. A file that is compressed, or
    declares more bytes than it has, is meant to exhaust the reader's memory.
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
    """Whether a file is an exported program, of any version."""
    if not is_archive(path):
        return False
    with open_archive(path) as archive:
        names = {name.rpartition("/")[2] for name in archive.namelist()}
    return path.suffix == ".pt2" or "archive_format" in names


def read_program_file(path: Path, *, unsafe: bool) -> Model:
    """The tree of a program on disk, from the plain text beside its weights.

    `torch.export.load` unpickles objects and evaluates expressions that it finds in the file. It is
    used only for files of older versions without that text, and only if the user allows it.
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

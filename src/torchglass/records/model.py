"""The structure of a model: its modules, their tensors, and which tensors are shared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NewType

from torchglass.records.tensors import TensorSpec

ModuleId = NewType("ModuleId", int)
TensorId = NewType("TensorId", int)
SlotRole = Literal["parameter", "buffer", "packed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A parameter or buffer of a module."""

    name: str
    role: SlotRole
    """"packed" is a weight of a quantized module that torch does not list."""
    spec: TensorSpec
    tensor: TensorId
    """The same id in two slots means a shared tensor (tied weights)."""
    trainable: bool = False
    persistent: bool = True
    """False for a buffer that is not in the state dict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One node of a model's tree."""

    id: ModuleId
    """Its index in `Model.modules`."""
    path: str
    """Dotted path in the model; "" is the model itself."""
    name: str
    """The last part of the path."""
    class_name: str
    """Qualified: "torch.nn.modules.conv.Conv2d"."""
    parent: ModuleId | None = None
    children: tuple[ModuleId, ...] = ()
    slots: tuple[Slot, ...] = ()
    extra: str = ""
    """Its `extra_repr`: "3, 64, kernel_size=(7, 7)"."""
    training: bool = True
    hooks: tuple[str, ...] = ()
    """The user's hooks, by kind and function name."""
    alias_of: ModuleId | None = None
    """The first occurrence of this same module in the tree; an alias has no children."""
    problem: str = ""
    """The error while reading this module; the rest of the model is still complete."""

    @property
    def kind(self) -> str:
        """The class name without its package: "Conv2d"."""
        return self.class_name.rpartition(".")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ancestor:
    """A class that another one inherits from."""

    class_name: str
    """Qualified, as in `Module.class_name`."""
    file: str = ""
    """The file of its code, "" if not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassSource:
    """The location of a class's code; the text is read on demand."""

    file: str
    forward_line: int | None = None
    """The line of `def forward` in the file; None if forward is not written in Python."""
    forward_file: str = ""
    """The file of `forward`, if it is inherited or was patched in from another file."""
    ancestors: tuple[Ancestor, ...] = ()
    """Its base classes in method resolution order, without `object`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePart:
    """Another part of a checkpoint besides the model."""

    name: str
    """Its key: "optimizer", "epoch"."""
    text: str = ""
    """A description: "3", "state of SGD with momentum"."""
    tensors: int = 0
    bytes: int = 0
    path: str = ""
    """The path of its tensors in the tree; "" if it has none."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A whole model: its modules in the order of the tree, parents before children."""

    name: str
    modules: tuple[Module, ...]
    classes: Mapping[str, ClassSource] = field(default_factory=dict)
    """The sources of the classes by `Module.class_name`, where known."""
    origin: str = ""
    """The file it was read from; "" for a live model."""
    also_in_file: tuple[FilePart, ...] = ()
    """The other parts of a checkpoint."""

    @property
    def root(self) -> Module:
        """The model itself."""
        return self.modules[0]

    def __getitem__(self, id: ModuleId) -> Module:
        return self.modules[id]

    def children(self, module: Module) -> Iterator[Module]:
        """The modules directly below one, in order."""
        return (self.modules[child] for child in module.children)

    def find(self, path: str) -> Module | None:
        """The module at a dotted path, or None."""
        return self._by_path.get(path)

    @cached_property
    def _by_path(self) -> dict[str, Module]:
        # Reversed: the first of two modules with one path wins (dotted names allow two).
        return {module.path: module for module in reversed(self.modules)}

    @cached_property
    def tied(self) -> Mapping[TensorId, tuple[str, ...]]:
        """For each tensor in several slots, the dotted names of those slots, in order."""
        # Count first: few of the many tensors of a large model are tied.
        uses = Counter([slot.tensor for module in self.modules for slot in module.slots])
        if len(uses) == uses.total():
            return {}
        names: dict[TensorId, list[str]] = {tensor: [] for tensor in uses if uses[tensor] > 1}
        for module in self.modules:
            for slot in module.slots:
                if slot.tensor in names:
                    names[slot.tensor].append(join_path(module.path, slot.name))
        return {tensor: tuple(places) for tensor, places in names.items()}


def join_path(*parts: str) -> str:
    """The dotted path of its parts, without empty ones."""
    return ".".join(part for part in parts if part)


def paths_above(path: str) -> Iterator[str]:
    """The paths of the modules around one, innermost first, without the model's own ""."""
    while "." in path:
        path = path.rpartition(".")[0]
        yield path

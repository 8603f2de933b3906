"""What a model is: its modules, the tensors they hold, and which of those are one and the same."""

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
    """A tensor that a module holds under a name."""

    name: str
    role: SlotRole
    """"packed" is a weight that a quantized module keeps where torch does not list it."""
    spec: TensorSpec
    tensor: TensorId
    """The same in two slots when both hold one tensor (tied weights)."""
    trainable: bool = False
    persistent: bool = True
    """False for a buffer that is left out of the state dict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One node of a model's tree."""

    id: ModuleId
    """Its index in `Model.modules`."""
    path: str
    """Dotted place in the model; "" is the model itself."""
    name: str
    """The last part of the path: what its parent calls it."""
    class_name: str
    """Qualified: "torch.nn.modules.conv.Conv2d"."""
    parent: ModuleId | None = None
    children: tuple[ModuleId, ...] = ()
    slots: tuple[Slot, ...] = ()
    extra: str = ""
    """What its `extra_repr` says: "3, 64, kernel_size=(7, 7)"."""
    training: bool = True
    hooks: tuple[str, ...] = ()
    """Hooks that were there before us, by kind and function name."""
    alias_of: ModuleId | None = None
    """Where this very module stands first in the tree; an alias has no children of its own."""
    problem: str = ""
    """What went wrong when this module was read; the rest of the model is still there."""

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
    """Where its code is, "" where that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassSource:
    """Where the code of a module's class is; the text itself is read when someone looks."""

    file: str
    forward_line: int | None = None
    """The line of `def forward` in the file; None where forward is not written in Python."""
    forward_file: str = ""
    """Set where `forward` is inherited from, or was put in, from another file."""
    ancestors: tuple[Ancestor, ...] = ()
    """What it inherits from, in the order in which Python looks there; `object` is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePart:
    """Something that a file holds beside the model."""

    name: str
    """Under which key it is kept: "optimizer", "epoch"."""
    text: str = ""
    """What it is: "3", "state of SGD with momentum"."""
    tensors: int = 0
    bytes: int = 0
    path: str = ""
    """Where its tensors are in the tree; "" where it has none."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A whole model: its modules in the order of the tree, parents before children."""

    name: str
    modules: tuple[Module, ...]
    classes: Mapping[str, ClassSource] = field(default_factory=dict)
    """The sources of the classes by `Module.class_name`, where they have any."""
    origin: str = ""
    """The file it was read from; "" for a live model."""
    also_in_file: tuple[FilePart, ...] = ()
    """What a checkpoint holds beside the model."""

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
        # Reversed, so that of two modules with one path (a dotted name can do that) the first wins.
        return {module.path: module for module in reversed(self.modules)}

    @cached_property
    def tied(self) -> Mapping[TensorId, tuple[str, ...]]:
        """For each tensor in several slots, the dotted names of those slots, first one first."""
        # Counted before anything is named: of the many tensors of a large model few are tied.
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
    """Dotted path of its parts, empty ones left out."""
    return ".".join(part for part in parts if part)

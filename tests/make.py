"""Records with defaults, so that analyses, views and exports are tested without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchglass.records.model import Model, Module, ModuleId, Slot, TensorId, join_path
from torchglass.records.tensors import TensorSpec

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "float64": 8}

Tree = Mapping[str, Any]


def spec(*shape: int, dtype: str = "float32", device: str = "cpu") -> TensorSpec:
    """The spec of a dense tensor."""
    count = 1
    for size in shape:
        count *= size
    return TensorSpec(shape=shape, dtype=dtype, device=device, bytes=count * _BYTES[dtype])


def model(tree: Tree | None = None, *, name: str = "Net") -> Model:
    """A model from nested dicts.

    A child is `{"class": "Linear", "extra": …, "weight": (2, 3), "children": {…}}`: a tuple is the
    shape of a parameter, and `"tied": {"weight": "embed.weight"}` names the slot it shares.
    """
    modules: list[Module] = []
    tensors: dict[str, TensorId] = {}

    def add(path: str, name: str, parent: ModuleId | None, node: Tree) -> ModuleId:
        own = ModuleId(len(modules))
        modules.append(Module(id=own, path=path, name=name, class_name=""))
        slots = []
        for slot, shape in node.items():
            if isinstance(shape, tuple):
                place = node.get("tied", {}).get(slot, join_path(path, slot))
                tensor = tensors.setdefault(place, TensorId(len(tensors)))
                slots.append(
                    Slot(
                        name=slot,
                        role="parameter",
                        spec=spec(*shape),
                        tensor=tensor,
                        trainable=True,
                    )
                )
        children = tuple(
            add(join_path(path, child), child, own, below)
            for child, below in node.get("children", {}).items()
        )
        modules[own] = Module(
            id=own,
            path=path,
            name=name,
            class_name=node.get("class", "torch.nn.modules.container.Sequential"),
            parent=parent,
            children=children,
            slots=tuple(slots),
            extra=node.get("extra", ""),
            problem=node.get("problem", ""),
        )
        return own

    add("", "", None, {"class": f"tests.{name}", **(tree or {})})
    return Model(name=name, modules=tuple(modules))

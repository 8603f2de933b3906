"""Records with defaults, so that analyses, views and exports are tested without torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torchglass.records.model import Model, Module, ModuleId, Slot, TensorId, TensorSpec, join_path
from torchglass.records.trace import (
    CallId,
    CallRecord,
    Operand,
    OpId,
    OpKind,
    OpRecord,
    TraceRecord,
    Value,
)

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


def call(
    id: int,
    path: str = "",
    *,
    parent: int | None = None,
    number: int = 1,
    inputs: Iterable[Value | tuple[int, ...]] = (),
    outputs: Iterable[Value | tuple[int, ...]] = (),
) -> CallRecord:
    """A call; a tuple among its inputs or outputs is the shape of a tensor in its own memory."""
    return CallRecord(
        id=CallId(id),
        parent=None if parent is None else CallId(parent),
        path=path,
        number=number,
        inputs=_values(inputs, first_memory=1000 * id),
        outputs=_values(outputs, first_memory=1000 * id + 500),
    )


def value(
    *shape: int,
    place: str = "",
    op: int | None = None,
    output: int = 0,
    memory: int | None = None,
) -> Value:
    """A dense tensor at a place of a call."""
    made_by = None if op is None else OpId(op)
    return Value(place=place, spec=spec(*shape), op=made_by, output=output, memory=memory)


def _values(items: Iterable[Value | tuple[int, ...]], first_memory: int) -> tuple[Value, ...]:
    return tuple(
        item
        if isinstance(item, Value)
        else value(*item, place=str(index), memory=first_memory + index)
        for index, item in enumerate(items)
    )


def op(
    id: int,
    function: str = "relu",
    *parents: int | tuple[int, int],
    kind: OpKind = "op",
    shape: tuple[int, ...] = (2, 3),
    parameters: Mapping[str, tuple[int, ...]] | None = None,
    **fields: Any,
) -> OpRecord:
    """An op that used the results of some others, and parameters given by their shapes.

    A parent is an op, or an op and which output of it.
    """
    made = [parent if isinstance(parent, tuple) else (parent, 0) for parent in parents]
    operands = [
        Operand(place=str(place), spec=spec(*shape), op=OpId(parent), output=output)
        for place, (parent, output) in enumerate(made)
    ]
    operands += [
        Operand(place=name.rpartition(".")[2], spec=spec(*size), parameter=name)
        for name, size in (parameters or {}).items()
    ]
    return OpRecord(
        id=OpId(id),
        kind=kind,
        function=function,
        operands=tuple(operands),
        **{
            "outputs": (Value(place="", spec=spec(*shape)),),
            # Ops of one site are passes of one layer, so each has its own unless a test says so.
            "site": id,
            **fields,
        },
    )


def trace(ops: Iterable[OpRecord], calls: Iterable[CallRecord] = (), **fields: Any) -> TraceRecord:
    """A pass of a model called Net."""
    return TraceRecord(**{"model": "Net", "calls": tuple(calls), "ops": tuple(ops), **fields})

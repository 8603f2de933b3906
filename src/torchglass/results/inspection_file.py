"""An inspection as Inspector Gadgets' tree of `info` and `children`, and back again.

Memory is in MB of 1e6 bytes and latency in milliseconds under the names of that tool. What is ours
stands beside them: `calls` has bytes and nanoseconds, by which the record is read back exactly.
`inspection.schema.json` describes the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torchglass.errors import StoreError
from torchglass.records.calls import (
    CallCost,
    CallTensor,
    InspectedCall,
    InspectedModel,
    InspectedModule,
    NonFinite,
)
from torchglass.records.json_data import from_json_data, nan_as_none, to_json_data
from torchglass.records.model import join_path

SCHEMA_FILE = Path(__file__).with_name("inspection.schema.json")

_MB = 1e6
_NS_PER_MS = 1e6
_MOMENTS = ("min", "max", "mean", "std")


def inspection_dict(model: InspectedModel) -> dict[str, Any]:
    """The tree of a model: its name, and below it `info` and `children` of each module."""
    trees: list[dict[str, Any]] = []
    for module in model.modules:
        trees.append({"info": module_info(model, module), "children": {}})
        if module.parent is not None:
            trees[module.parent]["children"][module.name] = trees[-1]
    trees[0]["info"] |= {"passes": model.passes, "notes": list(model.notes)}
    return {model.name: trees[0]}


def inspection_json(model: InspectedModel) -> str:
    """The same as JSON text, in ASCII, so that any name can be written anywhere."""
    return json.dumps(inspection_dict(model), indent=4, allow_nan=False)


def module_info(model: InspectedModel, module: InspectedModule) -> dict[str, Any]:
    """What the file says about a module; for an alias, what it says about the first path."""
    first = model.resolve(module)
    latest, back = first.latest, first.latest_back
    forward, backward = first.forward, first.backward
    bad_out = first.bad_outputs
    bad_grad_in, bad_grad_out = first.bad_input_gradients, first.bad_output_gradients
    return {
        "type": first.class_name,
        "input_shapes": _shapes(latest.inputs if latest else ()),
        "output_shapes": _shapes(latest.outputs if latest else ()),
        "grad_in_shape": _shapes(back.input_gradients if back else ()),
        "grad_out_shape": _shapes(back.output_gradients if back else ()),
        "num_parameters": first.parameters,
        "num_learnable_parameters": first.learnable,
        "param_memory_usage": first.parameter_bytes / _MB,
        "gradient_memory_usage": first.gradient_bytes / _MB,
        "input_memory_usage": _sizes(latest.inputs if latest else ()),
        "output_memory_usage": _sizes(latest.outputs if latest else ()),
        "effective_additional_memory_fwd": _added(forward),
        "effective_additional_memory_bwd": _added(backward),
        "forward_nan": any(bad_out),
        "grad_in_nan": any(bad_grad_in),
        "grad_out_nan": any(bad_grad_out),
        "total_memory": first.total_bytes / _MB,
        "forward_latency": None if forward is None else forward.total_ns / _NS_PER_MS,
        "backward_latency": None if backward is None else backward.total_ns / _NS_PER_MS,
        "forward_self_latency": None if forward is None else forward.self_ns / _NS_PER_MS,
        "backward_self_latency": None if backward is None else backward.self_ns / _NS_PER_MS,
        **_counts("forward", bad_out),
        **_counts("grad_in", bad_grad_in),
        **_counts("grad_out", bad_grad_out),
        "num_calls": first.call_count,
        **({} if module.same_as is None else {"same_as": module.same_as}),
        "calls": [nan_as_none(to_json_data(call)) for call in first.calls],
    }


def read_json(text: str | bytes) -> InspectedModel:
    """The record of what `inspection_json` wrote."""
    try:
        ((name, root),) = json.loads(text).items()
        modules = _read_tree(root)
        info = root["info"]
        record = InspectedModel(
            name=name, modules=tuple(modules), passes=info["passes"], notes=tuple(info["notes"])
        )
        # Whatever the file says, what is read has the types that all else relies on.
        return from_json_data(InspectedModel, to_json_data(record))
    except (
        *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
    ) as error:
        raise StoreError(
            f"this is not an inspection that Torchglass wrote, or it is corrupt: {error!r}"
        ) from error


def _read_tree(root: Mapping[str, Any]) -> list[InspectedModule]:
    modules: list[InspectedModule] = []
    waiting: list[tuple[str, Mapping[str, Any], int | None]] = [("", root, None)]
    while waiting:
        name, node, above = waiting.pop()
        index = len(modules)
        path = name if above is None else join_path(modules[above].path, name)
        modules.append(_read_module(path, name, above, node["info"]))
        waiting += [(below, child, index) for below, child in reversed(node["children"].items())]
    return modules


def _read_module(
    path: str, name: str, parent: int | None, info: Mapping[str, Any]
) -> InspectedModule:
    same_as = info.get("same_as")
    return InspectedModule(
        path=path,
        name=name,
        class_name=info["type"],
        parent=parent,
        parameters=info["num_parameters"],
        learnable=info["num_learnable_parameters"],
        parameter_bytes=round(info["param_memory_usage"] * _MB),
        gradient_bytes=round(info["gradient_memory_usage"] * _MB),
        call_count=info["num_calls"] if same_as is None else 0,
        calls=tuple(map(_read_call, info["calls"])) if same_as is None else (),
        same_as=same_as,
    )


def _read_call(plain: Mapping[str, Any]) -> InspectedCall:
    return from_json_data(InspectedCall, _with_nan(plain))


def _with_nan(plain: Any) -> Any:
    """Undo `nan_as_none`: statistics without a finite value are NaN."""
    if isinstance(plain, list):
        return [_with_nan(item) for item in plain]
    if not isinstance(plain, dict):
        return plain
    return {
        key: math.nan if value is None and key in _MOMENTS else _with_nan(value)
        for key, value in plain.items()
    }


def _shapes(tensors: Iterable[CallTensor]) -> list[list[int]]:
    return [list(tensor.spec.shape or ()) for tensor in tensors]


def _sizes(tensors: Iterable[CallTensor]) -> list[float]:
    return [tensor.spec.bytes / _MB for tensor in tensors]


def _added(effort: CallCost | None) -> float | None:
    if effort is None or effort.added_bytes is None:
        return None
    return effort.added_bytes / _MB


def _counts(what: str, found: NonFinite) -> dict[str, int]:
    return {f"{what}_nan_count": found.nan, f"{what}_inf_count": found.inf}

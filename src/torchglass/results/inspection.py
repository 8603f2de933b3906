"""The result of `inspect`: what each module did in a pass, with NaN and Inf traced to a module.

Its file is Inspector Gadgets' tree of `info` and `children`: memory is in MB of 1e6 bytes, latency
in milliseconds. We add `calls` in bytes and nanoseconds, from which the record is read back
exactly. `inspection.schema.json` describes the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torchglass.errors import LookupFailedError, StoreError
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
from torchglass.results.report import Report, hidden_line
from torchglass.results.result import schema_fields
from torchglass.tables.export import File, HtmlRow, tree_fragment, written
from torchglass.tables.text import (
    NOT_RUN,
    SAME_AS,
    Column,
    Fact,
    column_texts,
    csv_rows,
    first_shape,
    format_bytes,
    format_count,
    format_ns,
    format_share,
    framed,
    harmless,
    name_column,
    note_lines,
    number_column,
    readable_depth,
    shorten,
    wrapped,
)
from torchglass.targets.names import near

SCHEMA_FILE = Path(__file__).with_name("inspection.schema.json")

_MB = 1e6
_NS_PER_MS = 1e6
_MOMENTS = ("min", "max", "mean", "std")
_UNREADABLE = (
    *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
)


def inspection_dict(model: InspectedModel) -> dict[str, Any]:
    """The tree of a model: its name, and below it `info` and `children` of each module."""
    trees: list[dict[str, Any]] = []
    for module in model.modules:
        trees.append({"info": module_info(model, module), "children": {}})
        if module.parent is not None:
            trees[module.parent]["children"][module.name] = trees[-1]
    trees[0]["info"] |= {"passes": model.passes, "notes": list(model.notes)}
    return {model.name: trees[0]}


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
    """The record that an inspection was written from."""
    try:
        ((name, root),) = json.loads(text).items()
        modules = _read_tree(root)
        info = root["info"]
        record = InspectedModel(
            name=name, modules=tuple(modules), passes=info["passes"], notes=tuple(info["notes"])
        )
        # Checks the types, whatever the file contains.
        return from_json_data(InspectedModel, to_json_data(record))
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise StoreError(
            f"this is not an inspection written by Torchglass, or it is corrupt: {error!r}"
        ) from error


def _read_tree(root: Mapping[str, Any]) -> list[InspectedModule]:
    modules: list[InspectedModule] = []
    waiting: list[tuple[str, Mapping[str, Any], int | None]] = [("", root, None)]
    while waiting:
        name, node, above = waiting.pop()
        index = len(modules)
        path = name if above is None else join_path(modules[above].path, name)
        info = node["info"]
        same_as = info.get("same_as")
        own_calls = info["calls"] if same_as is None else ()
        modules.append(
            InspectedModule(
                path=path,
                name=name,
                class_name=info["type"],
                parent=above,
                parameters=info["num_parameters"],
                learnable=info["num_learnable_parameters"],
                parameter_bytes=round(info["param_memory_usage"] * _MB),
                gradient_bytes=round(info["gradient_memory_usage"] * _MB),
                call_count=info["num_calls"] if same_as is None else 0,
                calls=tuple(from_json_data(InspectedCall, _with_nan(call)) for call in own_calls),
                same_as=same_as,
            )
        )
        waiting += [(below, child, index) for below, child in reversed(node["children"].items())]
    return modules


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


_LONGEST_NAME = 44
_MINUS = "−"
_GRADIENT_LEGEND = "Gradient: root mean square of the gradient at the module's output."


class ModuleInspection:
    """One module of an inspected model.

    `info` has Inspector Gadgets' names and units (MB of 1e6 bytes, milliseconds); `record` has
    bytes and nanoseconds.
    """

    def __init__(self, model: InspectedModel, module: InspectedModule) -> None:
        self.record = model.resolve(module)
        self.path = module.path
        self._model = model
        self._module = module

    @property
    def info(self) -> dict[str, Any]:
        """What the file says about it."""
        return module_info(self._model, self._module)

    @property
    def calls(self) -> tuple[InspectedCall, ...]:
        """Its latest calls, one by one."""
        return self.record.calls

    def __repr__(self) -> str:
        lines = (f"  {key}: {value}" for key, value in self.info.items() if key != "calls")
        return "\n".join([self.path or self._model.name, *lines])


class InspectionRow(NamedTuple):
    """A module and its place in the tree."""

    module: InspectedModule
    depth: int
    last: bool


class Inspection(Report, Mapping[str, ModuleInspection]):
    """The inspected modules of a model by path. Print it for a table.

    The model itself is "", or its class name, as in the file.

    Args:
        record: What was recorded of the model.
    """

    def __init__(self, record: InspectedModel) -> None:
        self.record = record
        self._by_path = {module.path: module for module in reversed(record.modules)}

    @classmethod
    def read(cls, file: File) -> Inspection:
        """An inspection from its file."""
        return cls(read_json(Path(file).read_bytes()))

    @property
    def title(self) -> str:
        """The name of the model."""
        return self.record.name

    def __getitem__(self, path: str) -> ModuleInspection:
        module = self._by_path.get(path)
        if module is None and path == self.record.name:
            module = self._by_path.get("")
        if module is None:
            raise LookupFailedError(f"no module {path!r}{near(path, list(self._by_path))}")
        return ModuleInspection(self.record, module)

    def __iter__(self) -> Iterator[str]:
        return (module.path for module in self.record.modules)

    def __len__(self) -> int:
        return len(self.record.modules)

    def table(self, depth: int | None = None, *, width: int | None = None) -> str:
        """The modules as a table, down to a `depth`; columns that do not fit are left out."""
        every = self._rows()
        limit = depth if depth is not None else readable_depth([row.depth for row in every]) or 1
        shown = [row for row in every if row.depth <= limit]
        columns = self._columns([row.module for row in shown])
        names = (
            shorten(harmless(row.module.name or self.record.name), _LONGEST_NAME) for row in shown
        )
        below = [line for text in _origins(self.record) for line in wrapped(text, width)]
        below += note_lines(self.record.notes, width)
        if any(column.key == "gradient" for column in columns):
            below += wrapped(_GRADIENT_LEGEND, width)
        texts = [name_column(shown, names), *column_texts(columns, [row.module for row in shown])]
        deepest = max(row.depth for row in every)
        hidden = hidden_line(shown, every, deepest, width) if depth is None else []
        return framed(texts, hidden, below, room=width)

    def to_dict(self) -> dict[str, Any]:
        """The tree of `info` and `children` that the file holds."""
        return inspection_dict(self.record)

    def to_json(self, file: File | None = None) -> str:
        """The report as JSON, also written to `file` if one is given."""
        # In ASCII, so that any name can be written anywhere.
        return written(json.dumps(self.to_dict(), indent=4, allow_nan=False), file)

    def document(self) -> dict[str, Any]:
        """What `--json` prints: the tree of the file below "inspection", with its schema."""
        ((name, tree),) = self.to_dict().items()
        return {**schema_fields(type(self)), "model": name, "inspection": tree}

    def save(self, file: File) -> Path:
        """Write the JSON file, whatever its ending, and create its folder if needed."""
        path = Path(file)
        self.to_json(path)
        return path

    def _csv(self) -> tuple[Sequence[str], Iterable[Iterable[Any]]]:
        modules = self.record.modules
        path: Column[InspectedModule] = Column("path", value=lambda row: row.path or self.title)
        return csv_rows([path, *self._columns(modules)], modules)

    def _repr_html_(self) -> str:
        rows = self._rows()
        return tree_fragment(
            self.record.name,
            self.record.modules[0].class_name,
            [Fact("Passes", str(self.record.passes))],
            self._columns(self.record.modules),
            [
                HtmlRow(row.module, harmless(row.module.name or self.record.name), row.depth)
                for row in rows
            ],
            [*_origins(self.record), *self.record.notes],
        )

    def _rows(self) -> list[InspectionRow]:
        modules = self.record.modules
        depths: list[int] = []
        for module in modules:
            depths.append(0 if module.parent is None else depths[module.parent] + 1)
        last = {module.parent: index for index, module in enumerate(modules)}
        return [
            InspectionRow(module, depths[index], last[module.parent] == index)
            for index, module in enumerate(modules)
        ]

    def _columns(self, modules: Sequence[InspectedModule]) -> list[Column[InspectedModule]]:
        """The columns that are not empty for all of the modules."""
        root = self.record.modules[0]
        columns: list[Column[InspectedModule]] = [
            Column("class", "Class", _class, False, 1, value=lambda row: row.class_name),
            Column(
                "output",
                "Output",
                lambda row: first_shape(row.latest.outputs) if row.latest else "",
                right=False,
                spare=2,
            ),
            number_column(
                "parameters",
                "Params",
                lambda row: row.parameters,
                format_count,
                spare=6,
                csv="parameters",
            ),
            Column("calls", "Calls", _calls, spare=5, value=lambda row: row.call_count),
            *_time_columns("forward", lambda row: row.forward, root),
        ]
        if any(module.backward for module in modules):
            columns += _time_columns("backward", lambda row: row.backward, root)
        if any(map(_gradient, modules)):
            columns.append(Column("gradient", "Gradient", _gradient, spare=7))
        memory: list[Column[InspectedModule]] = [
            Column("forward_memory", "Memory fwd", lambda row: _added_text(row.forward), spare=3),
            Column("backward_memory", "bwd", lambda row: _added_text(row.backward), spare=3),
            Column("nan_inf", "NaN/Inf", _nonfinite_places, right=False, value=_nonfinite_places),
        ]
        return columns + [column for column in memory if any(map(column.text, modules))]


def _time_columns(
    stage: str, cost: Callable[[InspectedModule], CallCost | None], root: InspectedModule
) -> list[Column[InspectedModule]]:
    def total_ns(row: InspectedModule) -> int | None:
        found = cost(row)
        return None if found is None else found.total_ns

    def time(row: InspectedModule) -> str:
        taken = total_ns(row)
        return "" if taken is None else format_ns(taken)

    def share(row: InspectedModule) -> str:
        taken, whole = total_ns(row), total_ns(root)
        return "" if taken is None else format_share(taken, whole or 0)

    return [
        Column(stage, stage.capitalize(), time, csv=f"{stage}_ns", value=total_ns),
        Column(f"{stage}_share", "share", share, spare=4),
    ]


def _class(module: InspectedModule) -> str:
    if module.same_as is not None:
        return f"{SAME_AS} {harmless(module.same_as) or 'the model itself'}"
    return harmless(module.class_name)


def _calls(module: InspectedModule) -> str:
    if module.same_as is not None:
        return ""
    return f"{module.call_count:,}" if module.call_count else NOT_RUN


def _added_text(cost: CallCost | None) -> str:
    if cost is None or cost.added_bytes is None:
        return ""
    sign = _MINUS if cost.added_bytes < 0 else ""
    # In the units of the file, which are those of Inspector Gadgets.
    return sign + format_bytes(abs(cost.added_bytes), step=1000)


def _gradient(module: InspectedModule) -> str:
    """The root mean square of the gradient at its first output."""
    back = module.latest_back
    stats = back.output_gradients[0].stats if back and back.output_gradients else None
    if stats is None or module.same_as is not None:
        return ""
    return f"{math.hypot(stats.mean, stats.std):.2e}"


def _nonfinite_places(module: InspectedModule) -> str:
    """Where NaN and Inf are, by the names that the file has for these places."""
    places = {
        "output": module.bad_outputs,
        "grad_out": module.bad_output_gradients,
        "grad_in": module.bad_input_gradients,
    }
    return ", ".join(name for name, bad in places.items() if any(bad))


def _origins(model: InspectedModel) -> Iterator[str]:
    """The innermost modules whose inputs are finite and whose outputs are not."""
    for module in _innermost(model, lambda one: (one.bad_inputs, one.bad_outputs)):
        found = _counted(module.bad_outputs)
        yield f"{_named(module, model)} produced {found}: its inputs are finite."
    for module in _innermost(
        model, lambda one: (one.bad_output_gradients, one.bad_input_gradients)
    ):
        found, name = _counted(module.bad_input_gradients), _named(module, model)
        yield f"{name} produced {found} in backward: the gradient it received is finite."


def _innermost(
    model: InspectedModel, ends: Callable[[InspectedModule], tuple[NonFinite, NonFinite]]
) -> list[InspectedModule]:
    """The modules with finite inputs and non-finite outputs that contain no such module."""
    makers = []
    for index, module in enumerate(model.modules):
        before, after = ends(module)
        if any(after) and not any(before):
            makers.append(index)
    above: set[int] = set()
    for index in makers:
        parent = model.modules[index].parent
        while parent is not None:
            above.add(parent)
            parent = model.modules[parent].parent
    return [model.modules[index] for index in makers if index not in above]


def _named(module: InspectedModule, model: InspectedModel) -> str:
    return harmless(f"{module.path or model.name} ({module.class_name})")


def _counted(bad: NonFinite) -> str:
    found = [(bad.nan, "NaN"), (bad.inf, "Inf")]
    return " and ".join(f"{number:,} {what}" for number, what in found if number)

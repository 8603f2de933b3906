"""The columns that tell what a module is and what it holds."""

from __future__ import annotations

from torchglass.views.formats import format_bytes, format_count, harmless
from torchglass.views.tui.explorer_state import ExplorerState
from torchglass.views.tui.tree import column_values
from torchglass.views.tui.tree.columns import TreeColumn, number_column, share_column, text_column

NAME = text_column(
    lambda state, module: [(harmless(module.name), "name")],
    most=40,
    id="name",
    title="name",
    name="Module Name",
    group="name",
    usual=True,
    example=("layer1", "name"),
)

KIND: tuple[TreeColumn, ...] = (
    text_column(
        column_values.change,
        most=36,
        texts=column_values.changes,
        id="change",
        title="change",
        name="Change",
        group="change",
        applies=lambda state: state.comparison is not None,
        usual=True,
        example=("≠ weight Δ 0.012", "changed"),
    ),
    text_column(
        column_values.class_name,
        most=22,
        texts=column_values.class_names,
        id="class",
        title="class",
        name="Module Type",
        group="class",
        usual=True,
        example=("Conv2d", "class"),
    ),
    text_column(
        column_values.args,
        most=30,
        texts=column_values.all_args,
        id="args",
        title="args",
        name="Module Args",
        group="args",
        example=("3→64, 7×7", "args"),
    ),
)

PARAMETERS: tuple[TreeColumn, ...] = (
    number_column(
        column_values.parameters,
        lambda value: format_count(int(value)),
        "count",
        cells=7,
        id="params",
        title="params",
        name="Parameter Count",
        group="parameters",
        usual=True,
        example=("9.4K", "count"),
    ),
    share_column(
        column_values.parameters,
        "share",
        id="params share",
        title="share",
        name="Parameter Share",
        group="parameters",
        usual=True,
        example=("━━╸─── 41%", "heat3"),
    ),
    number_column(
        column_values.own_parameters,
        lambda value: format_count(int(value)),
        "own",
        cells=7,
        id="own params",
        title="own",
        name="Own Parameters",
        group="parameters",
        prefix="self=",
        among=False,
        example=("128", "own"),
    ),
)

BYTES: tuple[TreeColumn, ...] = (
    number_column(
        column_values.held_bytes,
        format_bytes,
        "bytes",
        cells=9,
        id="bytes",
        title="memory",
        name="Memory Usage",
        group="size",
        usual=True,
        example=("36.8 KB", "bytes"),
    ),
    share_column(
        column_values.held_bytes,
        "share",
        id="bytes share",
        title="of memory",
        name="Memory Share",
        group="memory",
        example=("━╸──── 25%", "heat2"),
    ),
    number_column(
        column_values.own_bytes,
        format_bytes,
        "bytes",
        cells=9,
        id="own bytes",
        title="own",
        name="Own Memory",
        group="memory",
        prefix="self=",
        example=("512 B", "bytes"),
    ),
)

TYPES: tuple[TreeColumn, ...] = (
    text_column(
        column_values.device,
        most=16,
        texts=column_values.devices,
        id="device",
        title="device",
        name="Device",
        group="device",
        example=("cuda:0", "device"),
    ),
    text_column(
        column_values.dtype,
        most=17,
        texts=column_values.dtypes,
        id="dtype",
        title="dtype",
        name="Data Types",
        group="device",
        example=("float32", "dtype"),
    ),
)

SHAPES: tuple[TreeColumn, ...] = (
    text_column(
        column_values.shapes,
        most=44,
        id="shapes",
        title="shapes",
        name="Parameter Shapes",
        group="shapes",
        example=("weight 64×3×7×7", "shape"),
    ),
)

NOTES: tuple[TreeColumn, ...] = (
    TreeColumn(
        draw=column_values.notes_of_row,
        width=lambda state: 32,
        id="notes",
        title="notes",
        name="Notes",
        group="notes",
        applies=ExplorerState.has_notes,
        usual=True,
        example=("= embed.weight", "note"),
    ),
)

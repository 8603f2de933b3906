"""The columns that tell what running a module took, and what went through it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torchglass.records.model import Module
from torchglass.records.tensors import TensorSpec
from torchglass.views.formats import format_bytes, format_count, shape_text
from torchglass.views.tui.explorer_state import ExplorerState, ModuleActivity
from torchglass.views.tui.text_rows import Piece
from torchglass.views.tui.tree import column_values
from torchglass.views.tui.tree.columns import (
    TreeColumn,
    not_together,
    number_column,
    share_column,
    text_column,
)

_NS_PER_MS = 1e6


def _flow_shapes(
    specs: Callable[[ModuleActivity], tuple[TensorSpec, ...]], style: str
) -> TreeColumn:
    """The shapes on one side of a module; those that go in are italic."""
    side = "in" if style == "in" else "out"

    def text(flow: ModuleActivity) -> str:
        first, *others = specs(flow) or (None,)
        more = f" +{len(others)}" if others else ""
        return "" if first is None else shape_text(first) + more

    def draw(state: ExplorerState, module: Module) -> Sequence[Piece]:
        return [(text(state.flow(module)), style)]

    return text_column(
        draw,
        most=28,
        texts=lambda state: [text(state.flow(module)) for module in state.model.modules],
        id=f"{side}put",
        title=f"{side}put",
        name=f"{side.capitalize()}put Shapes",
        group="flow",
        applies=column_values.knows(f"{side}puts"),
        prefix=f"{side}=",
        example=("1×64×56×56", style),
    )


MEMORY: tuple[TreeColumn, ...] = (
    number_column(
        column_values.flown(lambda flow: column_values.bytes_of(flow.inputs)),
        format_bytes,
        "in",
        cells=9,
        id="in bytes",
        heading="input_bytes",
        title="in mem",
        name="Input Memory",
        group="memory",
        applies=column_values.knows("inputs"),
        prefix="in_mem=",
        example=("784.0 KB", "in"),
    ),
    number_column(
        column_values.flown(lambda flow: column_values.bytes_of(flow.outputs)),
        format_bytes,
        "out",
        cells=9,
        id="out bytes",
        heading="output_bytes",
        title="out mem",
        name="Output Memory",
        group="memory",
        applies=column_values.knows("outputs"),
        prefix="out_mem=",
        example=("784.0 KB", "out"),
    ),
    number_column(
        column_values.flown(lambda flow: flow.activation_bytes),
        format_bytes,
        "bytes",
        cells=10,
        id="activations",
        heading="activation_bytes",
        title="activat.",
        name="Activations Kept",
        group="memory",
        applies=column_values.knows("activation_bytes"),
        prefix="kept=",
        example=("3.1 MB", "bytes"),
    ),
    number_column(
        column_values.flown(lambda flow: flow.peak_bytes),
        format_bytes,
        "bytes",
        cells=9,
        id="peak",
        heading="peak_bytes",
        together=max,
        title="peak",
        name="Peak Memory",
        group="memory",
        applies=column_values.knows("peak_bytes"),
        prefix="peak=",
        example=("9.2 MB", "bytes"),
    ),
)

TENSORS: tuple[TreeColumn, ...] = (
    _flow_shapes(lambda flow: flow.inputs, "in"),
    _flow_shapes(lambda flow: flow.outputs, "out"),
    text_column(
        column_values.flow_dtype,
        most=16,
        texts=column_values.flow_dtypes,
        id="flow dtype",
        title="dtypes",
        name="Tensor Data Types",
        group="flow",
        applies=column_values.knows("inputs"),
        example=("float16", "dtype"),
    ),
    number_column(
        column_values.flown(lambda flow: flow.calls),
        lambda value: f"{int(value):,}",
        "calls",
        cells=6,
        id="calls",
        title="calls",
        name="Call Count",
        group="flow",
        applies=column_values.knows("calls"),
        prefix="calls=",
        example=("4", "calls"),
    ),
)

TIME: tuple[TreeColumn, ...] = (
    number_column(
        column_values.time,
        column_values.seconds,
        "time",
        cells=9,
        id="time",
        heading="time_ms",
        per_unit=_NS_PER_MS,
        title="time",
        name="Total Time",
        group="time",
        applies=column_values.knows("total_ns"),
        usual=True,
        example=("1.23ms", "time"),
    ),
    share_column(
        column_values.time,
        "share",
        id="time share",
        title="of time",
        name="Time Share",
        group="time",
        applies=column_values.knows("total_ns"),
        example=("━━━╸── 58%", "heat4"),
    ),
    number_column(
        column_values.flown(lambda flow: flow.self_ns),
        column_values.seconds,
        "time",
        cells=9,
        id="own time",
        heading="self_time_ms",
        per_unit=_NS_PER_MS,
        title="self",
        name="Self Time",
        group="time",
        applies=column_values.knows("self_ns"),
        prefix="self=",
        example=("85.00μs", "time"),
    ),
    number_column(
        column_values.flown(lambda flow: flow.mean_ns),
        column_values.seconds,
        "time",
        cells=9,
        id="mean time",
        together=not_together,
        heading="time_per_call_ms",
        per_unit=_NS_PER_MS,
        title="per call",
        name="Time per Call",
        group="time",
        applies=column_values.knows("total_ns"),
        prefix="avg=",
        among=False,
        example=("0.31ms", "time"),
    ),
    number_column(
        column_values.flown(lambda flow: flow.backward_ns),
        column_values.seconds,
        "time",
        cells=9,
        id="backward",
        heading="backward_time_ms",
        per_unit=_NS_PER_MS,
        title="backward",
        name="Backward Time",
        group="time",
        applies=column_values.knows("backward_ns"),
        prefix="backward=",
        example=("2.41ms", "time"),
    ),
)

FLOPS: tuple[TreeColumn, ...] = (
    number_column(
        column_values.flops,
        lambda value: format_count(int(value)),
        "flops",
        cells=7,
        id="flops",
        title="FLOPs",
        name="FLOPs",
        group="flops",
        applies=column_values.knows("flops"),
        prefix="FLOPs=",
        example=("236.0M", "flops"),
    ),
    share_column(
        column_values.flops,
        "share",
        id="flops share",
        title="of FLOPs",
        name="FLOPs Share",
        group="flops",
        applies=column_values.knows("flops"),
        example=("━━──── 33%", "heat3"),
    ),
)

GRADIENTS: tuple[TreeColumn, ...] = (
    text_column(
        column_values.trend,
        most=column_values.SPARK + 1 + column_values.VALUE,
        id="trend",
        heading="gradient_std",
        title="gradient std",
        name="Gradient Trend",
        group="gradients",
        applies=ExplorerState.has_trends,
        series=ExplorerState.trend,
        usual=True,
        example=("▇▅▃▂▂▁▁▁", "spark"),
    ),
    number_column(
        column_values.update,
        column_values.format_value,
        "value",
        cells=9,
        id="update",
        heading="update_ratio",
        together=not_together,
        title="update",
        name="Update Ratio",
        group="gradients",
        applies=column_values.has_updates,
        series=column_values.update_series,
        prefix="update=",
        example=("0.0012", "value"),
    ),
)

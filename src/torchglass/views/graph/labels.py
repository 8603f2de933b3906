"""The texts of a drawing: labels and tooltips."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import PurePath

from torchglass.analyse.signatures import settings_text
from torchglass.records.graph import Edge, Node, PassInfo
from torchglass.records.tensors import TensorSpec
from torchglass.views.formats import (
    format_bytes,
    format_count,
    format_shape,
    format_time,
    harmless,
    plural,
    shorten,
)

_LONGEST_NAME = 44
_MOST_SHAPES = 3
_MOST_LINES = 5


def node_title(node: Node) -> str:
    """The first line of a node."""
    op, repetition = node.detail.op, node.detail.repetition
    if node.kind == "failure":
        return f"✗ {op.type} raised" if op is not None else "✗ raised here"
    name = short(node.name)
    if repetition.times > 1:
        name = f"{repetition.times} × {name} … {short(repetition.until)}"
    return f"{name} (×{repetition.passes})" if repetition.passes > 1 else name


def node_lines(node: Node, error: str) -> Iterator[str]:
    """The further lines of a node."""
    op, parameters = node.detail.op, node.detail.parameters
    if node.kind == "failure":
        yield from textwrap.wrap(harmless(error), _LONGEST_NAME, max_lines=_MOST_LINES)
    elif node.kind == "call":
        yield from _module_lines(node)
    if node.outputs:
        named = op.function if op is not None and node.kind in ("input", "output") else ""
        yield f"{short(named)}: {made(node.outputs)}" if named else made(node.outputs)
    if node.kind != "call":
        if parameters:
            yield f"params {_shapes(parameters.values())}"
        if node.module:
            yield f"@{short(node.module)}"


def _module_lines(node: Node) -> Iterator[str]:
    if node.detail.class_name:
        yield short(node.detail.class_name)
    elements = sum(spec.elements for spec in node.detail.parameters.values())
    params = f" · {format_count(elements)} params" if elements else ""
    yield f"{node.detail.op_count} ops{params}"


def node_hint(node: Node, error: str) -> str:
    """The tooltip of a node: everything that is known of it."""
    detail = node.detail
    # The op of a closed module is its first one, which does not describe the module.
    op = detail.op if node.kind != "call" else None
    lines = [harmless(node.name)]
    lines += [f"{_shape(spec)} {spec.dtype} {spec.device}" for spec in node.outputs]
    if op is not None and op.kind == "op":
        lines.append(harmless(f"{op.function}({settings_text(op)})"))
    if node.module:
        lines.append(f"module {harmless(node.module)} {harmless(detail.class_name)}".rstrip())
    lines += [f"{harmless(name)} {_shape(spec)}" for name, spec in detail.parameters.items()]
    if detail.cost.time_ns:
        lines.append(f"took {format_time(detail.cost.time_ns / 1e9)}")
    if op is not None and op.source is not None:
        # Pictures are shared, so the user's folders are left out.
        file = PurePath(op.source.file).name
        lines.append(harmless(f"{file}:{op.source.line} in {op.source.function}"))
    if detail.failed and error:
        lines.append(f"raised {harmless(error)}")
    return "\n".join(lines)


def box_title(box: Node, *, continued: bool = False) -> tuple[str, str]:
    """The two lines of a box's title."""
    name, class_name, repetition = (
        short(box.name),
        short(box.detail.class_name),
        box.detail.repetition,
    )
    title, below = name, class_name
    if repetition.times > 1:
        title = f"{repetition.times} × {class_name}"
        below = f"{name} … {short(repetition.until)}" if box.module else name
    if repetition.passes > 1:
        title = f"{title} (×{repetition.passes})"
    return title, "continued" if continued else below


def edge_lines(edge: Edge) -> Iterator[str]:
    """The lines of an edge's label, if any."""
    if edge.arguments:
        yield short(", ".join(edge.arguments))
    elif edge.tensors > 1:
        yield f"{edge.tensors} tensors"
    passes = [
        f"{way} {ranges(numbers)}"
        for way, numbers in (("Out", edge.out_passes), ("In", edge.in_passes))
        if numbers
    ]
    if passes:
        yield " / ".join(passes)


def ranges(numbers: Sequence[int]) -> str:
    """Numbers as ranges: 1-3, 5."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def headline(info: PassInfo) -> tuple[str, str]:
    """The two lines above a picture."""
    facts = [
        plural(info.op_count, "op"),
        _parameters(info.cost.parameters, info.parameters),
        f"{format_bytes(info.cost.bytes)} of tensors",
    ]
    if info.closed_at is not None:
        facts.append(f"modules closed at depth {info.closed_at}, depth=None opens all")
    if info.error:
        facts.append(f"raised {short(info.error.partition(':')[0])}")
    title = f"{info.model} · {info.focus}" if info.focus else info.model
    return short(title), " · ".join(facts)


def _parameters(used: int, held: int) -> str:
    """How many parameters the model has, and how many the pass used if that is fewer."""
    if used >= held:
        return f"{format_count(used)} parameters"
    return f"{format_count(held)} parameters ({format_count(used)} used)"


def made(specs: Sequence[TensorSpec]) -> str:
    """Shapes and size of a node's outputs."""
    return f"{_shapes(specs)} · {format_bytes(sum(spec.bytes for spec in specs))}"


def short(text: str) -> str:
    """A text without control characters that fits into a node."""
    return shorten(harmless(text), _LONGEST_NAME)


def _shapes(specs: Iterable[TensorSpec]) -> str:
    shapes = [_shape(spec) for spec in specs]
    shown = ", ".join(islice(shapes, _MOST_SHAPES))
    return f"{shown} +{len(shapes) - _MOST_SHAPES}" if len(shapes) > _MOST_SHAPES else shown


def _shape(spec: TensorSpec) -> str:
    return format_shape(spec.shape) or ("?" if spec.shape is None else "scalar")

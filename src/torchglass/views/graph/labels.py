"""The texts of a drawing: labels and tooltips."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import PurePath

from torchglass.analyse.graph.parts import Box, Edge, Graph, Node
from torchglass.analyse.signatures import settings_text
from torchglass.records.tensors import TensorSpec
from torchglass.views.formats import (
    format_bytes,
    format_count,
    format_shape,
    format_time,
    harmless,
    shorten,
)

_LONGEST_NAME = 44
_MOST_SHAPES = 3
_MOST_LINES = 5


def node_title(node: Node) -> str:
    """The first line of a node."""
    if node.kind == "failure":
        return f"✗ {node.op.type} raised" if node.op is not None else "✗ raised here"
    name = short(node.name)
    if node.again.times > 1:
        name = f"{node.again.times} × {name} … {short(node.again.until)}"
    return f"{name} (×{node.again.passes})" if node.again.passes > 1 else name


def node_lines(node: Node, error: str) -> Iterator[str]:
    """The further lines of a node."""
    if node.kind == "failure":
        yield from textwrap.wrap(harmless(error), _LONGEST_NAME, max_lines=_MOST_LINES)
    elif node.kind == "module":
        yield from _module_lines(node)
    if node.specs:
        named = node.kind in ("input", "output") and node.op is not None and node.op.function
        yield f"{short(named)}: {made(node.specs)}" if named else made(node.specs)
    if node.kind != "module":
        if node.parameters:
            yield f"params {_shapes(node.parameters.values())}"
        if node.module:
            yield f"@{short(node.module)}"


def _module_lines(node: Node) -> Iterator[str]:
    if node.class_name:
        yield short(node.class_name)
    elements = sum(spec.elements for spec in node.parameters.values())
    yield f"{node.ops} ops" + (f" · {format_count(elements)} params" if elements else "")


def node_hint(node: Node, error: str) -> str:
    """All that is known of a node."""
    lines = [harmless(node.name)]
    lines += [f"{_shape(spec)} {spec.dtype} {spec.device}" for spec in node.specs]
    if node.op is not None and node.op.kind == "op" and node.kind != "module":
        lines.append(harmless(f"{node.op.function}({settings_text(node.op)})"))
    if node.module:
        lines.append(f"module {harmless(node.module)} {harmless(node.class_name)}".rstrip())
    lines += [f"{harmless(name)} {_shape(spec)}" for name, spec in node.parameters.items()]
    if node.cost.time_ns:
        lines.append(f"took {format_time(node.cost.time_ns / 1e9)}")
    if node.op is not None and node.op.source is not None and node.kind != "module":
        source = node.op.source
        # Pictures are passed around, and nobody else's folders are alike.
        file = PurePath(source.file).name
        lines.append(harmless(f"{file}:{source.line} in {source.function}"))
    if node.failed and error:
        lines.append(f"raised {harmless(error)}")
    return "\n".join(lines)


def box_title(box: Box, *, continued: bool = False) -> tuple[str, str]:
    """The two lines of a box's title."""
    title, below = short(box.name), short(box.class_name)
    if box.again.times > 1:
        title = f"{box.again.times} × {below}"
        below = f"{short(box.name)} … {short(box.again.until)}" if box.module else short(box.name)
    if box.again.passes > 1:
        title = f"{title} (×{box.again.passes})"
    return title, "continued" if continued else below


def edge_lines(edge: Edge) -> Iterator[str]:
    """What an edge says, if anything."""
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
    """Numbers in short: 1-3, 5."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def headline(graph: Graph) -> tuple[str, str]:
    """The two lines above a picture."""
    cost = graph.cost
    facts = [
        f"{graph.ops:,} op{'s' * (graph.ops != 1)}",
        _parameters(cost.parameters, graph.parameters),
        f"{format_bytes(cost.bytes)} of tensors",
    ]
    if graph.closed_at is not None:
        facts.append(f"modules closed at depth {graph.closed_at}, depth=None opens all")
    if graph.error:
        facts.append(f"raised {short(graph.error.partition(':')[0])}")
    title = f"{graph.model} · {graph.focus}" if graph.focus else graph.model
    return short(title), " · ".join(facts)


def _parameters(used: int, held: int) -> str:
    """How many parameters the model has, and how many the pass used if that is fewer."""
    if used >= held:
        return f"{format_count(used)} parameters"
    return f"{format_count(held)} parameters ({format_count(used)} used)"


def made(specs: Sequence[TensorSpec]) -> str:
    """Shapes and size of what a node makes."""
    return f"{_shapes(specs)} · {format_bytes(sum(spec.bytes for spec in specs))}"


def short(text: str) -> str:
    """A text that fits into a node and does nothing but be read."""
    return shorten(harmless(text), _LONGEST_NAME)


def _shapes(specs: Iterable[TensorSpec]) -> str:
    shapes = [_shape(spec) for spec in specs]
    shown = ", ".join(islice(shapes, _MOST_SHAPES))
    return f"{shown} +{len(shapes) - _MOST_SHAPES}" if len(shapes) > _MOST_SHAPES else shown


def _shape(spec: TensorSpec) -> str:
    return format_shape(spec.shape) or ("?" if spec.shape is None else "scalar")

"""How the parts of a graph look: colors, texts and Graphviz attributes.

Outlines differ in lightness as well as in hue; shapes and text carry the same information.
"""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import PurePath
from typing import Any, Literal

from torchglass.analyse.signatures import settings_text
from torchglass.records.model import TensorSpec
from torchglass.records.trace import Edge, Graph, Node, NodeCost, NodeId, PassInfo
from torchglass.tables.text import (
    format_bytes,
    format_count,
    format_shape,
    format_share,
    format_time,
    harmless,
    plural,
    shorten,
)


@dataclass(frozen=True, slots=True)
class NodeColors:
    """The colors of one kind of node."""

    fill: str
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Palette:
    """All colors of a picture."""

    ground: str
    text: str
    dim: str
    """For secondary text: shapes, module paths, class names."""
    edge: str
    op: NodeColors
    parameters: NodeColors
    """An op or closed module with parameters."""
    input: NodeColors
    output: NodeColors
    buffer: NodeColors
    failure: NodeColors
    boxes: tuple[str, ...]
    """Fills of module boxes by depth, repeated from the first."""
    box_line: str
    repeat: str
    """The outline of nodes that are drawn once and ran several times."""
    ramp: tuple[str, str]
    """From low to high."""


_COLORS: Mapping[str, tuple[Any, Any]] = {
    "ground": ("#ffffff", "#14171c"),
    "text": ("#1b1f24", "#e8eaed"),
    "dim": ("#4d5661", "#aab3bf"),
    "edge": ("#5c6470", "#98a2b0"),
    "op": (NodeColors("#ffffff", "#7a838f"), NodeColors("#1d2229", "#8792a1")),
    "parameters": (NodeColors("#dfe3e9", "#59626e"), NodeColors("#3a424e", "#a4afbd")),
    "input": (NodeColors("#cdeee2", "#008a70"), NodeColors("#0d4335", "#5fe0bb")),
    "output": (NodeColors("#fcdcc8", "#93400f"), NodeColors("#56290c", "#f3a04e")),
    "buffer": (NodeColors("#fbf3d0", "#8a8000"), NodeColors("#443b0d", "#f7e34a")),
    "failure": (NodeColors("#fbd3e6", "#7a0a4e"), NodeColors("#5a0f3a", "#f9429e")),
    "boxes": (("#f5f7fa", "#e9eef5"), ("#1a1e25", "#21262f")),
    "box_line": ("#a3adba", "#566070"),
    "repeat": ("#0a5f9c", "#3fa9ec"),
    "ramp": (("#f2f7fd", "#0b4f94"), ("#1b222c", "#8cc8ff")),
}
LIGHT = Palette(**{name: light for name, (light, _) in _COLORS.items()})
DARK = Palette(**{name: dark for name, (_, dark) in _COLORS.items()})


def mix(palette: Palette, share: float) -> str:
    """The color at a position of the ramp, 0 to 1."""
    low, high = (_channels(color) for color in palette.ramp)
    mixed = (round(a + (b - a) * share) for a, b in zip(low, high, strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def text_on(fill: str) -> str:
    """The text color that is readable on a fill."""
    return max(("#000000", "#ffffff"), key=lambda color: contrast(color, fill))


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colors as WCAG defines it, 1 to 21."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(color: str) -> float:
    linear = [
        channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4
        for channel in (value / 255 for value in _channels(color))
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _channels(color: str) -> tuple[int, int, int]:
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


ColorBy = Literal["time", "params", "memory", "flops"]
Attributes = dict[str, str]
Override = Mapping[str, Any]
"""Graphviz attributes and their values, or functions of the node, edge or box that return them."""

_FONT = "Helvetica,Arial,Liberation Sans,DejaVu Sans,sans-serif"
_TITLE_SIZE = 11
_LINE_SIZE = 9
_HEADLINE_SIZE = 16

_MARGINS = {"ellipse": "0.01,0", "box3d": "0.11,0.09"}

_LAYOUT_ATTRIBUTES = frozenset(
    (
        *("rankdir", "ranksep", "nodesep", "splines", "concentrate", "ordering", "newrank"),
        *("compound", "clusterrank", "nslimit", "nslimit1", "mclimit", "searchsize", "maxiter"),
        "remincross",
    )
)
"""If one of them is set, dot is used, however long it takes."""

_MEASURES: Mapping[ColorBy, tuple[Callable[[NodeCost], int], Callable[[int], str]]] = {
    "time": (lambda cost: cost.time_ns, lambda value: format_time(value / 1e9)),
    "params": (lambda cost: cost.parameters, lambda value: f"{format_count(value)} params"),
    "memory": (lambda cost: cost.bytes, format_bytes),
    "flops": (lambda cost: cost.flops, lambda value: f"{format_count(value)} FLOPs"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Graphviz attributes that replace the defaults."""

    graph: Override = field(default_factory=dict)
    node: Override = field(default_factory=dict)
    module: Override = field(default_factory=dict)
    """For closed modules."""
    edge: Override = field(default_factory=dict)
    box: Override = field(default_factory=dict)


class GraphStyle:
    """The Graphviz attributes of all parts of one graph."""

    def __init__(
        self, graph: Graph, palette: Palette, color_by: ColorBy | None, overrides: Overrides
    ) -> None:
        self.graph = graph
        self.palette = palette
        self.color_by = color_by
        self._overrides = overrides
        self.depths: dict[NodeId | None, int] = {None: -1}
        """The number of boxes around each box."""
        for box in graph.boxes:
            self.depths[box.id] = self.depths[box.parent] + 1
        self.boxes = {box.id: box for box in graph.boxes}
        self.names = _distinct(graph.leaves)
        """The name of each node in Graphviz."""
        self._failed = {node.id for node in graph.leaves if node.detail.failed}
        self.most = max((self.measure(node.detail.cost) for node in graph.leaves), default=0)

    @property
    def chooses_layout(self) -> bool:
        """Whether the caller set a layout attribute of dot."""
        return not _LAYOUT_ATTRIBUTES.isdisjoint(self._overrides.graph)

    def of_graph(self) -> Attributes:
        palette = self.palette
        return {
            "bgcolor": palette.ground,
            "fontname": _FONT,
            "fontcolor": palette.text,
            "outputorder": "edgesfirst",
            **_chosen(self._overrides.graph, self.graph),
        }

    def of_node(self, node: Node) -> Attributes:
        colors = self._colors(node)
        lines = list(node_lines(node, self.graph.pass_info.error))
        if node.kind in ("op", "call") and self.measure(node.detail.cost):
            lines.append(self.amount(self.measure(node.detail.cost)))
        shape = _shape(node)
        overrides = self._overrides.module if node.kind == "call" else self._overrides.node
        return {
            "id": _literal(self.names[node.id]),
            "label": self._label(node_title(node), lines, colors.fill),
            "tooltip": _hint(node_hint(node, self.graph.pass_info.error), readings=2),
            "shape": shape,
            "style": _node_style(node),
            "fillcolor": colors.fill,
            "color": self.palette.repeat if node.detail.repetition.times > 1 else colors.line,
            "penwidth": "2.2" if node.detail.failed or node.detail.repetition.times > 1 else "1.1",
            "margin": _MARGINS.get(shape, "0.09,0.045"),
            "height": "0.3",
            "fontname": _FONT,
            **_chosen(overrides, node),
        }

    def of_edge(self, edge: Edge) -> Attributes:
        failed = edge.target in self._failed
        lines = "\n".join(edge_lines(edge))
        # Graphviz puts a label directly next to its edge.
        padded = "\n".join(f"  {line}  " for line in lines.split("\n"))
        way = f"{self.names[edge.source]} → {self.names[edge.target]}"
        return {
            "tooltip": _hint(f"{way}\n{lines}".rstrip()),
            "color": self.palette.failure.line if failed else self.palette.edge,
            "style": "dashed" if failed else "solid",
            "penwidth": "1.1",
            "arrowsize": "0.6",
            "fontname": _FONT,
            "fontsize": str(_LINE_SIZE),
            "fontcolor": self.palette.dim,
            **({"label": _literal(padded)} if lines else {}),
            **_chosen(self._overrides.edge, edge),
        }

    def of_box(self, box: Node) -> Attributes:
        """The attributes of a box, without its title."""
        repeats = box.detail.repetition.times > 1
        return {
            "id": _literal(harmless(f"box {box.name}")),
            "tooltip": _hint(harmless(f"{box.name} {box.detail.class_name}".rstrip())),
            "style": "rounded,filled",
            "fillcolor": self._box_fill(box),
            "color": self.palette.repeat if repeats else self.palette.box_line,
            "penwidth": "2.4" if repeats else "1.2",
            **_chosen(self._overrides.box, box),
        }

    def of_title(self, box: Node, *, continued: bool = False) -> list[Attributes]:
        """The attributes of a box's title lines, filled so that no edge shows through."""
        ground = f'bgcolor="{self._box_fill(box)}"'
        lines = self._title(box, continued)
        return [words_only(_table([line], "left", ground)) for line in lines]

    def title_of(self, box: Node) -> str:
        """The label that reserves space for the title of a box."""
        return _table(self._title(box, False), "left")

    def of_headline(self) -> Attributes:
        """The attributes of the lines above the picture."""
        model, facts = headline(self.graph.pass_info)
        rows = [
            _sized(_bold(model), _HEADLINE_SIZE, self.palette.text),
            _sized(_text(facts), _TITLE_SIZE, self.palette.dim),
        ]
        return words_only(_table(rows, "left"))

    def measure(self, cost: NodeCost) -> int:
        """The value that the color of a node shows."""
        return _MEASURES[self.color_by][0](cost) if self.color_by is not None else 0

    def amount(self, value: int) -> str:
        """A measured value as text."""
        if self.color_by is None:
            return ""
        whole = self.measure(self.graph.pass_info.cost)
        return " · ".join(
            filter(None, (_MEASURES[self.color_by][1](value), format_share(value, whole)))
        )

    def _title(self, box: Node, continued: bool) -> list[str]:
        title, below = box_title(box, continued=continued)
        color = self.palette.repeat if box.detail.repetition.times > 1 else self.palette.text
        lines = [_sized(_bold(title), _TITLE_SIZE, color)]
        return lines + ([_sized(_text(below), _LINE_SIZE, self.palette.dim)] if below else [])

    def _colors(self, node: Node) -> NodeColors:
        palette = self.palette
        if node.detail.failed:
            return palette.failure
        if self.color_by is not None and node.kind in ("op", "call"):
            # Costs span orders of magnitude; with a square root the small ones still differ.
            share = math.sqrt(self.measure(node.detail.cost) / self.most) if self.most else 0.0
            return NodeColors(fill=mix(palette, share), line=palette.op.line)
        if node.kind == "stub":
            return NodeColors(fill=palette.ground, line=palette.op.line)
        kinds = {"input": palette.input, "output": palette.output, "buffer": palette.buffer}
        return kinds.get(node.kind, palette.parameters if node.detail.parameters else palette.op)

    def _label(self, title: str, lines: Iterable[str], fill: str) -> str:
        text = text_on(fill)
        ramped = self.color_by is not None
        dim = text if ramped else self.palette.dim
        rows = [_sized(_bold(title), _TITLE_SIZE, text)]
        rows += [_sized(_text(line), _LINE_SIZE, dim) for line in lines]
        return _table(rows, "center")

    def _box_fill(self, box: Node) -> str:
        return self.palette.boxes[self.depths[box.id] % len(self.palette.boxes)]


def words_only(label: str) -> Attributes:
    """The attributes of free text."""
    return {"class": "text", "shape": "plain", "label": label, "fontname": _FONT, "tooltip": " "}


def _shape(node: Node) -> str:
    if node.kind in ("input", "output"):
        return "ellipse"
    if node.kind == "call":
        return "box3d"
    return "cylinder" if node.kind == "buffer" else "box"


def _node_style(node: Node) -> str:
    styles = ["filled"]
    if node.kind == "stub":
        styles.append("dotted")
    elif not node.detail.from_input:
        styles.append("dashed")
    # An op has round corners; an op that is a whole module has square ones.
    if node.kind in ("op", "stub") and not node.module:
        styles.append("rounded")
    return ",".join(styles)


def _distinct(nodes: Iterable[Node]) -> dict[NodeId, str]:
    """The name of each node without control characters, still different from all others."""
    shown: dict[NodeId, str] = {}
    taken: set[str] = set()
    for node in nodes:
        text = harmless(node.name)
        while text in taken:
            text += "\u200b"
        taken.add(text)
        shown[node.id] = text
    return shown


def _chosen(overrides: Override, part: Any) -> Attributes:
    return {
        name: str(value(part) if callable(value) else value) for name, value in overrides.items()
    }


def _literal(text: str) -> str:
    """A text without escapes, entities or markup for Graphviz."""
    return _unmarked(text.replace("\\", "\\\\").replace("&", "&amp;").replace("\n", "\\n"))


def _unmarked(text: str) -> str:
    # Graphviz reads a text in angle brackets as markup; a zero-width space in front prevents that.
    return f"\u200b{text}" if text.startswith("<") and text.endswith(">") else text


def _hint(text: str, *, readings: int = 1) -> str:
    """A tooltip, which Graphviz unescapes `readings` times."""
    escaped = text.replace("\\", "\\" * 2**readings).replace("&", "&amp;")
    return _unmarked(escaped.replace("\n", "&#10;"))


def _text(text: str) -> str:
    # Graphviz also unescapes markup: two backslashes become one.
    return html.escape(text.replace("\\", "\\\\")) or " "


def _bold(text: str) -> str:
    return f"<b>{_text(text)}</b>"


def _sized(markup: str, size: int, color: str) -> str:
    return f'<font point-size="{size}" color="{color}">{markup}</font>'


def _table(rows: Iterable[str], align: str, attributes: str = "") -> str:
    cells = "".join(f'<tr><td align="{align}">{row}</td></tr>' for row in rows)
    return f'<<table border="0" cellpadding="0" cellspacing="1" {attributes}>{cells}</table>>'


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
    lines += [f"{_sizes(spec)} {spec.dtype} {spec.device}" for spec in node.outputs]
    if op is not None and op.kind == "op":
        lines.append(harmless(f"{op.function}({settings_text(op)})"))
    if node.module:
        lines.append(f"module {harmless(node.module)} {harmless(detail.class_name)}".rstrip())
    lines += [f"{harmless(name)} {_sizes(spec)}" for name, spec in detail.parameters.items()]
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
    shapes = [_sizes(spec) for spec in specs]
    shown = ", ".join(islice(shapes, _MOST_SHAPES))
    return f"{shown} +{len(shapes) - _MOST_SHAPES}" if len(shapes) > _MOST_SHAPES else shown


def _sizes(spec: TensorSpec) -> str:
    return format_shape(spec.shape) or ("?" if spec.shape is None else "scalar")

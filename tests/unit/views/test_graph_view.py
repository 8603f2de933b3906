from __future__ import annotations

import math
import re
import threading
from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

import pytest

from tests import make
from torchglass.errors import ViewError
from torchglass.records.trace import (
    Edge,
    Graph,
    Node,
    NodeCost,
    NodeDetail,
    NodeId,
    PassInfo,
    Repetition,
    SourceLine,
)
from torchglass.views.graph.arrange import arrange, arrange_in_rows
from torchglass.views.graph.graphviz import DotGraph, graphviz
from torchglass.views.graph.layout import FLOW_DIRECTIONS, Area, Direction, GraphLayout, wrap
from torchglass.views.graph.render import draw
from torchglass.views.graph.style import (
    DARK,
    LIGHT,
    GraphStyle,
    Overrides,
    Palette,
    contrast,
    mix,
    ranges,
    text_on,
)

SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}"


_DETAILS = {field.name for field in fields(NodeDetail)}
_INFO = {field.name for field in fields(PassInfo)}
Part = dict[str, Any]
"""A node, box or edge whose ends and box are given by name."""


def op(name: str, **given: Any) -> Part:
    return {"name": name, "kind": "op", "outputs": (make.spec(2, 3),), **given}


def box(name: str, **given: Any) -> Part:
    return {"name": name, "kind": "call" if "path" in given else "repeat", **given}


def edge(source: str, target: str, **given: Any) -> Part:
    return {"source": source, "target": target, **given}


def graph(
    nodes: Sequence[Part], edges: Sequence[Part] = (), boxes: Sequence[Part] = (), **info: Any
) -> Graph:
    in_order = [*boxes, *nodes]
    ids = {("box", part["name"]): NodeId(at) for at, part in enumerate(boxes)}
    ids |= {("node", part["name"]): NodeId(at) for at, part in enumerate(nodes, len(boxes))}
    return Graph(
        nodes=tuple(_node(NodeId(at), part, ids) for at, part in enumerate(in_order)),
        edges=tuple(
            Edge(
                **{
                    **part,
                    "source": ids["node", part["source"]],
                    "target": ids["node", part["target"]],
                }
            )
            for part in edges
        ),
        pass_info=PassInfo(model="Net", **info),
    )


def _node(id: NodeId, part: Part, ids: dict[tuple[str, str], NodeId]) -> Node:
    inside = {name: value for name, value in part.items() if name in _DETAILS}
    rest = {name: value for name, value in part.items() if name not in {*_DETAILS, "box"}}
    parent = ids["box", part["box"]] if part.get("box") else None
    return Node(id=id, parent=parent, detail=NodeDetail(**inside), **rest)


def named(drawn: Graph, name: str) -> NodeId:
    return next(node.id for node in drawn.leaves if node.name == name)


def chain(length: int, around: str | None = None) -> Graph:
    nodes = [op(f"relu_{n}_{n}", box=around) for n in range(1, length + 1)]
    edges = [edge(one["name"], other["name"]) for one, other in pairwise(nodes)]
    # A residual that skips over the next op, so that cuts meet more than one edge.
    edges += [
        edge(one["name"], other["name"])
        for one, other in zip(nodes[::4], nodes[2::4], strict=False)
    ]
    return graph(nodes, edges, [box(around, path=around)] if around else [])


def svg(drawn: Graph, **options: Any) -> ElementTree.Element:
    return ElementTree.fromstring(draw(drawn, **options))


def parts(picture: ElementTree.Element, kind: str) -> dict[str, ElementTree.Element]:
    return {
        element.get("id", ""): element
        for element in picture.iter(f"{SVG}g")
        if element.get("class") == kind
    }


def hint(element: ElementTree.Element) -> str:
    return next(link.get(f"{LINK}title", "") for link in element.iter(f"{SVG}a"))


def words(element: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in element.iter(f"{SVG}text")]


def size(picture: ElementTree.Element) -> tuple[float, float]:
    _, _, width, height = (float(side) for side in picture.get("viewBox", "").split())
    return width, height


def arranged(drawn: Graph, direction: Direction = "down", lay_out: Any = arrange) -> GraphLayout:
    style = GraphStyle(drawn, LIGHT, None, Overrides())
    with graphviz() as drawer:
        return wrap(lay_out(style, FLOW_DIRECTIONS[direction], drawer), shape=1.0)


def overlap(one: Area, other: Area) -> bool:
    return (
        one.begin < other.end
        and other.begin < one.end
        and one.left < other.right
        and other.left < one.right
    )


def distance(point: tuple[float, float], area: Area) -> float:
    along = max(area.begin - point[0], 0, point[0] - area.end)
    across = max(area.left - point[1], 0, point[1] - area.right)
    return math.hypot(along, across)


def test_each_node_has_its_name_as_id_and_shows_its_shape() -> None:
    picture = svg(graph([op("relu_1_1"), op("relu_2_2")]))

    assert list(parts(picture, "node")) == ["relu_1_1", "relu_2_2"]
    assert words(parts(picture, "node")["relu_1_1"]) == ["relu_1_1", "2×3 · 24 B"]


def test_a_node_shows_its_parameters_and_module() -> None:
    node = op("linear_1_1", parameters={"fc.weight": make.spec(3, 3)}, path="fc", is_module=True)

    picture = svg(graph([node]))

    assert words(parts(picture, "node")["linear_1_1"])[2:] == ["params 3×3", "@fc"]


def test_a_collapsed_module_shows_its_contents() -> None:
    node = op(
        "h.0",
        kind="call",
        class_name="Block",
        op_count=30,
        parameters={"w": make.spec(100, 10)},
        repetition=Repetition(times=12, until="h.11"),
    )

    picture = svg(graph([node]))

    assert words(parts(picture, "node")["h.0"]) == [
        "12 × h.0 … h.11",
        "Block",
        "30 ops · 1.0K params",
        "2×3 · 24 B",
    ]


def test_the_tooltip_shows_all_details_of_a_node() -> None:
    source = SourceLine(file="/home/someone/net.py", line=7, function="forward")
    record = make.op(1, "dropout", settings=(("1", "0.5"),), source=source)
    node = op(
        "dropout_1_1", op=record, path="drop", is_module=True, cost=NodeCost(time_ns=1_500_000)
    )

    picture = svg(graph([node]))

    assert hint(parts(picture, "node")["dropout_1_1"]).split("\n") == [
        "dropout_1_1",
        "2×3 float32 cpu",
        "dropout(p=0.5)",
        "module drop",
        "took 1.50ms",
        "net.py:7 in forward",
    ]


def test_a_box_has_its_name_and_its_class() -> None:
    drawn = graph(
        [op("a", box="features")], boxes=[box("features", path="features", class_name="Sequential")]
    )

    picture = svg(drawn)

    assert hint(parts(picture, "cluster")["box features"]) == "features Sequential"
    assert {"features", "Sequential"} <= set(words(picture))


def test_a_repeated_box_shows_its_count() -> None:
    repetition = Repetition(times=12, until="h.11")
    block = box("h.0", path="h.0", class_name="Block", repetition=repetition)

    picture = svg(graph([op("a", box="h.0")], boxes=[block]))

    assert {"12 × Block", "h.0 … h.11"} <= set(words(picture))


def test_edges_show_arguments_counts_and_passes() -> None:
    drawn = graph(
        [op("a"), op("b"), op("c")],
        [
            edge("a", "b", arguments=("left", "right")),
            edge("b", "c", tensors=3),
            edge("c", "c", out_passes=(1, 2, 3), in_passes=(2, 3, 4)),
        ],
    )

    said = [text.strip() for text in words(svg(drawn))]

    assert {"left, right", "3 tensors", "Out 1-3 / In 2-4"} <= set(said)


def test_passes_are_written_as_ranges() -> None:
    assert ranges((1,)) == "1"
    assert ranges((1, 2, 3, 5, 7, 8)) == "1-3, 5, 7-8"


def test_the_headline_summarizes_the_pass() -> None:
    drawn = graph([op("a")], op_count=24, cost=NodeCost(parameters=61_100_840, bytes=4_400_000))

    assert words(svg(drawn))[:2] != []
    assert {"Net", "24 ops · 61.1M parameters · 4.2 MB of tensors"} <= set(words(svg(drawn)))


def test_the_legend_explains_only_what_is_drawn() -> None:
    nodes = [op("x", kind="input"), op("a", from_input=False)]

    said = set(words(svg(graph(nodes))))

    assert {"input", "not from the input", "round: an op"} <= said
    assert not {"output", "buffer", "raised", "has parameters"} & said


def test_the_op_that_raised_is_marked() -> None:
    raised = op("✗ raised", kind="failure", outputs=(), op=make.op(1, "linear"), failed=True)
    error = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 9x3)"
    drawn = graph([op("a"), raised], [edge("a", "✗ raised")], error=error)

    picture = svg(drawn)

    said = words(parts(picture, "node")["✗ raised"])
    assert said[0] == "✗ linear raised"
    assert " ".join(said[1:]) == error


@pytest.mark.parametrize(
    "name",
    [
        'a"b',
        "<b>bold</b>",
        "a&amp;b",
        "back\\slash",
        r"\N\G\E\n\l",
        "{a|<p>b}",
        "a:b",
        "ünï 😀",
        "-->",
        "cluster_0",
    ],
)
def test_a_hostile_name_is_shown_verbatim(name: str) -> None:
    closed = op(name, kind="call", path=name, box="in " + name)
    drawn = graph(
        [closed, op("b", path=name, is_module=True)],
        [edge(name, "b"), edge("b", name)],
        [box("in " + name, path=name)],
    )

    picture = svg(drawn)

    ids = [shown.lstrip("\u200b") for shown in parts(picture, "node")]
    assert ids == [name, "b"]
    assert words(parts(picture, "node")["b"])[-1] == f"@{name}"
    assert f"in {name}" in words(picture)
    assert hint(parts(picture, "node")["b"]).endswith(f"module {name}")


def test_names_that_differ_only_in_invisible_characters_stay_two_nodes() -> None:
    drawn = graph([op("a\nb"), op("a\\nb"), op("a\x00b"), op("\ud800")])

    assert len(parts(svg(drawn), "node")) == 4


@pytest.mark.parametrize("direction", ["down", "up", "right"])
@pytest.mark.parametrize("around", [None, "features"])
def test_a_long_chain_fits_a_page(direction: Direction, around: str | None) -> None:
    picture = svg(chain(60, around), direction=direction)

    width, height = size(picture)
    assert 0.5 < width / height < 2.0


@pytest.mark.parametrize("lay_out", [arrange, arrange_in_rows])
@pytest.mark.parametrize("direction", ["down", "up", "right"])
def test_wrapped_edges_connect_their_source_and_target(direction: Direction, lay_out: Any) -> None:
    drawn = chain(60, "features")

    layout = arranged(drawn, direction, lay_out)

    for edge, route in zip(drawn.edges, layout.routes, strict=True):
        assert distance(route.curve[0], layout.nodes[edge.source]) < 2
        assert distance(route.tip, layout.nodes[edge.target]) < 2


@pytest.mark.parametrize("lay_out", [arrange, arrange_in_rows])
def test_wrapped_nodes_do_not_overlap_and_stay_in_their_box(lay_out: Any) -> None:
    layout = arranged(chain(60, "features"), lay_out=lay_out)

    assert not any(overlap(*pair) for pair in combinations(layout.nodes.values(), 2))
    assert [frame.continued for frame in layout.frames] == [False] + [True] * (
        len(layout.frames) - 1
    )
    assert len(layout.frames) > 1
    assert not any(overlap(*pair) for pair in combinations([f.area for f in layout.frames], 2))
    for node in layout.nodes.values():
        assert any(overlap(node, frame.area) for frame in layout.frames)


@pytest.mark.parametrize("lay_out", [arrange, arrange_in_rows])
def test_wrapping_does_not_route_edges_through_nodes(lay_out: Any) -> None:
    drawn = chain(60)

    layout = arranged(drawn, lay_out=lay_out)

    for edge, route in zip(drawn.edges, layout.routes, strict=True):
        others = [
            area for node, area in layout.nodes.items() if node not in (edge.source, edge.target)
        ]
        # The points where Bézier curves meet lie on the edge itself.
        for point in route.curve[::3]:
            assert all(distance(point, area) > 0 for area in others)


def test_a_drawing_that_fits_a_page_is_not_wrapped() -> None:
    layout = arranged(chain(6, "features"))

    assert len(layout.frames) == 1


def test_in_row_layout_only_edges_of_one_node_share_a_lane() -> None:
    nodes = [op(f"relu_{n}_{n}") for n in range(8)]
    ends = [(0, 3), (0, 5), (1, 6), (2, 7)]
    edges = [edge(nodes[a]["name"], nodes[b]["name"]) for a, b in ends]

    routes = arranged(graph(nodes, edges), lay_out=arrange_in_rows).routes

    lanes = [max(across for _, across in route.curve) for route in routes]
    assert lanes[0] == lanes[1]
    assert len(set(lanes)) == 3


def test_in_row_layout_a_box_border_is_outside_of_its_lanes() -> None:
    nodes = [op(f"relu_{n}_{n}", box="inner" if n < 5 else "outer") for n in range(9)]
    boxes = [box("outer", path="outer"), box("inner", box="outer", path="inner")]
    edges = [edge(nodes[a]["name"], nodes[b]["name"]) for a, b in [(0, 2), (1, 4), (2, 7)]]

    layout = arranged(graph(nodes, edges, boxes), lay_out=arrange_in_rows)

    outer, inner = (frame.area for frame in layout.frames)
    lanes = [max(across for _, across in route.curve) for route in layout.routes]
    assert max(lanes[:2]) < inner.right < outer.right
    assert outer.left < inner.left
    assert outer.begin < inner.begin < inner.end < outer.end


def test_a_crash_of_graphviz_is_an_exception() -> None:
    with pytest.raises(ViewError, match="Graphviz"), graphviz() as drawer:
        drawer.draw(DotGraph(), "no such format", engine="dot")


def test_a_loop_across_a_wrap_returns_along_the_same_route() -> None:
    whole = chain(60)
    back = Edge(source=named(whole, "relu_60_60"), target=named(whole, "relu_1_1"))
    drawn = replace(whole, edges=(*whole.edges, back))

    layout = arranged(drawn)

    assert distance(layout.routes[-1].tip, layout.nodes[named(drawn, "relu_1_1")]) < 2


def test_positions_are_as_exact_at_the_end_of_a_long_chain_as_at_its_start() -> None:
    nodes = [op(f"relu_{n}_{n}") for n in range(500)]
    edges = [edge(one["name"], other["name"]) for one, other in pairwise(nodes)]
    drawn = graph(nodes, edges)
    style = GraphStyle(drawn, LIGHT, None, Overrides())

    with graphviz() as drawer:
        layout = arrange(style, FLOW_DIRECTIONS["down"], drawer)

    places = [layout.nodes[node.id].begin for node in drawn.leaves]
    gaps = [later - sooner for sooner, later in pairwise(places)]
    assert places[-1] - places[0] > 10_000
    assert max(gaps) - min(gaps) < 0.1


def test_an_empty_graph_can_be_drawn() -> None:
    assert "Net" in words(svg(graph([])))


@pytest.mark.parametrize(
    ("ending", "begins"),
    [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF"), ("jpg", b"\xff\xd8")],
)
def test_the_path_extension_selects_the_image_format(
    ending: str, begins: bytes, tmp_path: Path
) -> None:
    path = tmp_path / f"net.{ending}"

    picture = draw(graph([op("a")]), path)

    assert path.read_bytes() == picture
    assert picture.startswith(begins)


def test_an_explicit_format_overrides_the_extension(tmp_path: Path) -> None:
    path = tmp_path / "net.picture"

    assert draw(graph([op("a")]), path, format="png").startswith(b"\x89PNG")


def test_invalid_options_list_the_valid_ones(tmp_path: Path) -> None:
    drawn = graph([op("a")])

    with pytest.raises(ViewError, match="format must be one of svg, png, pdf, jpg, dot, not 'bmp'"):
        draw(drawn, tmp_path / "net.bmp")
    with pytest.raises(ViewError, match="direction must be one of down, up, right, not 'left'"):
        draw(drawn, direction=cast("Any", "left"))
    with pytest.raises(ViewError, match="color_by must be one of time, params, memory, flops"):
        draw(drawn, color_by=cast("Any", "size"))


def test_colors_show_costs_and_the_legend_shows_the_scale() -> None:
    nodes = [op("a", cost=NodeCost(time_ns=1_000_000)), op("b", cost=NodeCost(time_ns=4_000_000))]
    drawn = graph(nodes, cost=NodeCost(time_ns=5_000_000))

    picture = svg(drawn, color_by="time")

    fills = [
        next(path.get("fill") for path in element.iter(f"{SVG}path"))
        for element in parts(picture, "node").values()
    ]
    assert fills == [mix(LIGHT, 0.5), mix(LIGHT, 1.0)]
    assert {"4.00ms · 80%", "time, up to 4.00ms · 80%"} <= set(words(picture))


def test_dark_drawings_have_a_dark_background() -> None:
    picture = svg(graph([op("a")]), dark=True)

    assert next(picture.iter(f"{SVG}polygon")).get("fill") == DARK.ground


def test_graphviz_attributes_can_be_overridden() -> None:
    drawn = graph(
        [op("a", box="m"), op("b", box="m")],
        [edge("a", "b")],
        [box("m")],
    )
    overrides = Overrides(
        graph={"bgcolor": "#123456"},
        node={"fillcolor": lambda node: "#aa0000" if node.name == "a" else "#00aa00"},
        edge={"color": "#0000aa"},
        box={"penwidth": 7},
    )

    text = draw(drawn, overrides=overrides).decode()

    for color in ("#123456", "#aa0000", "#00aa00", "#0000aa", 'stroke-width="7"'):
        assert color in text


def test_drawing_works_in_several_threads() -> None:
    pictures: list[bytes] = []
    threads = [threading.Thread(target=lambda: pictures.append(draw(chain(20)))) for _ in range(4)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(pictures)) == 1
    assert len(pictures) == 4


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_all_text_has_sufficient_contrast(palette: Palette) -> None:
    inks = [
        palette.op,
        palette.parameters,
        palette.input,
        palette.output,
        palette.buffer,
        palette.failure,
    ]
    fills = [palette.ground, *palette.boxes, *(ink.fill for ink in inks)]

    assert min(contrast(palette.dim, fill) for fill in fills) >= 4.5
    assert min(contrast(palette.repeat, fill) for fill in palette.boxes) >= 4.5
    assert min(contrast(text_on(fill), fill) for fill in fills) >= 4.5
    ramp = [mix(palette, step / 20) for step in range(21)]
    assert min(contrast(text_on(fill), fill) for fill in ramp) >= 4.5


@pytest.mark.parametrize("palette", [LIGHT, DARK])
@pytest.mark.parametrize("vision", ["all cones", "no red", "no green", "no blue"])
def test_outlines_are_distinguishable_with_color_blindness(palette: Palette, vision: str) -> None:
    lines = [
        ink.line for ink in (palette.input, palette.output, palette.buffer, palette.failure)
    ] + [palette.repeat]

    seen = [_as_seen(color, vision) for color in lines]

    assert min(math.dist(one, other) for one, other in combinations(seen, 2)) > 0.08


_VISIONS = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    # The matrices of Machado, Oliveira and Fernandes (2009) for vision without one kind of cones.
    "no red": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "no green": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "no blue": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}


def _as_seen(color: str, vision: str) -> tuple[float, float, float]:
    """A color in Oklab, where equal distances look equally large."""
    red, green, blue = (int(pair, 16) / 255 for pair in re.findall("..", color[1:]))
    linear = [
        channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4
        for channel in (red, green, blue)
    ]
    r, g, b = (
        min(
            1.0,
            max(0.0, sum(weight * channel for weight, channel in zip(row, linear, strict=True))),
        )
        for row in _VISIONS[vision]
    )
    long = (0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b) ** (1 / 3)
    middle = (0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b) ** (1 / 3)
    short = (0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b) ** (1 / 3)
    return (
        0.2104542553 * long + 0.7936177850 * middle - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * middle + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * middle - 0.8086757660 * short,
    )

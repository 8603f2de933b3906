"""Places the blocks of a diagram in columns, and routes the lines between them.

The longest chain of a module is a straight column. A branch has a column beside it. A line that
passes by blocks, such as a skip connection, has its own lane at the side, and enters a "+"
from there. Modules are placed from the inside out: a module is a block whose lines continue inside.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torchglass.analyse.block_diagram import BlockDiagram, DiagramBlock, DiagramPanel, Flow
from torchglass.records.trace import NodeId
from torchglass.tables.text import format_shape
from torchglass.views.graph.vector_page import Point, text_width

TITLE_SIZE = 10.5
LINE_SIZE = 8.5
SHAPE_SIZE = 8.0
TIMES_SIZE = 13.0
LINE_HEIGHT = 12.0
PAD_Y = 7.0
_PAD_X = 12.0
_SYMBOL = 18.0
"""The diameter of a "+"."""
_NARROWEST = 84.0
_GAP = 20.0
"""Between two blocks of a column."""
_LABEL_GAP = 30.0
"""The same where the arrow has a shape."""
_FORK = 9.0
"""How far below a block its lines split."""
_COLUMN_GAP = 26.0
_LANE = 13.0
_INSET = 14.0
_HEADING = 24.0
"""The height of the title of a module."""
_PANEL_GAP = 44.0
_PORT_GAP = 22.0
_TALLEST = 1.15
"""Panels beside the model are stacked up to this many times its height."""

Shapes = Mapping[NodeId, str]


@dataclass(slots=True)
class Wire:
    """A line along some corners."""

    points: list[Point]
    has_arrow: bool
    label: str = ""
    label_at: Point = (0.0, 0.0)
    is_label_left: bool = False


@dataclass(slots=True)
class BlockFrame:
    """A block with its size, and what is inside, relative to its upper left corner."""

    block: DiagramBlock
    width: float
    height: float
    axis: float
    """Where its main line runs, from the left."""
    parts: list[tuple[float, float, BlockFrame]] = field(default_factory=list)
    wires: list[Wire] = field(default_factory=list)
    entries: dict[NodeId, float] = field(default_factory=dict)
    """Where each tensor enters at the top of a module."""
    exits: dict[NodeId, float] = field(default_factory=dict)

    def entry(self, tensor: NodeId) -> float:
        """Where a tensor enters, from the main line."""
        return self.entries.get(tensor, self.axis) - self.axis

    def exit(self, tensor: NodeId) -> float:
        """Where a tensor leaves, from the main line."""
        return self.exits.get(tensor, self.axis) - self.axis


@dataclass(slots=True)
class BlockPage:
    """All panels of a diagram."""

    width: float
    height: float
    panels: list[tuple[float, float, DiagramPanel, BlockFrame]]


@dataclass(frozen=True, slots=True)
class _Branch:
    """A chain of blocks beside the main one, and the ranks that it takes."""

    column: int
    blocks: list[int]
    low: int
    high: int


def place(diagram: BlockDiagram) -> BlockPage:
    """Place all panels: the model at the left, its modules beside it."""
    shapes = {node: format_shape(shape) for node, shape in diagram.shapes.items()}
    frames = [_ModuleLayout(panel.block, shapes, panel).frame() for panel in diagram.panels]
    placed = [(0.0, 0.0, diagram.panels[0], frames[0])]
    limit = max(frame.height for frame in frames) * _TALLEST
    x, y, widest = frames[0].width + _PANEL_GAP, 0.0, 0.0
    for panel, frame in zip(diagram.panels[1:], frames[1:], strict=True):
        if y and y + frame.height > limit:
            x, y, widest = x + widest + _PANEL_GAP, 0.0, 0.0
        placed.append((x, y, panel, frame))
        widest = max(widest, frame.width)
        y += frame.height + _PANEL_GAP
    width = max(left + frame.width for left, _, _, frame in placed)
    return BlockPage(width, max(top + frame.height for _, top, _, frame in placed), placed)


def block_lines(block: DiagramBlock) -> list[str]:
    """The lines of text below the title of a block."""
    lines = [" · ".join(block.more)] if block.more else []
    if block.family == "module" and block.path:
        lines.append(block.path)
    return lines


def _leaf(block: DiagramBlock) -> BlockFrame:
    if block.is_symbol:
        return BlockFrame(block, _SYMBOL, _SYMBOL, _SYMBOL / 2)
    lines = block_lines(block)
    times = text_width(f"× {block.times}", TITLE_SIZE, bold=True) + 10 if block.times > 1 else 0.0
    widths = [text_width(block.title, TITLE_SIZE, bold=True) + times]
    widths += [text_width(line, LINE_SIZE) for line in lines]
    least = 30.0 if block.family in ("join", "activation") else _NARROWEST
    width = max(least, max(widths) + 2 * _PAD_X)
    return BlockFrame(block, width, 2 * PAD_Y + LINE_HEIGHT * (1 + len(lines)) - 2, width / 2)


class _ModuleLayout:
    """The layout of the inside of one module. The main column is at x = 0."""

    def __init__(
        self,
        block: DiagramBlock,
        shapes: Shapes,
        panel: DiagramPanel | None = None,
        *,
        mirrored: bool = False,
    ) -> None:
        self._block = block
        self._shapes = shapes
        self._panel = panel
        self._mirrored = mirrored
        self._last = len(block.children)
        self._edges = list(dict.fromkeys(block.flows))
        self._rank = _ranks(self._edges, self._last)
        self._bypasses = _bypasses(self._edges, self._last)
        self._branches: list[_Branch] = []
        self._columns = self._assign_columns()
        self._entries = self._spread(block.inputs, is_entry=True)
        self._exits = self._spread(block.outputs, is_entry=False)
        self._children = [self._framed(number) for number in range(self._last)]
        self._labels = {flow: self._label(flow) for flow in self._edges}
        self._x: dict[int, float] = {}
        self._top: dict[int, float] = {}
        self._bottom = 0.0

    def frame(self) -> BlockFrame:
        """The module with everything inside in its place."""
        self._place_rows()
        left, right = self._place_columns()
        lanes = self._lanes()
        left = min([left, *lanes.values()])
        right = max([right, *lanes.values()])
        left, right = self._with_heading(left - self._inset, right + self._inset)
        frame = BlockFrame(self._block, right - left, self._bottom, -left)
        for number, child in enumerate(self._children):
            at = self._x[number] - child.axis - left
            frame.parts.append((at, self._top[number], child))
        frame.entries = {tensor: x - left for tensor, x in self._entries.items()}
        frame.exits = {tensor: x - left for tensor, x in self._exits.items()}
        frame.wires = [self._wire(flow, lanes) for flow in self._edges]
        for wire in frame.wires:
            wire.points = [(x - left, y) for x, y in wire.points]
            wire.label_at = (wire.label_at[0] - left, wire.label_at[1])
        return frame

    @property
    def _is_framed(self) -> bool:
        return self._panel is None or bool(self._panel.title)

    @property
    def _inset(self) -> float:
        return _INSET if self._is_framed else 0.0

    def _with_heading(self, left: float, right: float) -> tuple[float, float]:
        """Wide enough for the title beside the line that enters in the middle."""
        if not self._is_framed:
            return left, right
        title = self._panel.title if self._panel is not None else self._block.name
        need = text_width(title, TITLE_SIZE, bold=True) + 2 * _INSET
        need -= min(self._entries.values(), default=0.0)
        if self._panel is not None and len(self._entries) > 1:
            need += text_width(self._shapes.get(self._block.inputs[0], ""), SHAPE_SIZE) + 8
        times = f"× {self._block.times}" if self._block.times > 1 else ""
        need_right = text_width(times, TIMES_SIZE, bold=True) + 2 * _INSET if times else 0.0
        return min(left, -need), max(right, need_right)

    def _framed(self, number: int) -> BlockFrame:
        """A child with its size; its second input is at the side that it comes from."""
        block = self._block.children[number]
        if not block.children:
            return _leaf(block)
        frame = _ModuleLayout(block, self._shapes).frame()
        sources = {
            flow.tensor: self._source_place(flow)
            for flow in self._edges
            if flow.target == number and flow not in self._bypasses
        }
        main = next((one for one in frame.entries if not frame.entry(one)), None)
        if main in sources and any(sources[main] > other for other in sources.values()):
            return _ModuleLayout(block, self._shapes, mirrored=True).frame()
        return frame

    def _source_place(self, flow: Flow) -> tuple[int, float]:
        """Orders the sources of a child from left to right, before anything is placed."""
        if flow.source is None:
            return 0, self._entries[flow.tensor]
        return self._columns[flow.source], 0.0

    def _ends(self, flow: Flow) -> tuple[int, int]:
        return (
            -1 if flow.source is None else flow.source,
            self._last if flow.target is None else flow.target,
        )

    # Ranks and columns

    def _assign_columns(self) -> dict[int, int]:
        """The column of each child; 0 is the longest chain."""
        before: dict[int, set[int]] = defaultdict(set)
        after: dict[int, set[int]] = defaultdict(set)
        for flow in self._edges:
            if flow not in self._bypasses:
                source, target = self._ends(flow)
                after[source].add(target)
                before[target].add(source)
        columns: dict[int, int] = {}
        taken: dict[int, list[tuple[int, int]]] = defaultdict(list)
        left = set(range(self._last))
        spine = _longest_chain(left, after)
        columns.update(dict.fromkeys(spine, 0))
        left -= set(spine)
        while left:
            chain = _longest_chain(left, after)
            left -= set(chain)
            low = max((self._rank[one] for one in before[chain[0]]), default=-1) + 1
            high = min((self._rank[one] for one in after[chain[-1]]), default=self._deepest) - 1
            low = min(low, self._rank[chain[0]])
            high = max(high, self._rank[chain[-1]])
            column = self._free_column(chain, spine, taken, (low, high))
            slack = (high - self._rank[chain[-1]]) // 2 if before[chain[0]] else 0
            for one in chain:
                self._rank[one] += slack
            taken[column].append((low, high))
            columns.update(dict.fromkeys(chain, column))
            self._branches.append(_Branch(column, chain, low, high))
        return columns

    @property
    def _deepest(self) -> int:
        return self._rank[self._last]

    def _free_column(
        self,
        chain: Sequence[int],
        spine: Sequence[int],
        taken: Mapping[int, Sequence[tuple[int, int]]],
        span: tuple[int, int],
    ) -> int:
        """The nearest column for a branch: at the left if it ran before the main chain."""
        low, high = span
        beside = [one for one in spine if low <= self._rank[one] <= high]
        sides = (-1, 1) if beside and chain[0] < beside[0] and low else (1, -1)
        column = 1
        while True:
            for side in sides:
                spans = taken.get(side * column, ())
                if all(high < begin or end < low for begin, end in spans):
                    return side * column
            column += 1

    def _place_rows(self) -> None:
        rows: dict[int, list[int]] = defaultdict(list)
        for number in range(self._last):
            rows[self._rank[number]].append(number)
        y = _HEADING + self._first_gap() if self._is_framed else 0.0
        for index, rank in enumerate(sorted(rows)):
            y += self._gap_before(rank) if index else 0.0
            height = max(self._children[one].height for one in rows[rank])
            for one in rows[rank]:
                self._top[one] = y + (height - self._children[one].height) / 2
            y += height
        self._bottom = y + (self._gap_before(self._deepest) - 4 if self._is_framed else 0.0)

    def _first_gap(self) -> float:
        """The space below the title: for lines that split there."""
        entering = [flow for flow in self._edges if flow.source is None]
        return 20.0 if len(entering) > 1 else 8.0

    def _gap_before(self, rank: int) -> float:
        """The space above a rank: for shapes, and for lines that split or meet there."""
        labels = forks = 0
        for flow in self._edges:
            source, target = self._ends(flow)
            if self._rank[source] < rank <= self._rank[target]:
                labels += bool(self._labels[flow])
                forks += flow in self._bypasses and self._rank[source] == rank - 1
        gap = _LABEL_GAP if labels else _GAP
        entering = sum(
            self._rank[flow.target] == rank and bool(self._children[flow.target].parts)
            for flow in self._bypasses
            if flow.target is not None
        )
        return gap + 7.0 * entering + (6.0 if forks else 0.0)

    def _place_columns(self) -> tuple[float, float]:
        """Set the place of each child; returns how far all reach to the left and right."""
        self._x = {number: 0.0 for number, column in self._columns.items() if not column}
        for branch in sorted(self._branches, key=lambda one: abs(one.column)):
            is_right = branch.column > 0
            children = [self._children[number] for number in branch.blocks]
            labels = [
                text_width(label, SHAPE_SIZE) + 8
                for flow, label in self._labels.items()
                if flow.source in branch.blocks
            ]
            left = max(child.axis for child in children)
            right = max([child.width - child.axis for child in children] + labels)
            edge = self._extent(branch.low - 1, branch.high + 1, is_right)
            x = edge + _COLUMN_GAP + left if is_right else edge - _COLUMN_GAP - right
            self._x.update(dict.fromkeys(branch.blocks, x))
        whole = -1, self._deepest
        return self._extent(*whole, is_right=False), self._extent(*whole, is_right=True)

    def _spread(self, tensors: Sequence[NodeId], *, is_entry: bool) -> dict[NodeId, float]:
        """Where tensors enter or leave: the first in the middle, others beside it."""

        def order(tensor: NodeId) -> tuple[bool, int, int]:
            columns = [
                abs(self._columns.get((one.target if is_entry else one.source) or 0, 0))
                for one in self._edges
                if one.tensor == tensor
                and (one.source if is_entry else one.target) is None
                and one not in self._bypasses
            ]
            return not columns, min(columns, default=0), tensors.index(tensor)

        ordered = sorted(tensors, key=order)
        step = -_PORT_GAP if self._mirrored else _PORT_GAP
        return {tensor: step * index for index, tensor in enumerate(ordered)}

    # Lines

    def _lanes(self) -> dict[Flow, float]:
        """The place of each line that passes by blocks; short ones are further in."""

        def span(flow: Flow) -> tuple[int, int]:
            source, target = self._ends(flow)
            return self._rank[source], self._rank[target]

        lanes: dict[Flow, float] = {}
        spans: list[tuple[int, int, float]] = []
        for flow in sorted(
            self._bypasses, key=lambda one: (span(one)[1] - span(one)[0], one.tensor)
        ):
            begin, end = span(flow)
            is_right = self._is_lane_right(flow, begin, end)
            step = _LANE if is_right else -_LANE
            x = self._extent(begin, end, is_right) + step
            known = [one[2] for one in spans if one[0] < end and begin < one[1]]
            while any(abs(other - x) < _LANE - 1 for other in known):
                x += step
            spans.append((begin, end, x))
            lanes[flow] = x
        return lanes

    def _is_lane_right(self, flow: Flow, begin: int, end: int) -> bool:
        """Whether a lane is at the right: where fewer branches are in the way."""
        if flow.source is None and self._entries[flow.tensor]:
            return self._entries[flow.tensor] > 0
        sides = {1: 0, -1: 0}
        for number, column in self._columns.items():
            if column and begin <= self._rank[number] <= end:
                sides[1 if column > 0 else -1] += 1
        return sides[1] <= sides[-1]

    def _extent(self, begin: int, end: int, is_right: bool) -> float:
        """How far blocks and shapes reach to one side between two ranks."""
        found = [0.0]
        for number, x in self._x.items():
            if begin <= self._rank[number] <= end:
                child = self._children[number]
                found.append(x + (child.width - child.axis if is_right else -child.axis))
        for flow, label in self._labels.items():
            source, target = self._ends(flow)
            is_between = self._rank[source] < end and begin < self._rank[target]
            if label and is_right and is_between and (source in self._x or source < 0):
                found.append(self._x.get(source, 0.0) + 6 + text_width(label, SHAPE_SIZE))
        return max(found) if is_right else min(found)

    def _wire(self, flow: Flow, lanes: Mapping[Flow, float]) -> Wire:
        start, end = self._start(flow), self._end(flow)
        fork = start[1] + _FORK
        if flow.source is None:
            fork = _HEADING + 2 if self._is_framed else 2.0
        if flow in lanes:
            wire = Wire(self._around(flow, lanes[flow], start, fork, end), self._has_arrow(flow))
        elif abs(start[0] - end[0]) < 1:
            wire = Wire([start, end], self._has_arrow(flow))
        else:
            wire = Wire(self._across(flow, start, fork, end), self._has_arrow(flow))
        wire.label = self._labels[flow]
        self._place_label(wire, flow, fork)
        return wire

    def _place_label(self, wire: Wire, flow: Flow, fork: float) -> None:
        start, second = wire.points[:2]
        wire.label_at = (start[0] + 5, (start[1] + second[1]) / 2 + 2.5)
        if flow.source is None:
            others = [one for one in self._entries.values() if one > self._entries[flow.tensor]]
            wire.is_label_left = bool(others)
            wire.label_at = (start[0] + (-5 if others else 5), 15.0)
        elif len(wire.points) > 2 and second[1] <= fork + 1:
            x, y = wire.points[-1]
            wire.label_at = (x + 5, (fork + y) / 2 + 2.5)
        elif any(one.source == flow.source for one in self._bypasses):
            wire.label_at = (start[0] + 5, (fork + second[1]) / 2 + 3.5)

    def _across(self, flow: Flow, start: Point, fork: float, end: Point) -> list[Point]:
        """A line to another column: out right after its block, back in from the side."""
        source, target = self._ends(flow)
        returns = abs(self._columns.get(source, 0)) > abs(self._columns.get(target, 0))
        if flow.source is None or not returns:
            return [start, (start[0], fork), (end[0], fork), end]
        if flow.target is None or self._children[flow.target].parts or not self._is_clear(flow):
            turn = end[1] - _FORK
            return [start, (start[0], turn), (end[0], turn), end]
        child = self._children[flow.target]
        y = self._top[flow.target] + child.height / 2
        side = 1 if start[0] > end[0] else -1
        return [start, (start[0], y), (self._x[flow.target] + side * child.width / 2, y)]

    def _is_clear(self, flow: Flow) -> bool:
        """Whether a line can enter a block from the side, past the columns between."""
        source, target = self._ends(flow)
        columns = self._columns[source], self._columns.get(target, 0)
        return not any(
            min(columns) < self._columns[number] < max(columns)
            and self._rank[number] == self._rank[target]
            for number in range(self._last)
        )

    def _around(
        self, flow: Flow, lane: float, start: Point, fork: float, end: Point
    ) -> list[Point]:
        """A line past blocks, through a lane at the side."""
        way = [start, (start[0], fork), (lane, fork)]
        if flow.target is None or self._children[flow.target].parts:
            turn = end[1] - _FORK
            return [*way, (lane, turn), (end[0], turn), end]
        child = self._children[flow.target]
        y = self._top[flow.target] + child.height / 2 + self._side_offset(flow)
        side = 1 if lane > end[0] else -1
        return [*way, (lane, y), (self._x[flow.target] + side * child.width / 2, y)]

    def _side_offset(self, flow: Flow) -> float:
        """Lines that enter one block from the side do so one below the other."""
        child = self._children[flow.target or 0]
        others = [one for one in self._edges if one in self._bypasses and one.target == flow.target]
        if len(others) < 2 or child.block.is_symbol:
            return 0.0
        step = min(7.0, (child.height - 6) / len(others))
        return step * (others.index(flow) - (len(others) - 1) / 2)

    def _start(self, flow: Flow) -> Point:
        if flow.source is None:
            return self._entries[flow.tensor], 0.0
        child = self._children[flow.source]
        x = self._x[flow.source] + child.exit(flow.tensor)
        return x, self._top[flow.source] + child.height

    def _end(self, flow: Flow) -> Point:
        if flow.target is None:
            return self._exits[flow.tensor], self._bottom
        child = self._children[flow.target]
        return self._x[flow.target] + child.entry(flow.tensor), self._top[flow.target]

    def _has_arrow(self, flow: Flow) -> bool:
        """Whether a line ends at a block; inside a module it continues."""
        if flow.target is None:
            return self._panel is not None
        return not self._children[flow.target].parts

    def _label(self, flow: Flow) -> str:
        """The shape on an arrow, if it differs from what entered the block before it."""
        shape = self._shapes.get(flow.tensor, "")
        if flow.source is None:
            first = next(one for one in self._edges if one.tensor == flow.tensor)
            return shape if self._panel is not None and flow is first else ""
        if flow in self._bypasses:
            return ""
        entering = {
            self._shapes.get(one.tensor, "") for one in self._edges if one.target == flow.source
        }
        if entering == {shape}:
            return ""
        if flow.target is None and self._panel is None:
            outside = {self._shapes.get(tensor, "") for tensor in self._block.inputs}
            return shape if shape in outside else ""
        return shape


def _ranks(flows: Sequence[Flow], last: int) -> dict[int, int]:
    """The length of the longest path to each child from the inputs of the module."""
    before: dict[int, list[int]] = defaultdict(list)
    after: dict[int, list[int]] = defaultdict(list)
    for flow in flows:
        source = -1 if flow.source is None else flow.source
        target = last if flow.target is None else flow.target
        before[target].append(source)
        after[source].append(target)
    rank = {-1: -1}
    for number in range(last):
        rank[number] = max((rank[one] + 1 for one in before[number] if one in rank), default=0)
    rank[last] = max((rank[number] + 1 for number in range(last)), default=0)
    # A block without inputs is placed right before its use.
    for number in range(last):
        if not before[number]:
            rank[number] = max(min((rank[one] for one in after[number]), default=1) - 1, 0)
    return rank


def _bypasses(flows: Sequence[Flow], last: int) -> set[Flow]:
    """The flows with a longer path beside them."""
    after: dict[int, set[int]] = defaultdict(set)
    for flow in flows:
        source = -1 if flow.source is None else flow.source
        after[source].add(last if flow.target is None else flow.target)
    reach: dict[int, set[int]] = {last: set()}
    for number in range(last - 1, -2, -1):
        onward = [one for one in after[number] if one > number]
        reach[number] = set().union(*({one} | reach[one] for one in onward))
    found: set[Flow] = set()
    for flow in flows:
        source = -1 if flow.source is None else flow.source
        target = last if flow.target is None else flow.target
        if any(target in reach[one] for one in after[source] if source < one != target):
            found.add(flow)
    return found


def _longest_chain(left: set[int], after: Mapping[int, set[int]]) -> list[int]:
    """The longest path through some blocks; if there are several, the middle one."""
    best: dict[int, list[int]] = {}
    for number in sorted(left, reverse=True):
        ways = [best[one] for one in sorted(after.get(number, ())) if one in best]
        longest = max((len(way) for way in ways), default=0)
        ways = [way for way in ways if len(way) == longest]
        best[number] = [number, *(ways[len(ways) // 2] if ways else [])]
    longest = max(len(way) for way in best.values())
    ways = [best[one] for one in sorted(best) if len(best[one]) == longest]
    return ways[(len(ways) - 1) // 2]

"""The panel that browses the attributes of a live module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import methodcaller
from typing import ClassVar

from torchglass.records.model import Attribute, LiveModel, Page, join_path
from torchglass.tables.text import format_bytes, harmless, shape_text
from torchglass.views.tui.explorer_state import ExplorerState
from torchglass.views.tui.keys import bindings
from torchglass.views.tui.panels.panel import Panel
from torchglass.views.tui.panels.tensor_slice import TensorSlice, read_slice
from torchglass.views.tui.panels.tensor_viewer import TensorViewer, TextViewer, ViewedStats
from torchglass.views.tui.styled_text import Piece, TextRow, fit
from torchglass.views.tui.windows import Prompt

PAGE = 100
"""How many items are listed at a time."""


@dataclass(slots=True, eq=False)
class AttributeNode:
    """One attribute, or a range of its items."""

    attribute: Attribute
    parent: AttributeNode | None = None
    items: range | None = None
    """The items of the attribute that it contains; None for the attribute itself."""
    below: list[AttributeNode] = field(default_factory=list)
    is_read: bool = False
    is_open: bool = False

    @property
    def depth(self) -> int:
        return 0 if self.parent is None else self.parent.depth + 1

    @property
    def names(self) -> tuple[str, ...]:
        """The names on the path to it, without the first node."""
        if self.parent is None:
            return ()
        own = () if self.items is not None else (self.attribute.name,)
        return (*self.parent.names, *own)

    @property
    def place(self) -> str:
        """Its place below the module: "config.sizes[3]"."""
        return "".join(f".{name}" if name[:1] != "[" else name for name in self.names)[1:]

    @property
    def is_module(self) -> bool:
        """Whether it is a module of the tree: one that was reached through modules alone."""
        inside = self.parent is None or self.parent.is_module
        return self.attribute.role == "module" and inside

    @property
    def opens(self) -> bool:
        return self.items is not None or self.attribute.opens

    def grow(self, page: Page) -> None:
        """Add what was read, in ranges if it is more than a page."""
        self.is_read = self.is_open = True
        whole = range(page.total) if self.items is None else self.items
        if len(whole) > PAGE:
            self.below = [AttributeNode(self.attribute, self, part) for part in page_ranges(whole)]
        else:
            self.below = [AttributeNode(attribute, self) for attribute in page.attributes]

    def visible(self) -> Iterator[AttributeNode]:
        for node in self.below:
            yield node
            if node.is_open:
                yield from node.visible()


def page_ranges(whole: range) -> list[range]:
    """Split a range into at most a page of ranges of equal length."""
    each = PAGE
    while len(whole) > each * PAGE:
        each *= PAGE
    return [whole[at : at + each] for at in range(0, len(whole), each)]


_OF_VIEWER = {"view", "slice"}
_FROM_TOP = {"next_mode", "turn_colors", "turn"}
_OF_TREE = {"choose", "unfold", "fold", "everything", "reload"}
_MARKS = {True: "▾ ", False: "▸ "}
_MOST_NAME = 32


class AttributesPanel(Panel):
    """A tree of all attributes of a module. Nothing is called before it is opened."""

    key: ClassVar[str] = "a"
    title: ClassVar[str] = "Attributes"
    missing: ClassVar[str] = "Attributes need the live model: use tg.explore(model) in your code"
    has_cursor = True
    BINDINGS: ClassVar = bindings(
        "panel:attributes",
        *("panel:tensor", "panel:picture", "panel:colors", "panel:slices"),
        "panel:text",
    )

    def __init__(self, state: ExplorerState) -> None:
        super().__init__(state)
        self._root: AttributeNode | None = None
        self._visible_nodes: list[AttributeNode] = []
        self._everything = False
        self._inner: TensorViewer | TextViewer | None = None
        """What is open in place of the tree."""
        self._inner_place = ""
        self._views: dict[tuple[str, ...], TensorSlice] = {}
        """The last view of each tensor, by module and place."""
        self._below = (0, 0)

    @classmethod
    def available(cls, state: ExplorerState) -> bool:
        return state.live is not None

    @property
    def places(self) -> tuple[str, ...]:
        return super().places if self._inner is None else ("panel", *self._inner.places)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The keys of the tree act while no viewer is open, and the other way round."""
        if action in _OF_VIEWER:
            return isinstance(self._inner, TensorViewer)
        return self._inner is None or action not in _OF_TREE

    def follow(self, moved: bool) -> None:
        if moved or self._root is None:
            self._inner = None
            self.action_reload()
        elif self.settled:
            self._draw()

    def action_reload(self) -> None:
        live, path, everything = self.state.live, self.module.path, self._everything
        if live is not None:
            self.work("Reading", lambda _: _read_module(live, path, everything), self._take_root)

    def action_everything(self) -> None:
        self._everything = not self._everything
        self.action_reload()

    def action_unfold(self) -> None:
        node = self._selected_node()
        if node is None:
            return
        if node.is_open:
            self.go(self.row + 1)
        else:
            self._open(node)

    def action_fold(self) -> None:
        node = self._selected_node()
        if node is not None and node.is_open:
            node.is_open = False
            self._draw()
        elif node is not None and node.parent is not self._root and node.parent is not None:
            self.go(self._visible_nodes.index(node.parent))
        else:
            self.action_back()

    def choose(self, row: TextRow) -> None:
        node = row.target
        if not isinstance(node, AttributeNode):
            return
        if node.is_module and node.items is None:
            path = reduce(join_path, node.names, self.module.path)
            self.post_message(self.Jump(path))
        elif node.is_open:
            node.is_open = False
            self._draw()
        else:
            self._open(node)

    def is_marker(self, row: TextRow, x: int) -> bool:
        node = row.target
        return isinstance(node, AttributeNode) and 0 <= x - 2 * node.depth + 1 < len(_MARKS[True])

    def action_view(self, change: str, *by: int) -> None:
        """Call a method of the tensor's slice."""
        self._change(methodcaller(change, *by), from_top=change in _FROM_TOP)

    def action_slice(self) -> None:
        viewer = self._inner
        if not isinstance(viewer, TensorViewer) or viewer.facts.unreadable:
            return
        view = viewer.view

        def check(words: str) -> str:
            try:
                read_slice(words, view.shape)
            except ValueError as problem:
                return str(problem)
            return ""

        def take(words: str | None) -> None:
            if words is not None:
                self._change(lambda view: view.take(read_slice(words, view.shape)), from_top=True)

        title = f"Slice of {viewer.attribute.name} {shape_text(viewer.facts.spec)}"
        self.app.push_screen(Prompt(title, view.text, "0, :, 3:7", check), take)

    def _change(self, change: Callable[[TensorSlice], None], *, from_top: bool = False) -> None:
        """Show another part of the tensor; `from_top` scrolls to its top."""
        if not isinstance(self._inner, TensorViewer):
            return
        change(self._inner.view)
        if from_top:
            self.turn_to(y=0)
        self._draw()
        if not self._inner.is_measured:
            self._measure(self._inner)

    def close_inner(self) -> bool:
        if self._inner is None:
            return False
        self._inner = None
        row, top = self._below
        self._draw()
        self.go(row)
        self.turn_to(y=top)
        return True

    def _selected_node(self) -> AttributeNode | None:
        return self._visible_nodes[self.row] if self.row < len(self._visible_nodes) else None

    def _open(self, node: AttributeNode) -> None:
        live, attribute, everything = self.state.live, node.attribute, self._everything
        if live is None:
            return
        if attribute.role == "property":
            what = f"Calling {harmless(attribute.name)}"
            self.work(what, lambda _: live.call(attribute.id), partial(self._take_called, node))
        elif attribute.spec is not None:
            self._open_tensor(live, node)
        elif attribute.reads and not node.opens:
            self.work(
                "Reading",
                lambda _: TextViewer(live.text(attribute.id)),
                partial(self._show, node),
            )
        elif node.is_read:
            node.is_open = True
            self._draw()
        elif node.opens:
            items = range(PAGE) if node.items is None else node.items
            read = partial(live.open, attribute.id, start=items.start, everything=everything)
            most = min(len(items), PAGE)
            self.work("Reading", lambda _: read(most=most), partial(self._take_page, node))

    def _take_root(self, read: tuple[Attribute, Page]) -> None:
        self._root = AttributeNode(read[0])
        self._root.grow(read[1])
        self._draw()

    def _take_called(self, node: AttributeNode, called: Attribute) -> None:
        node.attribute = called
        self._draw()

    def _take_page(self, node: AttributeNode, page: Page) -> None:
        node.grow(page)
        self._draw()

    def _open_tensor(self, live: LiveModel, node: AttributeNode) -> None:
        place = self.module.path, *node.names
        known = self._views.get(place)

        def take(viewer: TensorViewer) -> None:
            self._views[place] = viewer.view
            self._show(node, viewer)
            self._measure(viewer)

        self.work("Opening", lambda _: TensorViewer(live, node.attribute, known), take)

    def _show(self, node: AttributeNode, inner: TensorViewer | TextViewer) -> None:
        self._inner, self._inner_place = inner, node.place
        self._below = self.row, self.scroll_offset.y
        self.turn_to(y=0)
        self._draw()

    def _measure(self, viewer: TensorViewer) -> None:
        def take(measured: ViewedStats) -> None:
            viewer.measured = measured
            self._draw()

        self.work("Measuring", partial(viewer.measure, viewer.view.part), take)

    def _draw(self) -> None:
        inner = self._inner
        self.has_cursor = inner is None
        if inner is not None:
            self.subtitle = harmless(join_path(self.module.path, self._inner_place))
            height = self.scrollable_content_region.height
            self.put(*inner.rows(self.room, height, shades=self.has_few_colors))
            return
        self.subtitle = harmless(self.module.path)
        self._visible_nodes = list(self._root.visible()) if self._root else []
        names = [2 * node.depth + len(node.attribute.name) for node in self._visible_nodes]
        width = min(max(names, default=0), _MOST_NAME, max(self.room // 2, 12))
        rows = [TextRow(_pieces(node, width), node) for node in self._visible_nodes]
        self.put(rows or [TextRow([("No attributes.", "muted")])])


def _read_module(live: LiveModel, path: str, everything: bool) -> tuple[Attribute, Page]:
    module = live.module(path)
    return module, live.open(module.id, most=PAGE, everything=everything)


def _pieces(node: AttributeNode, width: int) -> Sequence[Piece]:
    attribute = node.attribute
    guide = "  " * (node.depth - 1)
    if node.items is not None:
        mark = _MARKS[node.is_open]
        first, last = node.items[0], node.items[-1]
        return [(guide + mark, "faint"), (f"[{first:,} … {last:,}]", "muted")]
    opens = attribute.opens or attribute.reads or attribute.role == "property"
    mark = _MARKS[node.is_open] if opens or attribute.spec is not None else "  "
    name = fit(harmless(attribute.name), max(width - 2 * node.depth, 4))
    return [(guide + mark, "faint"), (f"{name}  ", "name"), *_meaning(attribute)]


def _meaning(attribute: Attribute) -> Sequence[Piece]:
    if attribute.problem:
        return [(harmless(attribute.problem), "problem")]
    if attribute.role == "property" and not attribute.type_name:
        return [("property", "decorator"), (", called when opened", "faint")]
    if attribute.spec is not None:
        spec = attribute.spec
        role = "" if attribute.role in ("attribute", "item") else f" {attribute.role}"
        return [
            (shape_text(spec), "shape"),
            (f" {harmless(spec.dtype)}", "dtype"),
            (f" {format_bytes(spec.bytes)}", "bytes"),
            (role, "muted"),
        ]
    again = " (contains this)" if attribute.encloses else ""
    return [
        (harmless(attribute.type_name), "class" if attribute.role == "module" else "extra"),
        (f" {harmless(attribute.text)}" if attribute.text else "", "plain"),
        (again, "note"),
    ]

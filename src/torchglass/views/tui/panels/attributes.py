"""The panel that opens a live module: every attribute, and the numbers of its tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from torchglass.records.attributes import Attribute, LiveModel, Page
from torchglass.records.model import join_path
from torchglass.views.columns import shape_text
from torchglass.views.formats import format_bytes, harmless
from torchglass.views.tui.cells import Piece, fit
from torchglass.views.tui.panels.branches import PAGE, Branch
from torchglass.views.tui.panels.drawing import Row
from torchglass.views.tui.panels.keys import panel_bindings
from torchglass.views.tui.panels.panel import Panel
from torchglass.views.tui.panels.viewer import Measured, Viewer
from torchglass.views.tui.subject import Subject

_OF_VIEWER = {"mode", "browse", "dimension", "turn", "columns"}
_OF_TREE = {"choose", "unfold", "fold", "everything", "reload"}
_MARKS = {True: "▾ ", False: "▸ "}
_MOST_NAME = 32


class Attributes(Panel):
    """A tree of all that a module holds. Nothing in it is run before it is opened."""

    key: ClassVar[str] = "a"
    title: ClassVar[str] = "Attributes"
    missing: ClassVar[str] = (
        "only a live model has attributes: call tg.explore(model) in the program it lives in"
    )
    has_cursor = True
    BINDINGS: ClassVar = panel_bindings("panel:attributes", "panel:tensor")

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._root: Branch | None = None
        self._branches: list[Branch] = []
        self._everything = False
        self._viewer: Viewer | None = None
        self._below = (0, 0)

    @classmethod
    def available(cls, subject: Subject) -> bool:
        """Whether the model is here and not only its record."""
        return subject.live is not None

    @property
    def places(self) -> tuple[str, ...]:
        """Where the keys act that act now."""
        return ("panel", "panel:attributes" if self._viewer is None else "panel:tensor")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Let the keys of the tree and of the viewer act in turn."""
        if action in _OF_VIEWER:
            return self._viewer is not None
        return self._viewer is None or action not in _OF_TREE

    def follow(self, moved: bool) -> None:
        """Show what the module holds."""
        if self.subject.live is None:
            self.say(f"{self.missing[:1].upper()}{self.missing[1:]}.")
        elif moved or self._root is None:
            self._viewer = None
            self.action_reload()
        elif self.settled:
            self._draw()

    def action_reload(self) -> None:
        """Read what the module holds anew."""
        live, path, everything = self.subject.live, self.module.path, self._everything
        if live is not None:
            self.work("reading", lambda _: _read_module(live, path, everything), self._take_root)

    def action_everything(self) -> None:
        """Show or hide private names and methods."""
        self._everything = not self._everything
        self.action_reload()

    def action_unfold(self) -> None:
        """Open the branch under the cursor; go in if it is open."""
        branch = self._branch()
        if branch is None:
            return
        if branch.is_open:
            self.go(self.row + 1)
        else:
            self._open(branch)

    def action_fold(self) -> None:
        """Close the branch under the cursor, or go to the one that holds it."""
        branch = self._branch()
        if branch is not None and branch.is_open:
            branch.is_open = False
            self._draw()
        elif branch is not None and branch.parent is not self._root and branch.parent is not None:
            self.go(self._branches.index(branch.parent))
        else:
            self.action_back()

    def choose(self, row: Row) -> None:
        """Open what the row stands for, close it, or go to it in the tree."""
        branch = row.target
        if not isinstance(branch, Branch):
            return
        attribute = branch.attribute
        if attribute.role == "module" and branch.parent is self._root:
            self.post_message(self.Jump(join_path(self.module.path, attribute.name)))
        elif branch.is_open:
            branch.is_open = False
            self._draw()
        else:
            self._open(branch)

    def is_marker(self, row: Row, x: int) -> bool:
        """Whether a place in a row is that of its triangle."""
        return isinstance(row.target, Branch) and 0 <= x - _indent(row.target) + 1 < len(
            _MARKS[True]
        )

    def action_mode(self) -> None:
        """Show numbers, a picture, or many."""
        self._change(Viewer.next_mode, anew=True)

    def action_browse(self, by: int) -> None:
        """Go to the next slice."""
        self._change(lambda viewer: viewer.browse(by))

    def action_dimension(self) -> None:
        """Browse through another dimension."""
        self._change(Viewer.next_dimension)

    def action_turn(self) -> None:
        """See other dimensions as rows and columns."""
        self._change(Viewer.turn, anew=True)

    def action_columns(self, by: int) -> None:
        """See columns further right."""
        self._change(lambda viewer: viewer.pan(by))

    def _change(self, change: Callable[[Viewer], None], *, anew: bool = False) -> None:
        """Look at another part of the tensor, `anew` from the top."""
        if self._viewer is None:
            return
        change(self._viewer)
        if anew:
            self.turn_to(y=0)
        self._draw()

    def close_inner(self) -> bool:
        """Close the tensor that is open."""
        if self._viewer is None:
            return False
        self._viewer = None
        row, top = self._below
        self._draw()
        self.go(row)
        self.turn_to(y=top)
        return True

    def _branch(self) -> Branch | None:
        return self._branches[self.row] if self.row < len(self._branches) else None

    def _open(self, branch: Branch) -> None:
        live, attribute, everything = self.subject.live, branch.attribute, self._everything
        if live is None:
            return
        if attribute.role == "property":
            self.work(
                f"calling {harmless(attribute.name)}",
                lambda _: live.call(attribute.id),
                lambda called: self._take_called(branch, called),
            )
        elif attribute.spec is not None:
            self._below = self.row, self.scroll_offset.y
            self.work("opening", lambda _: Viewer(live, attribute), self._view)
        elif branch.is_read:
            branch.is_open = True
            self._draw()
        elif branch.opens:
            self.work(
                "reading",
                lambda _: _read(live, branch, everything),
                lambda page: self._take_page(branch, page),
            )

    def _take_root(self, read: tuple[Attribute, Page]) -> None:
        self._root = Branch(read[0])
        self._root.grow(read[1])
        self._draw()

    def _take_called(self, branch: Branch, called: Attribute) -> None:
        branch.attribute = called
        self._draw()

    def _take_page(self, branch: Branch, page: Page) -> None:
        branch.grow(page)
        self._draw()

    def _view(self, viewer: Viewer) -> None:
        self._viewer = viewer
        self.turn_to(y=0)
        self._draw()
        self._measure(viewer)

    def _measure(self, viewer: Viewer) -> None:
        def take(measured: Measured) -> None:
            viewer.measured = measured
            self._draw()

        self.work("measuring", viewer.measure, take)

    def _draw(self) -> None:
        viewer = self._viewer
        self.has_cursor = viewer is None
        if viewer is not None:
            self.subtitle = harmless(join_path(self.module.path, viewer.attribute.name))
            self.put(*viewer.rows(self.room, self.scrollable_content_region.height))
            return
        self.subtitle = harmless(self.module.path)
        self._branches = list(self._root.visible()) if self._root else []
        names = [_indent(branch) + len(branch.attribute.name) for branch in self._branches]
        width = min(max(names, default=0), _MOST_NAME, max(self.room // 2, 12))
        rows = [Row(_pieces(branch, width), branch) for branch in self._branches]
        self.put(rows or [Row([("It holds nothing.", "muted")])])


def _read_module(live: LiveModel, path: str, everything: bool) -> tuple[Attribute, Page]:
    module = live.module(path)
    return module, live.open(module.id, most=PAGE, everything=everything)


def _read(live: LiveModel, branch: Branch, everything: bool) -> Page:
    wanted = branch.wanted
    return live.open(
        branch.attribute.id,
        start=wanted.start,
        most=min(len(wanted), PAGE),
        everything=everything,
    )


def _indent(branch: Branch) -> int:
    return 2 * branch.depth


def _pieces(branch: Branch, width: int) -> Sequence[Piece]:
    """A branch in a line: its mark, its name, and what it is."""
    attribute = branch.attribute
    guide = "  " * (branch.depth - 1)
    if branch.stretch is not None:
        mark = _MARKS[branch.is_open]
        first, last = branch.stretch[0], branch.stretch[-1]
        return [(guide + mark, "faint"), (f"[{first:,} … {last:,}]", "muted")]
    openable = attribute.opens or attribute.spec is not None or attribute.role == "property"
    mark = _MARKS[branch.is_open] if openable else "  "
    name = fit(harmless(attribute.name), max(width - _indent(branch), 4))
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
    again = " (holds this)" if attribute.encloses else ""
    return [
        (harmless(attribute.type_name), "class" if attribute.role == "module" else "extra"),
        (f" {harmless(attribute.text)}" if attribute.text else "", "plain"),
        (again, "note"),
    ]

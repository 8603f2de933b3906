"""The tree and the panels beside it: tabs, layout, focus, and the panel that chooses columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len
from textual import events, on
from textual.app import ComposeResult
from textual.containers import Container, Vertical
from textual.content import Content
from textual.message import Message
from textual.widget import Widget

from torchglass.records.model import Module
from torchglass.tables.text import harmless
from torchglass.views.tui.explorer_state import ExplorerState
from torchglass.views.tui.keys import KEYS, PANEL_KEYS, KeyEntry, bindings, glyph
from torchglass.views.tui.panels import PANELS
from torchglass.views.tui.panels.overview import OverviewPanel
from torchglass.views.tui.panels.panel import Panel
from torchglass.views.tui.styled_text import TEXT_STYLES, Piece, TextRow, fit, fit_pieces
from torchglass.views.tui.tree import ModuleTree
from torchglass.views.tui.tree_columns import NAME, ColumnChoice, Group, TreeColumn

_NAMES = 20
_KEYS: dict[Group, str] = {
    key.action[len("column('") : -len("')")]: key.keys[0]  # type: ignore[misc]
    for key in KEYS
    if key.action.startswith("column(")
}


class LabelPanel(Panel):
    """All columns in their order; visible ones are ticked."""

    key: ClassVar[str] = "L"
    title: ClassVar[str] = "Labels"
    has_cursor = True
    styles_of_text = TEXT_STYLES
    BINDINGS: ClassVar = bindings("labels")

    class Changed(Message):
        """The user chose other columns."""

    def __init__(self, state: ExplorerState, tree: ModuleTree) -> None:
        super().__init__(state)
        self._tree = tree

    @property
    def labels(self) -> ColumnChoice:
        return self._tree.labels

    def follow(self, moved: bool) -> None:
        self.put(
            [self._row(column) for column in self.labels.all],
            [TextRow(self._preview()), TextRow()],
        )

    def _row(self, column: TreeColumn) -> TextRow:
        ticked = column.id in self.labels.shown
        useful = column.applies(self.state)
        key = _KEYS.get(column.group, "")
        pieces = [
            ("● " if ticked else "○ ", "mark" if ticked else "faint"),
            (fit(column.name, _NAMES), "plain" if useful else "faint"),
            (f"{key:2}", "key"),
            *(self._value(column) if useful else [("not recorded", "faint")]),
        ]
        return TextRow(pieces)

    def _value(self, column: TreeColumn) -> Sequence[Piece]:
        if column is NAME and self.module.parent is None:
            return [(self.state.model.name, "name")]
        return column.draw(self.state, [self.module])

    def _preview(self) -> list[Piece]:
        """The row of the selected module, as the tree shows it."""
        shown = (self._value(one) for one in self.labels.all if one.id in self.labels.shown)
        pieces = [piece for value in shown if value for piece in (*value, ("  ", "plain"))]
        return fit_pieces(pieces, self.room, fill=False)

    def choose(self, row: TextRow) -> None:
        self._change(self.labels.toggled(self.labels.all[self.row].id))

    def action_shift(self, by: int) -> None:
        """Move the column up or down; the name stays first."""
        column = self.labels.all[self.row]
        if column is NAME:
            return
        place = self.labels.order.index(column.id) + by
        self._change(self.labels.moved(column.id, place))
        self.go(self.labels.order.index(column.id) + 1)

    def _change(self, labels: ColumnChoice) -> None:
        self._tree.set_labels(labels)
        self.follow(False)
        self.post_message(self.Changed())


class TabBar(Widget):
    """The titles of the open panels; a click brings one to the front."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        *("tabs--front", "tabs--behind", "tabs--key", "tabs--subtitle"),
    }

    @dataclass
    class Clicked(Message):
        """The title of a panel was clicked."""

        panel: Panel

    def __init__(self, tabs: PanelTabs) -> None:
        super().__init__()
        self._tabs = tabs

    def render(self) -> Content:
        before, shown, after = self._in_sight()
        front = self._tabs.front
        parts = [Content.styled("‹", ".tabs--key")] if before else []
        for panel in shown:
            key = (f" {glyph(panel.key)} ", ".tabs--key")
            parts.append(Content.assemble(key, (panel.title, self._style(panel)), " "))
        parts += [Content.styled("›", ".tabs--key")] if after else []
        used = sum(map(_width, shown)) + bool(before) + bool(after)
        subtitle = harmless(front.subtitle) if front else ""
        room = max(self.size.width - used - 2, 0)
        parts.append(Content.styled(f" {fit(subtitle, room, right=True)} ", ".tabs--subtitle"))
        return Content("").join(parts)

    def on_click(self, event: events.Click) -> None:
        before, shown, after = self._in_sight()
        left = int(bool(before))
        if event.x < left:
            self.post_message(self.Clicked(before[-1]))
            return
        for panel in [*shown, *after[:1]]:
            left += _width(panel)
            if event.x < left:
                self.post_message(self.Clicked(panel))
                return

    def _style(self, panel: Panel) -> str:
        if panel is not self._tabs.front:
            return ".tabs--behind"
        return "bold $background on $primary" if self._tabs.focused else ".tabs--front"

    def _in_sight(self) -> tuple[Sequence[Panel], Sequence[Panel], Sequence[Panel]]:
        """The titles hidden at the left, those that fit around the front one, and the others."""
        panels = self._tabs.panels
        front = next((at for at, one in enumerate(panels) if one is self._tabs.front), 0)
        widths = [_width(panel) for panel in panels]
        room = self.size.width
        if sum(widths) <= room:
            return (), panels, ()
        # A cell at each end shows that there are more.
        room -= 2
        first, last = front, front + 1
        while first and sum(widths[first - 1 : front + 1]) <= room:
            first -= 1
        while last < len(widths) and sum(widths[first : last + 1]) <= room:
            last += 1
        return panels[:first], panels[first:last], panels[last:]


def _width(panel: Panel) -> int:
    return cell_len(f" {glyph(panel.key)} {panel.title} ")


class PanelEdge(Widget):
    """The line between the tree and the panels, which can be dragged."""

    @dataclass
    class Dragged(Message):
        """The edge was dragged to a position on the screen."""

        x: int
        y: int

    def render(self) -> str:
        width, height = self.size
        return "\n".join(["│"] * height) if height > 1 else "─" * width

    def on_mouse_down(self, event: events.MouseDown) -> None:
        self.capture_mouse()

    def on_mouse_up(self, event: events.MouseUp) -> None:
        self.release_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self.app.mouse_captured is self:
            self.post_message(self.Dragged(event.screen_x, event.screen_y))


class PanelTabs(Vertical):
    """The open panels. Only the visible one is asked to show a module."""

    class Turned(Message):
        """Another panel is in front."""

    def __init__(self) -> None:
        super().__init__()
        self._bar = TabBar(self)
        self.panels: list[Panel] = []
        self.front: Panel | None = None
        self.focused = False
        """Whether keys go to the panel in front."""

    def compose(self) -> ComposeResult:
        yield self._bar

    @property
    def visible_panel(self) -> Panel | None:
        return self.front if self.display else None

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the open panels, the one in front first."""
        rest = [panel.key for panel in self.panels if panel is not self.front]
        return (self.front.key, *rest) if self.front else ()

    def find(self, key: str) -> Panel | None:
        return next((panel for panel in self.panels if panel.key == key), None)

    def open(self, panel: Panel, *, first: bool = False) -> None:
        if panel not in self.panels:
            self.panels.insert(0 if first else len(self.panels), panel)
            self.mount(panel)
        self.turn_to(panel)

    def close(self, panel: Panel) -> None:
        place = self.panels.index(panel)
        self.panels.remove(panel)
        panel.remove()
        beside = self.panels[min(place, len(self.panels) - 1)] if self.panels else None
        self.turn_to(beside if panel is self.front else self.front)

    def turn_to(self, panel: Panel | None) -> None:
        self.front = panel
        for each in self.panels:
            each.display = each is panel
        self._bar.refresh()
        self.post_message(self.Turned())

    def mark(self, focused: bool) -> None:
        if focused != self.focused:
            self.focused = focused
            self._bar.refresh()

    def beside(self, direction: int) -> Panel | None:
        """The next or the previous panel; None at the end."""
        if self.front is None:
            return None
        place = self.panels.index(self.front) + direction
        return self.panels[place] if 0 <= place < len(self.panels) else None

    def show(self, module: Module) -> None:
        if self.visible_panel is not None:
            self.visible_panel.show(module)

    def refresh_data(self) -> None:
        if self.visible_panel is not None:
            self.visible_panel.refresh_data()

    @on(Panel.Retitled)
    def _retitle(self) -> None:
        self._bar.refresh()

    @on(TabBar.Clicked)
    def _turn(self, message: TabBar.Clicked) -> None:
        self.turn_to(message.panel)


_WIDE, _HIGH = 110, 16
"""From this width on the panels are beside the tree; below this height one of them is shown."""
_WIDE_COMPARISON = 200
"""The same for a comparison, whose two trees need the width."""
_SHARES = range(20, 85, 5)


class PanelArea(Container):
    """The tree and the panels, side by side where there is room, else one above the other."""

    def __init__(self, state: ExplorerState, tree: ModuleTree, share: int) -> None:
        super().__init__(id="panels")
        self.state = state
        self.tree_panel = tree
        self.tabs = PanelTabs()
        self.share = share
        """Percent of the screen that the panels take."""
        self._edge = PanelEdge()
        self._in_panel = self._maximized = False
        self._on_overview = False
        """Whether the overview takes the whole screen."""

    def compose(self) -> ComposeResult:
        yield self.tree_panel
        yield self._edge
        yield self.tabs

    def lay_out(self) -> None:
        """Place the tree and the panels for the size of the terminal."""
        width, height = self.app.size
        wide = width >= (_WIDE if self.state.comparison is None else _WIDE_COMPARISON)
        alone = self._maximized or (not wide and height < _HIGH)
        has_panels = bool(self.tabs.panels)
        self.set_class(wide, "wide")
        self.tree_panel.display = not (alone and self._in_panel and has_panels)
        self.tabs.display = has_panels and (self._in_panel or not alone)
        self._edge.display = has_panels and not alone
        share = "100%" if alone else f"{self.share}%"
        self.tabs.styles.width = share if wide else "100%"
        self.tabs.styles.height = "100%" if wide or alone else share

    def open_first(self, keys: Sequence[str]) -> tuple[str, ...]:
        """Open panels, the first in front; the keys of those that have anything to show."""
        for key in reversed(keys):
            if self.tabs.find(key) is None and (panel := self._make(key)):
                self.tabs.open(panel)
        opened = tuple(key for key in keys if self.tabs.find(key))
        if opened:
            self.tabs.turn_to(self.tabs.find(opened[0]))
        self.lay_out()
        return opened

    def _make(self, key: str) -> Panel | None:
        if key == LabelPanel.key:
            return LabelPanel(self.state, self.tree_panel)
        found = (panel for panel in PANELS if panel.key == key and panel.available(self.state))
        made = next(found, None)
        return made(self.state) if made else None

    def show_overview(self) -> bool:
        """Show the overview on the whole screen; False if there is none."""
        panel = self.tabs.find(OverviewPanel.key) or self._make(OverviewPanel.key)
        if panel is None:
            return False
        self._on_overview = self._maximized = True
        self.tabs.open(panel, first=True)
        self.enter(panel)
        return True

    def toggle(self, key: str) -> bool:
        """Open a panel, or close it if it is in front; False if it has nothing to show."""
        if key == OverviewPanel.key and not self._on_overview:
            return self.show_overview()
        panel = self.tabs.find(key)
        if panel is not None and panel is self.tabs.visible_panel:
            had_focus = panel.has_focus
            self.tabs.close(panel)
            self.lay_out()
            if had_focus or self.tabs.front is None:
                self.enter(None)
            return True
        panel = panel or self._make(key)
        if panel is None:
            return False
        self.tabs.open(panel)
        self.lay_out()
        # The panel that chooses columns is only of use with the keys in it.
        if not self.tabs.display or isinstance(panel, LabelPanel):
            self.enter(panel)
        return True

    def show_panel(self, key: str) -> Panel | None:
        """Bring a panel to the front beside the tree, which has the focus."""
        panel = self.tabs.find(key) or self._make(key)
        if panel is not None:
            self.tabs.open(panel)
        self.enter(None)
        return panel

    @on(ModuleTree.Viewed)
    def enter_front(self) -> None:
        """Focus the panel in front; open the first one if there is none."""
        if self.tabs.front is None:
            self.toggle(PANELS[0].key)
        self.enter(self.tabs.front)

    def enter_next(self, direction: int) -> None:
        """Move the focus from the tree to the panel in front, then to the next, then back."""
        if self.screen.focused is not self.tree_panel:
            panel = self.tabs.beside(direction)
        else:
            panel = (
                self.tabs.front if direction > 0 or not self.tabs.panels else self.tabs.panels[-1]
            )
        if panel is not None:
            self.tabs.turn_to(panel)
        self.enter(panel)

    @on(Panel.Leave)
    def _leave(self) -> None:
        self.enter(None)

    def enter(self, panel: Panel | None) -> None:
        """Focus a panel, or the tree."""
        if self._on_overview and not isinstance(panel, OverviewPanel):
            self._on_overview = self._maximized = False
        self._in_panel = panel is not None
        self.lay_out()
        # At once, not by a message: the next key may be there already.
        self.screen.set_focus(panel or self.tree_panel)
        self.tabs.show(self.tree_panel.selected)

    def mark_focus(self, in_panel: bool) -> None:
        """Show whether keys go to the panel in front."""
        self.set_class(in_panel, "viewing")
        self.tabs.mark(in_panel)

    @on(PanelEdge.Dragged)
    def _drag(self, message: PanelEdge.Dragged) -> None:
        width, height = self.app.size
        share = 1 - message.x / width if self.has_class("wide") else 1 - message.y / height
        self._resize(round(100 * share))

    def widen(self, direction: int) -> None:
        self._resize(self.share + direction * _SHARES.step)

    def _resize(self, share: int) -> None:
        self.share = min(max(share, _SHARES[0]), _SHARES[-1])
        self.lay_out()

    def maximize(self) -> None:
        self._maximized, self._on_overview = not self._maximized, False
        self._in_panel = isinstance(self.screen.focused, Panel)
        self.lay_out()


def panel_toggles() -> tuple[KeyEntry, ...]:
    """The key of each panel."""
    return tuple(
        KeyEntry(
            keys=(panel.key,),
            action=f"toggle_panel('{panel.key}')",
            does=panel.title,
            section="Open or close a panel",
            place="anywhere",
            hint=panel.title.lower(),
        )
        for panel in PANELS
    )


def all_keys() -> tuple[KeyEntry, ...]:
    """Every key of the explorer."""
    return (*KEYS, *panel_toggles(), *PANEL_KEYS)

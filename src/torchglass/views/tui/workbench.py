"""The tree, the panels beside it and the lines around them: their places, and the focus."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from textual import on
from textual.app import ComposeResult
from textual.containers import Container
from textual.screen import Screen
from textual.timer import Timer

from torchglass.views.tui.bars import KeyBar, SearchBar, TitleBar, TwoEndedBar
from torchglass.views.tui.explorer_state import ExplorerState
from torchglass.views.tui.keys import KeyEntry, footer_order, hints
from torchglass.views.tui.panel_tabs import PanelEdge, PanelTabs, all_keys
from torchglass.views.tui.panels import PANELS, Panel
from torchglass.views.tui.panels.label_panel import LabelPanel
from torchglass.views.tui.preferences import Preferences
from torchglass.views.tui.tree.search import SearchState
from torchglass.views.tui.tree.tree import ModuleTree

_WIDE, _HIGH = 110, 16
_MESSAGE_SECONDS = 8.0
"""How long a message stays on the status line."""
_SHARES = range(20, 85, 5)
LASTING = "; the last data read is still shown"
"""How a message ends that stays."""


class Workbench(Screen[None]):
    """A tree and its panels, side by side where there is room, else one below the other."""

    AUTO_FOCUS = "ModuleTree"

    def __init__(
        self,
        state: ExplorerState,
        preferences: Preferences,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.state = state
        self.tree_panel = ModuleTree(state, preferences.labels)
        self.searching = SearchState(state, self.tree_panel, filtering=preferences.filtering)
        self.title_line = TitleBar(state, clock)
        self.search_bar = SearchBar(self.searching)
        self.dock = PanelTabs()
        self._panels_at_first = preferences.panels
        self._first_panels: tuple[str, ...] = ()
        """Those of them that could be opened."""
        self.share = preferences.share
        """Percent of the screen that the panels have."""
        self._viewing = self._maximized = False
        self._message_timer: Timer | None = None

    def compose(self) -> ComposeResult:
        """A title, the panels, the status or the search, and the keys."""
        yield self.title_line
        with Container(id="panels"):
            yield self.tree_panel
            yield PanelEdge()
            yield self.dock
        yield TwoEndedBar(id="status")
        yield self.search_bar
        yield KeyBar()

    def open_first_panels(self) -> None:
        """Open the panels that the user had open, as far as there is anything to show in them."""
        wanted = self._panels_at_first
        for key in reversed(wanted):
            if self.dock.find(key) is None and (panel := self._make_panel(key)):
                self.dock.open(panel)
        self._first_panels = tuple(key for key in wanted if self.dock.find(key))
        if self._first_panels:
            self.dock.turn_to(self.dock.find(self._first_panels[0]))
        self._lay_out()

    def say(self, message: str = "") -> None:
        """Put a message on the status line; without one, where the cursor is."""
        tree = self.tree_panel
        if self._message_timer is not None:
            self._message_timer.stop()
        # What is wrong with the file stays until it is mended.
        lasts = message.endswith(LASTING)
        self._message_timer = (
            self.set_timer(_MESSAGE_SECONDS, self.say) if message and not lasts else None
        )
        self.query_one("#status", TwoEndedBar).say(
            f" {message or self.whereabouts()}", f"{tree.row + 1:,}/{tree.row_count:,} "
        )
        self.search_bar.tell()

    def whereabouts(self) -> str:
        """Where the cursor is, and among which matches."""
        module = self.tree_panel.selected
        peers = self.state.outline.by_class[module.class_name]
        alone = len(peers) == 1 or module.class_name in self.state.outline.classless
        kind = module.kind if alone else f"{module.kind} ×{len(peers):,}"
        return " · ".join(filter(None, (module.path, kind, self.searching.count)))

    def on_resize(self) -> None:
        """Put the panels side by side or one above the other, as the terminal allows."""
        self._lay_out()

    def _lay_out(self) -> None:
        width, height = self.app.size
        wide = width >= _WIDE
        alone = self._maximized or (not wide and height < _HIGH)
        docked = bool(self.dock.keys)
        self.set_class(wide, "wide")
        self.tree_panel.display = not (alone and self._viewing and docked)
        self.dock.display = docked and (self._viewing or not alone)
        self.query_one(PanelEdge).display = docked and not alone
        share = "100%" if alone else f"{self.share}%"
        self.dock.styles.width = share if wide else "100%"
        self.dock.styles.height = "100%" if wide or alone else share

    def on_descendant_focus(self) -> None:
        """Offer the keys that act where the focus is, and mark it."""
        viewing = isinstance(self.focused, Panel)
        self.set_class(viewing, "viewing")
        self.dock.mark(viewing)
        self.offer_keys()

    def offer_keys(self) -> None:
        """Show the keys that act now."""
        self.query_one(KeyBar).offer(self._keys_now())

    def _keys_now(self) -> list[KeyEntry]:
        focused, table = self.focused, all_keys()
        missing = {panel.key for panel in PANELS if not panel.available(self.state)}
        table = tuple(entry for entry in table if not _opens(entry, missing))
        if focused is self.tree_panel:
            return sorted(hints({"anywhere", "tree"}, table), key=footer_order)
        if isinstance(focused, LabelPanel):
            return [*hints({"labels"}, table), *hints({"anywhere"}, table)]
        if isinstance(focused, Panel):
            own = focused.places
            taken = {key for entry in table if entry.place in own for key in entry.keys}
            free = [key for key in hints({"anywhere"}, table) if not taken & {*key.keys}]
            return [*hints(own, table), *free]
        return hints({"search"}, table)

    @on(SearchState.Found)
    def _tell_found(self) -> None:
        self.search_bar.tell()

    @on(Panel.Retitled)
    def _panel_changed(self) -> None:
        self.offer_keys()

    def action_unfold_or_view(self) -> None:
        """Fold or unfold the module under the cursor; go to the panel from one without children."""
        if self.tree_panel.selected.children:
            self.tree_panel.action_fold("one")
        else:
            self.action_view()

    @on(ModuleTree.Viewed)
    def action_view(self) -> None:
        """Go to the panel in front; open the first one where there is none."""
        if self.dock.front is None:
            self.action_toggle_panel(PANELS[0].key)
        self.enter(self.dock.front)

    @on(Panel.Leave)
    def action_leave(self) -> None:
        """Go back to the tree."""
        self.enter(None)

    def enter(self, panel: Panel | None) -> None:
        """Go to a panel, or without one to the tree."""
        self._viewing = panel is not None
        self._lay_out()
        # At once, not by a message: the next key may be there already.
        self.set_focus(panel or self.tree_panel)
        self.dock.show(self.tree_panel.selected)

    def action_panel(self, direction: int) -> None:
        """Go from the tree to the panel in front, from there to the next, at last to the tree."""
        if self.focused is self.tree_panel:
            panel = self.dock.front if direction > 0 else self.dock.last
        else:
            panel = self.dock.beside(direction)
        if panel is not None:
            self.dock.turn_to(panel)
        self.enter(panel)

    def _make_panel(self, key: str) -> Panel | None:
        if key == LabelPanel.key:
            return LabelPanel(self.state, self.tree_panel.labels)
        found = (each for each in PANELS if each.key == key and each.available(self.state))
        made = next(found, None)
        return made(self.state) if made else None

    def action_toggle_panel(self, key: str) -> None:
        """Open a panel, or close it where it is in front."""
        panel = self.dock.find(key)
        if panel is not None and panel is self.dock.front and self.dock.display:
            self._close(panel)
            return
        panel = panel or self._make_panel(key)
        if panel is None:
            missing = next((each.missing for each in PANELS if each.key == key), "")
            self.say(missing or "Nothing to show")
            return
        self.dock.open(panel)
        self._lay_out()
        if not self.dock.display:
            self.enter(panel)

    def _close(self, panel: Panel) -> None:
        had_focus = panel.has_focus
        self.dock.close(panel)
        self._lay_out()
        if had_focus or self.dock.front is None:
            self.enter(None)

    def action_labels(self) -> None:
        """Open the label panel and go there, or close it and go back to the tree."""
        panel = self.dock.find(LabelPanel.key)
        if panel is not None and panel is self.dock.front:
            self._close(panel)
            self.enter(None)
            return
        self.dock.open(panel or LabelPanel(self.state, self.tree_panel.labels))
        self.enter(self.dock.front)

    @on(LabelPanel.Changed)
    def _take_labels(self, message: LabelPanel.Changed) -> None:
        self.tree_panel.set_labels(message.labels)

    @on(Panel.Jump)
    def _jump(self, message: Panel.Jump) -> None:
        self.go_to(message.path)

    @on(Panel.Picked)
    def _pick(self, message: Panel.Picked) -> None:
        for panel in self.dock:
            panel.pick(message.op)

    def go_to(self, path: str) -> None:
        """Put the cursor on the module at a path, or on the lowest one above it that there is."""
        module = self.state.model.find(path)
        while module is None and path:
            path = path.rpartition(".")[0]
            module = self.state.model.find(path)
        if module is not None:
            self.tree_panel.go_to(module.id)

    @on(PanelEdge.Dragged)
    def _drag(self, message: PanelEdge.Dragged) -> None:
        width, height = self.app.size
        share = 1 - message.x / width if self.has_class("wide") else 1 - message.y / height
        self._resize(round(100 * share))

    def action_resize(self, direction: int) -> None:
        """Give the panels more room or less."""
        self._resize(self.share + direction * _SHARES.step)

    def _resize(self, share: int) -> None:
        self.share = min(max(share, _SHARES[0]), _SHARES[-1])
        self._lay_out()

    def action_maximize(self) -> None:
        """Give the tree, or the panel that has the focus, the whole screen, or take it back."""
        self._maximized = not self._maximized
        self._viewing = isinstance(self.focused, Panel)
        self._lay_out()


def _opens(entry: KeyEntry, panels: Collection[str]) -> bool:
    """Whether a key opens one of some panels."""
    return entry.action.startswith("toggle_panel(") and entry.keys[0] in panels

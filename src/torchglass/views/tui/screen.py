"""The screen of the explorer: what the keys do, and what the background has read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.screen import Screen

from torchglass.errors import TorchglassError
from torchglass.records.model import Model
from torchglass.records.run import Reader
from torchglass.views.tui.bars import KeyBar, SearchBar, StatusBar, TitleBar
from torchglass.views.tui.explorer_state import ExplorerState
from torchglass.views.tui.keys import (
    KeyEntry,
    bindings,
    footer_order,
    hints,
    hints_of_comparison,
)
from torchglass.views.tui.panel_tabs import LabelPanel, PanelArea, PanelTabs, all_keys
from torchglass.views.tui.panels import PANELS, Panel
from torchglass.views.tui.panels.code import CodePanel, open_editor, source_place
from torchglass.views.tui.panels.findings import FindingsPanel
from torchglass.views.tui.panels.op_flow import TensorFlowPanel
from torchglass.views.tui.panels.overview import OverviewPanel
from torchglass.views.tui.panels.series import SeriesPanel
from torchglass.views.tui.preferences import Preferences, SourceKind
from torchglass.views.tui.run_follower import BackgroundReader, RunOverview
from torchglass.views.tui.tree import ModuleTree, choices, save, write_new
from torchglass.views.tui.tree_columns import WHY_EMPTY, ColumnChoice, Group
from torchglass.views.tui.tree_rows import next_shared_place
from torchglass.views.tui.tree_search import SearchState
from torchglass.views.tui.windows import HelpWindow, ListDialog

_NO_SEARCH = "No search yet. Press / to search"


class Explorer(Screen[None]):
    """The tree of a model, the panels that follow its cursor, and the bars around them."""

    AUTO_FOCUS = "ModuleTree"
    BINDINGS: ClassVar = bindings("anywhere", keys=all_keys())

    def __init__(
        self,
        state: ExplorerState,
        reader: Reader,
        preferences: Preferences | None = None,
        kind: SourceKind = "model",
        diagram: Callable[[], str] | None = None,
    ) -> None:
        super().__init__()
        self._diagram, self._is_drawing = diagram, False
        self._kind, self._saved_preferences = kind, preferences or Preferences()
        self._preferences = self._saved_preferences.for_kind(kind)
        self.state = state
        self.tree_panel = ModuleTree(state, self._preferences.labels)
        self.search = SearchState(state, self.tree_panel, filtering=self._preferences.filtering)
        self.area = PanelArea(state, self.tree_panel, self._preferences.share)
        self.tabs = self.area.tabs
        self.title_bar = TitleBar(state)
        self.status_bar = StatusBar(self._place, self._position)
        self.search_bar = SearchBar(self.search)
        self.key_bar = KeyBar()
        self.background = BackgroundReader(self, state, reader)
        self._first_panels: tuple[str, ...] = ()
        """Those of the last session that have anything to show."""
        self._has_folds = self._is_sized = self._panels_are_due = False

    def compose(self) -> ComposeResult:
        yield self.title_bar
        yield self.area
        yield self.status_bar
        yield self.search_bar
        yield self.key_bar

    def on_mount(self) -> None:
        if self.state.is_run:
            self.background.want_overview()
            self.area.show_overview()
        self._first_panels = self.area.open_first(self._preferences.panels)
        self.background.start()

    def on_unmount(self) -> None:
        self.background.stop()

    def on_resize(self) -> None:
        self.area.lay_out()
        # Only once: where a terminal does not know its size, waiting for a refresh resizes again.
        if not self._is_sized:
            self._is_sized = True
            self.call_after_refresh(self._open_first_folds)

    @property
    def settled(self) -> bool:
        """Whether the background is idle and its results are on the screen."""
        due = self._panels_are_due or not self._has_folds or self.state.contents is None
        due |= self._is_drawing
        working = self.search.at_work or not self.background.idle
        return not due and not working and all(panel.settled for panel in self.tabs.panels)

    @property
    def preferences(self) -> Preferences:
        """What the user has chosen up to now."""
        tree = self.tree_panel
        folds = tuple(self.state.model[fold].path for fold in sorted(self.search.folds))
        panels = self.tabs.keys
        if set(panels) == set(self._first_panels) and panels[:1] == self._first_panels[:1]:
            panels = self._preferences.panels
        chosen = replace(
            self._saved_preferences.with_choices(self._kind, tree.labels.without_reports, panels),
            share=self.area.share,
            repeats_folded=tree.tree_rows.repeats_folded,
            filtering=self.search.filtering,
        )
        return chosen.with_folds(self.state.model, folds)

    def _open_first_folds(self) -> None:
        """Restore the folds of the last session, or open as many as fit."""
        tree, preferences = self.tree_panel, self._preferences
        self._has_folds = True
        if preferences.repeats_folded:
            tree.fold_repeats(True)
        tree.set_folds(preferences.first_folds(self.state.outline, tree.window))
        call = self.state.failure.call if self.state.failure else None
        if call is not None:
            self.go_to(call.path)
        # Not before: a thread that counts a large model delays the first paint by half.
        self.call_after_refresh(self.background.count)

    # What the background has read

    @on(BackgroundReader.Counted)
    def _show_counts(self, message: BackgroundReader.Counted) -> None:
        # Another model may have come while this one was counted.
        if message.model is self.state.model:
            self.state.contents = message.contents
            self._show_everything()
            self.title_bar.tell()
            if self.title_bar.last_update is not None:
                self.background.check_weights()

    @on(BackgroundReader.Checked)
    def _show_checked(self, message: BackgroundReader.Checked) -> None:
        self.state.take_checked(message.found)
        self._show_everything()

    @on(FindingsPanel.Checked)
    def _show_everything(self) -> None:
        """Redraw the tree and the panel: there may be other columns and rows."""
        self.tree_panel.learn()
        self.tabs.refresh_data()
        self.ask_for_series()

    @on(BackgroundReader.Read)
    def _show_update(self, message: BackgroundReader.Read) -> None:
        update, last = message.update, self.title_bar.last_update
        self.state.learn(update.step, update.series, update.points, update.histograms)
        if update.model is not None and self.state.comparison is None:
            self._show_model(update.model)
        if update.documents is not None:
            self.state.take_documents(update.documents)
        if last is None:
            # Only now is it known which panels have anything to show.
            self._first_panels = self.area.open_first(self._preferences.panels)
        if update.overview is not None:
            self._show_overview(update.overview)
        if update.series or update.documents is not None:
            self._show_everything()
        elif update.points:
            self.tree_panel.redraw()
            self.tabs.refresh_data()
        if update.problem:
            self.say(f"{update.problem} · showing the last data read", lasting=True)
        elif last is not None and last.problem:
            self.say()
        self.title_bar.take(update)
        self.background.check_weights()

    def _show_overview(self, overview: RunOverview) -> None:
        self.state.overview = overview.training
        self.state.heat_map = overview.heat_map
        self.state.heat_statistics = overview.statistics
        if isinstance(self.tabs.visible_panel, OverviewPanel):
            self.tabs.refresh_data()

    @on(OverviewPanel.Wanted)
    def _change_statistic(self, message: OverviewPanel.Wanted) -> None:
        self.background.want_overview(message.statistic)

    @on(OverviewPanel.Shown)
    def _show_place(self, message: OverviewPanel.Shown) -> None:
        """Go to a module, and show one of its series at a step."""
        self.go_to(message.path)
        panel = self.area.show_panel(SeriesPanel.key)
        if isinstance(panel, SeriesPanel):
            panel.show(self.tree_panel.selected)
            panel.point_at(message.series, message.step)

    def _show_model(self, model: Model) -> None:
        before = self.state.model
        self.state.take_model(model)
        self.tree_panel.take_model(before)
        self.search.take_model()
        self.tabs.show(self.tree_panel.selected)
        self.background.count()

    @on(ModuleTree.Scrolled)
    @on(LabelPanel.Changed)
    def ask_for_series(self) -> None:
        """Ask the background for the series on the screen."""
        wanted = {series.id for series in self.tree_panel.wanted()}
        wanted.update(series.id for series in self.state.series_at(self.tree_panel.selected))
        if self.tabs.visible_panel is not None:
            wanted.update(self.tabs.visible_panel.wanted())
        self.background.want(wanted)

    # The cursor, the status bar and the focus

    @on(ModuleTree.Moved)
    def _follow_cursor(self) -> None:
        self.say()
        # A key that is held down moves faster than panels are drawn: they show where it ends.
        if not self._panels_are_due:
            self._panels_are_due = True
            self.call_later(self._show_selected)

    @on(PanelTabs.Turned)
    def _show_selected(self) -> None:
        self._panels_are_due = False
        self.tabs.show(self.tree_panel.selected)
        self.ask_for_series()
        self.offer_keys()

    def say(self, message: str = "", *, lasting: bool = False) -> None:
        """Show a message in the status bar; without one, the position of the cursor."""
        self.status_bar.say(message, lasting=lasting)
        self.search_bar.tell()

    def _position(self) -> str:
        return f"{self.tree_panel.row + 1:,}/{len(self.tree_panel.tree_rows):,} "

    def _place(self) -> str:
        """The selected module, its class and its number among the matches."""
        module, outline = self.tree_panel.selected, self.state.outline
        peers = outline.by_class[module.class_name]
        alone = len(peers) == 1 or module.class_name in outline.classless
        kind = module.kind if alone else f"{module.kind} ×{len(peers):,}"
        return " · ".join(filter(None, (module.path, kind, self.search.count)))

    @on(SearchState.Found)
    def _count_matches(self) -> None:
        self.search_bar.tell()

    def on_descendant_focus(self) -> None:
        self.area.mark_focus(isinstance(self.focused, Panel))
        self.offer_keys()

    @on(Panel.Retitled)
    def offer_keys(self) -> None:
        """Show the keys that act now."""
        self.key_bar.offer(self._keys_now())

    def _keys_now(self) -> list[KeyEntry]:
        focused = self.focused
        missing = {
            f"toggle_panel('{panel.key}')" for panel in PANELS if not panel.available(self.state)
        }
        table = [entry for entry in all_keys() if entry.action not in missing]
        if focused is self.tree_panel:
            usual = sorted(hints({"anywhere", "tree"}, table), key=footer_order)
            changes = hints_of_comparison(table) if self.state.comparison is not None else []
            return [*usual[:2], *changes, *usual[2:]]
        if isinstance(focused, LabelPanel):
            return [*hints({"labels"}, table), *hints({"anywhere"}, table)]
        if isinstance(focused, Panel):
            own = focused.places
            taken = {key for entry in table if entry.place in own for key in entry.keys}
            free = [key for key in hints({"anywhere"}, table) if not taken & {*key.keys}]
            return [*hints(own, table), *free]
        return hints({"search"}, table)

    def go_to(self, path: str) -> None:
        """Select the module at a path, or the nearest one above it that exists."""
        module = self.state.model.find(path)
        while module is None and path:
            path = path.rpartition(".")[0]
            module = self.state.model.find(path)
        if module is not None:
            self.tree_panel.go_to(module.id)

    @on(Panel.Jump)
    def _jump(self, message: Panel.Jump) -> None:
        self.go_to(message.path)

    @on(Panel.Picked)
    def _pick(self, message: Panel.Picked) -> None:
        for panel in self.tabs.panels:
            panel.pick(message.op)

    # Panels

    def action_unfold_or_view(self) -> None:
        if self.tree_panel.selected.children:
            self.tree_panel.action_fold("one")
        else:
            self.area.enter_front()

    def action_panel(self, direction: int) -> None:
        self.area.enter_next(direction)

    def action_toggle_panel(self, key: str) -> None:
        if key == OverviewPanel.key and OverviewPanel.available(self.state):
            self.background.want_overview()
        if not self.area.toggle(key):
            missing = next((panel.missing for panel in PANELS if panel.key == key), "")
            self.say(missing or "Nothing to show")

    def action_labels(self) -> None:
        self.area.toggle(LabelPanel.key)

    def action_resize(self, direction: int) -> None:
        self.area.widen(direction)

    def action_maximize(self) -> None:
        self.area.maximize()

    # Columns and rows

    def action_column(self, group: Group) -> None:
        """Show or hide the columns of a group."""
        tree = self.tree_panel
        before = {column.id for column in tree.columns}
        self._set_labels(tree.labels.with_group_toggled(group, self.state), group)
        after = {column.id for column in tree.columns}
        if before == after:
            self.say(WHY_EMPTY.get(group, "Nothing to show"))
            return
        labels = tree.labels
        changed = [labels.column(one) for one in labels.order if one in before ^ after]
        if any(column.series for column in changed):
            self.ask_for_series()
        names = ", ".join(column.name.lower() for column in changed)
        self.say(f"{'Shown' if after - before else 'Hidden'}: {names}")

    def action_align(self) -> None:
        labels = self.tree_panel.labels
        self._set_labels(replace(labels, aligned=not labels.aligned))

    def _set_labels(self, labels: ColumnChoice, group: Group | None = None) -> None:
        self.tree_panel.set_labels(labels, group)
        if isinstance(self.tabs.front, LabelPanel):
            self.tabs.front.refresh_data()

    def action_fold_repeats(self) -> None:
        folded = not self.tree_panel.tree_rows.repeats_folded
        self.tree_panel.fold_repeats(folded)
        if folded and not self.state.repeats:
            self.say("No repeats to group")

    @on(ModuleTree.Sorted)
    def _tell_order(self) -> None:
        self.say(self.tree_panel.sorting.words(self.tree_panel.labels))

    def action_jump_to_twin(self) -> None:
        """Go to the next place of a shared module or of a tied tensor."""
        twin = next_shared_place(self.state.model, self.tree_panel.selected)
        if twin is None:
            self.say("Not shared with any other module")
        else:
            self.tree_panel.go_to(twin.id)

    # Search

    def action_search(self) -> None:
        self._show_search(True)
        self.search_bar.open()

    def _show_search(self, shown: bool) -> None:
        self.search_bar.display = shown
        self.status_bar.display = not shown

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool:
        """Leave keys to the search bar while it is open."""
        return not self.search.is_open or action not in {"search", "panel"}

    def action_filter(self) -> None:
        self.search.toggle_filter()
        if self.state.comparison is not None and not self.search.text:
            told = "Changed modules only" if self.search.changes_only else "All modules"
            # The cursor may have moved, which replaces a message.
            self.call_after_refresh(self.say, told)
            return
        self.say("" if self.search.text else _NO_SEARCH)

    def action_match(self, direction: int) -> None:
        if not self.search.step(direction):
            self.say(_NO_SEARCH)

    def action_keep_search(self) -> None:
        """Close the search bar; matches stay marked."""
        self.area.enter(None)
        self.search_bar.keep(then=self._leave_search)

    def action_drop_search(self) -> None:
        """Cancel the search, and go back to where it began."""
        self.search.drop()
        self.area.enter(None)
        self._leave_search()

    def action_clear_search(self) -> None:
        self.search.clear()
        self._leave_search()

    def _leave_search(self) -> None:
        self._show_search(False)
        self.say()

    # Files, help and the end

    def action_copy_path(self) -> None:
        path = self.tree_panel.selected.path
        self.app.copy_to_clipboard(path)
        self.say(f"Copied {path}" if path else "The model itself has no path")

    def action_edit(self) -> None:
        """Open the source of the selected module in the user's editor."""
        focused = self.focused
        place = focused.place if isinstance(focused, CodePanel) else None
        place = place or source_place(self.state.model, self.tree_panel.selected)
        self.say(open_editor(self.app, *place) if place else "No source file for this module")

    def action_export(self) -> None:
        def export(format: str | None) -> None:
            if format is not None:
                self.say(save(self.app, self.tree_panel.table(), format))

        self.app.push_screen(ListDialog("Export", choices()), export)

    def action_diagram(self) -> None:
        """Write the block diagram of the traced forward; drawing a large one takes a while."""
        draw = self._diagram
        if draw is None:
            self.say(f"{TensorFlowPanel.missing}")
        elif not self._is_drawing:
            self._is_drawing = True
            self.say("Drawing the diagram…", lasting=True)
            self.run_worker(partial(self._write_diagram, draw), thread=True)

    def _write_diagram(self, draw: Callable[[], str]) -> None:
        try:
            told = write_new(f"{self.state.model.name}-diagram", ".svg", draw())
        except TorchglassError as error:
            told = f"Cannot draw the diagram: {error}"
        self.app.call_from_thread(self._tell_diagram, told)

    def _tell_diagram(self, told: str) -> None:
        self._is_drawing = False
        self.say(told)

    def action_help(self) -> None:
        focused = self.focused
        places = focused.places if isinstance(focused, Panel) else ("anywhere", "tree")
        self.app.push_screen(HelpWindow(all_keys(), places))

    def action_quit(self) -> None:
        self.app.exit()

"""The explorer's screen: it does what the keys ask for."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from textual import on

from torchglass.views.tui.keys import bindings
from torchglass.views.tui.live_bench import LiveBench
from torchglass.views.tui.panel_tabs import all_keys
from torchglass.views.tui.panels import Panel
from torchglass.views.tui.panels.code import CodePanel, open_editor, source_place
from torchglass.views.tui.panels.label_panel import LabelPanel
from torchglass.views.tui.tree.columns import BY_ID, WHY_EMPTY, ColumnChoice, Group
from torchglass.views.tui.tree.export import choices, save
from torchglass.views.tui.tree.rows import next_shared_place
from torchglass.views.tui.tree.tree import ModuleTree
from torchglass.views.tui.windows import HelpWindow, ListDialog

_NO_SEARCH = "No search yet: / starts one"


class Explorer(LiveBench):
    """The tree of a model and the panels that follow its cursor."""

    BINDINGS: ClassVar = bindings("anywhere", all_keys())

    def action_column(self, group: Group) -> None:
        """Show or hide the columns of a group."""
        tree = self.tree_panel
        before = {column.id for column in tree.columns}
        self._set_labels(tree.labels.with_group_toggled(group, self.state), group)
        after = {column.id for column in tree.columns}
        if before == after:
            self.say(WHY_EMPTY.get(group, "Nothing to show"))
            return
        changed = (BY_ID[one].name.lower() for one in tree.labels.order if one in before ^ after)
        self.say(f"{'Shown' if after - before else 'Hidden'}: {', '.join(changed)}")

    def action_align(self) -> None:
        """Set the components below each other over the whole tree, or one behind the other."""
        labels = self.tree_panel.labels
        self._set_labels(replace(labels, aligned=not labels.aligned))

    def _set_labels(self, labels: ColumnChoice, group: Group | None = None) -> None:
        self.tree_panel.set_labels(labels, group)
        panel = self.dock.find(LabelPanel.key)
        if isinstance(panel, LabelPanel):
            panel.take(labels)
        self.ask_for_series()

    def action_fold_repeats(self) -> None:
        """Let blocks that are built alike share a row, or not."""
        folded = not self.tree_panel.arrangement.repeats_folded
        self.tree_panel.fold_repeats(folded)
        if folded and not self.state.repeats:
            self.say("No repeats to group")

    @on(ModuleTree.Sorted)
    def _tell_order(self) -> None:
        self.say(self.tree_panel.arrangement.sorting.words)

    def action_jump_to_twin(self) -> None:
        """Go to the next place of a shared module or of a tied tensor."""
        twin = next_shared_place(self.state.model, self.tree_panel.selected)
        if twin is None:
            self.say("Not shared with any other module")
        else:
            self.tree_panel.go_to(twin.id)

    def action_copy_path(self) -> None:
        """Copy the path of the module under the cursor."""
        path = self.tree_panel.selected.path
        self.app.copy_to_clipboard(path)
        self.say(f"Copied {path}" if path else "The model itself has no path")

    def action_edit(self) -> None:
        """Open the source of the module under the cursor in the user's editor."""
        focused = self.focused
        place = focused.place if isinstance(focused, CodePanel) else None
        place = place or source_place(self.state.model, self.tree_panel.selected)
        problem = open_editor(self.app, *place) if place else "No source file for this module"
        self.say(problem)

    def action_export(self) -> None:
        """Ask for a format, and write what is shown."""
        self.app.push_screen(ListDialog("Export", choices()), self._export)

    def _export(self, format: str | None) -> None:
        if format is not None:
            self.say(save(self.app, self.tree_panel.table(), format))

    def action_help(self) -> None:
        """Show all keys."""
        focused = self.focused
        places = focused.places if isinstance(focused, Panel) else ("anywhere", "tree")
        self.app.push_screen(HelpWindow(all_keys(), places))

    def action_quit(self) -> None:
        """Leave the explorer."""
        self.app.exit()

    def action_search(self) -> None:
        """Open the search line."""
        self._show_search(True)
        self.search_bar.open()

    def _show_search(self, shown: bool) -> None:
        self.search_bar.display = shown
        self.query_one("#status").display = not shown

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool:
        """Leave keys to the search line as long as it is open."""
        return not self.searching.is_open or action not in {"search", "panel"}

    def action_filter(self) -> None:
        """Show the matches alone, or the whole tree."""
        self.searching.toggle_filter()
        self.say("" if self.searching.text else _NO_SEARCH)

    def action_match(self, direction: int) -> None:
        """Go to the next match, or to the one before."""
        if not self.searching.step(direction):
            self.say(_NO_SEARCH)

    def action_keep_search(self) -> None:
        """Go on in the tree with the matches marked."""
        self.enter(None)
        self.search_bar.keep(then=self._leave_search)

    def action_drop_search(self) -> None:
        """Give the search up and go back to where it began."""
        self.searching.drop()
        self.enter(None)
        self._leave_search()

    def action_clear_search(self) -> None:
        """Forget what was searched for."""
        self.searching.clear()
        self._leave_search()

    def _leave_search(self) -> None:
        self._show_search(False)
        self.say()

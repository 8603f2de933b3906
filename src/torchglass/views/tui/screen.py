"""The explorer's screen: it follows a run, searches, and does what the keys ask for."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.message import Message
from textual.widgets import Input

from torchglass.records.flow import Reader
from torchglass.records.model import Model
from torchglass.views.tui.bars import SearchBar, TwoEnds
from torchglass.views.tui.dock import Dock
from torchglass.views.tui.editor import open_editor, source_place
from torchglass.views.tui.following import Follower, News
from torchglass.views.tui.keys import bindings
from torchglass.views.tui.panels.code import Code
from torchglass.views.tui.panels.labels import LabelPanel
from torchglass.views.tui.preferences import Preferences
from torchglass.views.tui.subject import Holdings, Subject, measure
from torchglass.views.tui.table import all_keys
from torchglass.views.tui.tree.columns import Group
from torchglass.views.tui.tree.components import BY_ID, EMPTY
from torchglass.views.tui.tree.exporting import FORMATS, Line, Table, new_file
from torchglass.views.tui.tree.labels import Labels
from torchglass.views.tui.tree.searching import Searching
from torchglass.views.tui.tree.tree import ModuleTree
from torchglass.views.tui.tree.twins import next_twin
from torchglass.views.tui.windows.dialogs import Pick
from torchglass.views.tui.windows.help import Help
from torchglass.views.tui.workbench import Workbench

_POLL_SECONDS = 0.25
_LIVE_SECONDS = 10.0
_PICTURE = "SVG"


class Explorer(Workbench):
    """The tree of a model and the panels that follow its cursor."""

    BINDINGS: ClassVar = bindings("anywhere", all_keys())

    class Measured(Message):
        """The modules are counted."""

        def __init__(self, model: Model, holdings: Holdings) -> None:
            super().__init__()
            self.model = model
            self.holdings = holdings

    class Heard(Message):
        """The run was read again."""

        def __init__(self, news: News) -> None:
            super().__init__()
            self.news = news

    def __init__(
        self,
        subject: Subject,
        reader: Reader,
        preferences: Preferences | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._preferences = preferences or Preferences()
        super().__init__(subject, self._preferences)
        self.searching = Searching(subject, self.tree_panel, filtering=self._preferences.filtering)
        self._follower = Follower(
            reader,
            lambda news: self.post_message(self.Heard(news)),
            interval=_POLL_SECONDS,
            model=subject.model,
        )
        self._clock = clock
        self._last: News | None = None
        self._advanced: float | None = None
        self._fresh, self._is_due, self._sized = True, False, False

    @property
    def settled(self) -> bool:
        """Whether all modules are counted, and all that is on the screen is read."""
        drawn = not (self._is_due or self._fresh) and all(panel.settled for panel in self.dock)
        return self.subject.holdings is not None and self._follower.idle and drawn

    @property
    def preferences(self) -> Preferences:
        """What the user chose up to now."""
        tree = self.tree_panel
        folds = tuple(self.subject.model[fold].path for fold in sorted(tree.folds))
        chosen = replace(
            self._preferences,
            labels=tree.labels,
            share=self.share,
            panels=self.dock.keys,
            repeats_folded=tree.arrangement.repeats_folded,
            filtering=self.searching.filtering,
        )
        return chosen.with_folds(self.subject.model, folds)

    def on_mount(self) -> None:
        """Begin to count and to follow, both beside the screen."""
        self.open_first_panels()
        self.run_worker(self._measure, thread=True)
        self.run_worker(self._follower.follow, thread=True)
        self.set_interval(1.0, self._title)
        self._title()

    def on_unmount(self) -> None:
        """Let the thread go."""
        self._follower.stop()

    def _measure(self) -> None:
        model = self.subject.model
        self.post_message(self.Measured(model, measure(model)))
        self.searching.finder.prepare()

    @on(Measured)
    def _take_measures(self, message: Measured) -> None:
        # While it was counted another model may have come.
        if message.model is self.subject.model:
            self.subject.holdings = message.holdings
            self._learn()
            self._title()

    @on(Heard)
    def _take_news(self, message: Heard) -> None:
        news, last = message.news, self._last
        if last is not None and news.step > last.step:
            self._advanced = self._clock()
        self._last = news
        self.subject.learn(news.step, news.series, news.points, news.histograms)
        if news.model is not None and self.subject.comparison is None:
            self._take_model(news.model)
        if news.documents is not None:
            self.subject.take_documents(news.documents)
        if news.series or news.documents is not None:
            self._learn()
        elif news.points:
            self.tree_panel.redraw()
            self.dock.refresh_data()
        if news.problem:
            self.say(f"{news.problem}; what was read before is still shown")
        elif last is not None and last.problem:
            self.say()
        self._title()

    def _take_model(self, model: Model) -> None:
        before = self.subject.model
        self.subject.take_model(model)
        self.searching.take_model()
        self.tree_panel.take_model(before)
        self.dock.show(self.tree_panel.selected)
        self.run_worker(self._measure, thread=True)

    def _learn(self) -> None:
        """Show what is known now, which may be more than numbers."""
        self.tree_panel.learn()
        self.dock.refresh_data()
        self._ask()

    def _ask(self) -> None:
        """Have the series read that are on the screen."""
        wanted = {series.id for series in self.tree_panel.wanted()}
        wanted.update(series.id for series in self.subject.series_at(self.tree_panel.selected))
        if self.dock.front is not None and self.dock.display:
            wanted.update(self.dock.front.wanted())
        self._follower.want(wanted)

    @on(ModuleTree.Scrolled)
    def _ask_for_what_is_seen(self) -> None:
        self._ask()

    @on(ModuleTree.Moved)
    def _follow_cursor(self) -> None:
        self.say()
        # A held key moves faster than panels are drawn: they show where it ends.
        if not self._is_due:
            self._is_due = True
            self.call_later(self._show_selected)

    @on(Dock.Turned)
    def _show_selected(self) -> None:
        self._is_due = False
        self.dock.show(self.tree_panel.selected)
        self._ask()
        self.offer_keys()

    def whereabouts(self) -> str:
        """Where the cursor is, and among which matches."""
        return " · ".join(filter(None, (super().whereabouts(), self.searching.count)))

    def say(self, message: str = "") -> None:
        """Put a message on the status line; without one, where the cursor is."""
        super().say(message)
        if self.searching.is_open:
            self.query_one(SearchBar).say(self.searching.count)

    def _title(self) -> None:
        run, model = self.subject.run.name, self.subject.model.name
        names = [run] if run == model else [run, model]
        if self.subject.comparison is not None:
            changed = len(self.subject.comparison.changes)
            names.append(f"{changed:,} modules differ" if changed else "no difference")
        self.query_one("#title", TwoEnds).say(" " + " · ".join(filter(None, names)), self._state())

    def _state(self) -> str:
        """How far the run is, nothing for a model that is not run."""
        if self.subject.holdings is None:
            return "counting … "
        if self._last is None or self._last.step < 0:
            return ""
        step = f"step {self._last.step:,} "
        if self._last.problem:
            return step + "✗ lost "
        if self._last.finished:
            return step + "✓ finished "
        live = self._advanced is not None and self._clock() - self._advanced < _LIVE_SECONDS
        return step + ("● live " if live else "○ waiting ")

    def on_resize(self) -> None:
        """Lay the panels out anew; the first time, open folds."""
        super().on_resize()
        # Once: where a terminal does not know its size, waiting for a refresh brings another event.
        if not self._sized:
            self._sized = True
            self.call_after_refresh(self._open_first_folds)

    def _open_first_folds(self) -> None:
        """Open the folds that were open the last time, or what fits."""
        outline, preferences = self.subject.outline, self._preferences
        self._fresh = False
        if preferences.repeats_folded:
            self.tree_panel.fold_repeats(True)
        paths = preferences.folds_of(self.subject.model)
        if paths is None or preferences.depth is not None:
            folds = outline.first_folds(self.tree_panel.window, preferences.depth)
        else:
            found = map(self.subject.model.find, paths)
            folds = outline.foldable & {module.id for module in found if module}
        self.tree_panel.set_folds(folds)

    def action_column(self, group: Group) -> None:
        """Show or hide the columns of a group."""
        tree = self.tree_panel
        before = {column.id for column in tree.columns}
        self._set_labels(tree.labels.with_group_turned(group, self.subject), group)
        after = {column.id for column in tree.columns}
        if before == after:
            self.say(EMPTY.get(group, "there is nothing to show"))
            return
        changed = (BY_ID[one].name.lower() for one in tree.labels.order if one in before ^ after)
        self.say(f"{', '.join(changed)} {'shown' if after - before else 'hidden'}")

    def action_align(self) -> None:
        """Set the components below each other over the whole tree, or one behind the other."""
        labels = self.tree_panel.labels
        self._set_labels(replace(labels, aligned=not labels.aligned))

    def _set_labels(self, labels: Labels, group: Group | None = None) -> None:
        self.tree_panel.set_labels(labels, group)
        panel = self.dock.find(LabelPanel.key)
        if isinstance(panel, LabelPanel):
            panel.take(labels)
        self._ask()

    def action_fold_repeats(self) -> None:
        """Let blocks that are built alike share a row, or not."""
        folded = not self.tree_panel.arrangement.repeats_folded
        self.tree_panel.fold_repeats(folded)
        if folded and not self.subject.repeats:
            self.say("no neighbours are built alike")

    @on(ModuleTree.Sorted)
    def _tell_order(self) -> None:
        sorting = self.tree_panel.arrangement.sorting
        column = BY_ID.get(sorting.column)
        if column is None:
            self.say("in the order of the model")
        else:
            ways = ("largest first", "smallest first") if column.number else ("A to Z", "Z to A")
            self.say(f"sorted by {column.name.lower()}, {ways[sorting.upwards]}")

    def action_jump_to_twin(self) -> None:
        """Go to the next place of a shared module or of a tied tensor."""
        twin = next_twin(self.subject.model, self.tree_panel.selected)
        if twin is None:
            self.say("it stands nowhere else, and shares no tensor")
        else:
            self.tree_panel.go_to(twin.id)

    def action_copy_path(self) -> None:
        """Copy the path of the module under the cursor."""
        path = self.tree_panel.selected.path
        self.app.copy_to_clipboard(path)
        self.say(f"copied {path}" if path else "the model itself has no path")

    def action_edit(self) -> None:
        """Open the source of the module under the cursor in the user's editor."""
        focused = self.focused
        place = focused.place if isinstance(focused, Code) else None
        place = place or source_place(self.subject.model, self.tree_panel.selected)
        problem = open_editor(self.app, *place) if place else "its source is in no file"
        self.say(problem)

    def action_export(self) -> None:
        """Ask for a format, and write what is shown."""
        formats = [(name, f"{name:5} what the tree shows") for name in FORMATS]
        formats.append((_PICTURE, f"{_PICTURE:5} a picture of the screen"))
        self.app.push_screen(Pick("Write to a file", formats), self._export)

    def _export(self, format: str | None) -> None:
        if format is None:
            return
        suffix, write = FORMATS.get(format, (f".{_PICTURE.lower()}", None))
        path = new_file(Path.cwd(), self.subject.model.name, suffix)
        try:
            text = write(self._table()) if write else self.app.export_screenshot()
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            self.say(f"cannot write {path}: {error.strerror}")
        else:
            self.say(f"wrote {path.name}")

    def _table(self) -> Table:
        tree, depths = self.tree_panel, self.subject.outline.depths
        modules = (self.subject.model[row] for row in tree.arrangement.rows.tolist())
        lines = [Line(tree.arrangement.row(module), depths[module.id]) for module in modules]
        return Table(self.subject, tree.columns, lines)

    def action_help(self) -> None:
        """Show all keys."""
        self.app.push_screen(Help())

    def action_quit(self) -> None:
        """Leave the explorer."""
        self.app.exit()

    def action_search(self) -> None:
        """Open the search line."""
        self.searching.begin()
        line = self.query_one(Input)
        line.value = ""
        self.searching.find("")
        self._show_search(True)
        self.set_focus(line)

    def _show_search(self, shown: bool) -> None:
        self.query_one(SearchBar).display = shown
        self.query_one("#status").display = not shown

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool:
        """Leave keys to the search line as long as it is open."""
        return not self.searching.is_open or action not in {"search", "panel"}

    @on(Input.Changed)
    def _search(self) -> None:
        if self.searching.is_open:
            self.searching.find(self.query_one(Input).value)
            self.say()

    def action_filter(self) -> None:
        """Show the matches alone, or the whole tree."""
        self.searching.toggle_filter()
        self.say("" if self.searching.text else "nothing is searched for; / begins")

    def action_match(self, direction: int) -> None:
        """Go to the next match, or to the one before."""
        if not self.searching.step(direction):
            self.say("nothing is searched for; / begins")

    def action_keep_search(self) -> None:
        """Go on in the tree with the matches marked."""
        self.enter(None)
        # In the line's own turn: letters that came before this key may still be on their way to it.
        self.query_one(Input).call_later(self._keep_search)

    def _keep_search(self) -> None:
        self.searching.find(self.query_one(Input).value)
        self.searching.keep()
        self._leave_search()

    def action_drop_search(self) -> None:
        """Give the search up and go back to where it began."""
        self.searching.drop()
        self.enter(None)
        self._leave_search()

    def _leave_search(self) -> None:
        self._show_search(False)
        self.say()

    def action_clear_search(self) -> None:
        """Forget what was searched for."""
        self.searching.clear()
        self.say()

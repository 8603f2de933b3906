"""The workbench of a run: what is known of it is shown as it becomes known."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from textual import on
from textual.message import Message

from torchglass.records.attributes import LiveModel
from torchglass.records.findings import Finding, Findings
from torchglass.records.model import Model
from torchglass.records.reader import Reader
from torchglass.views.tui.explorer_state import ExplorerState, ModelContents, count_model
from torchglass.views.tui.panel_tabs import PanelTabs
from torchglass.views.tui.panels.findings import FindingsPanel
from torchglass.views.tui.preferences import Preferences, SourceKind
from torchglass.views.tui.run_follower import RunFollower, RunUpdate
from torchglass.views.tui.tree.tree import ModuleTree
from torchglass.views.tui.workbench import LASTING, Workbench

_POLL_SECONDS = 0.25
_CHECKED_BYTES = 1 << 29
"""Up to how many bytes weights are checked without being asked: they are read in a second."""


class LiveBench(Workbench):
    """Counts modules and reads a run in threads, and draws what they found."""

    class Measured(Message):
        """The modules are counted."""

        def __init__(self, model: Model, contents: ModelContents) -> None:
            super().__init__()
            self.model = model
            self.contents = contents

    class Checked(Message):
        """The values of the weights were looked at."""

        def __init__(self, found: Sequence[Finding] | None) -> None:
            super().__init__()
            self.found = found

    class Heard(Message):
        """The run was read again."""

        def __init__(self, news: RunUpdate) -> None:
            super().__init__()
            self.news = news

    def __init__(
        self,
        state: ExplorerState,
        reader: Reader,
        preferences: Preferences | None = None,
        clock: Callable[[], float] = time.monotonic,
        kind: SourceKind = "model",
    ) -> None:
        self._kind, self._chosen_before = kind, preferences or Preferences()
        self._preferences = self._chosen_before.for_kind(kind)
        super().__init__(state, self._preferences, clock)
        self._follower = RunFollower(
            reader,
            lambda news: self.post_message(self.Heard(news)),
            interval=_POLL_SECONDS,
            model=state.model,
        )
        self._fresh, self._is_due, self._sized = True, False, False
        self._checking = self._gone = False

    @property
    def settled(self) -> bool:
        """Whether no thread is at work, and all that was found is on the screen."""
        drawn = not (self._is_due or self._fresh) and all(panel.settled for panel in self.dock)
        at_work = self.searching.at_work or self._checking
        counted = self.state.contents is not None and not at_work
        return counted and self._follower.idle and drawn

    @property
    def preferences(self) -> Preferences:
        """What the user chose up to now."""
        tree = self.tree_panel
        folds = tuple(self.state.model[fold].path for fold in sorted(self.searching.folds))
        panels = self.dock.keys
        if set(panels) == set(self._first_panels) and panels[:1] == self._first_panels[:1]:
            panels = self._preferences.panels
        chosen = replace(
            self._chosen_before.with_choices(self._kind, tree.labels, panels),
            share=self.share,
            repeats_folded=tree.arrangement.repeats_folded,
            filtering=self.searching.filtering,
        )
        return chosen.with_folds(self.state.model, folds)

    def on_mount(self) -> None:
        """Begin to follow the run beside the screen."""
        self.open_first_panels()
        self.run_worker(self._follower.follow, thread=True)

    def on_unmount(self) -> None:
        """Let the threads go."""
        self._gone = True
        self._follower.stop()

    def _count(self) -> None:
        self.run_worker(self._measure, thread=True)

    def _measure(self) -> None:
        model = self.state.model
        self.post_message(self.Measured(model, count_model(model)))

    @on(Measured)
    def _take_measures(self, message: Measured) -> None:
        # While it was counted another model may have come.
        if message.model is self.state.model:
            self.state.contents = message.contents
            self._learn()
            self.title_line.tell()
            self._check_values()

    def _check_values(self) -> None:
        """Look for NaN and Inf in weights that take no time to read, unless a run tells of them."""
        state = self.state
        counts = state.counts(state.model.root)
        unread = state.values_checked is False and state.document(Findings) is None
        if state.live is None or counts is None or not unread or self.title_line.news is None:
            return
        if not self._checking and 0 < counts.total.bytes <= _CHECKED_BYTES:
            self._checking = True
            self.run_worker(partial(self._read_values, state.live), thread=True)

    def _read_values(self, live: LiveModel) -> None:
        self.post_message(self.Checked(live.check(lambda share: not self._gone)))

    @on(Checked)
    def _take_checked(self, message: Checked) -> None:
        self._checking = False
        self.state.take_checked(message.found)
        self._learn()

    @on(FindingsPanel.Checked)
    def _tell_checked(self) -> None:
        self._learn()

    @on(Heard)
    def _take_news(self, message: Heard) -> None:
        news, last = message.news, self.title_line.news
        self.state.learn(news.step, news.series, news.points, news.histograms)
        is_first = last is None
        if news.model is not None and self.state.comparison is None:
            self._take_model(news.model)
        if news.documents is not None:
            self.state.take_documents(news.documents)
        if is_first:
            # Before, nobody knew what there is to show.
            self.open_first_panels()
        if news.series or news.documents is not None:
            self._learn()
        elif news.points:
            self.tree_panel.redraw()
            self.dock.refresh_data()
        if news.problem:
            self.say(f"{news.problem}{LASTING}")
        elif last is not None and last.problem:
            self.say()
        self.title_line.take(news)
        self._check_values()

    def _take_model(self, model: Model) -> None:
        before = self.state.model
        self.state.take_model(model)
        self.tree_panel.take_model(before)
        self.searching.take_model()
        self.dock.show(self.tree_panel.selected)
        self._count()

    def _learn(self) -> None:
        """Show what is known now, which may be more than numbers."""
        self.tree_panel.learn()
        self.dock.refresh_data()
        self.ask_for_series()

    def ask_for_series(self) -> None:
        """Have the series read that are on the screen."""
        wanted = {series.id for series in self.tree_panel.wanted()}
        wanted.update(series.id for series in self.state.series_at(self.tree_panel.selected))
        if self.dock.front is not None and self.dock.display:
            wanted.update(self.dock.front.wanted())
        self._follower.want(wanted)

    @on(ModuleTree.Scrolled)
    def _ask_for_what_is_seen(self) -> None:
        self.ask_for_series()

    @on(ModuleTree.Moved)
    def _follow_cursor(self) -> None:
        self.say()
        # A held key moves faster than panels are drawn: they show where it ends.
        if not self._is_due:
            self._is_due = True
            self.call_later(self._show_selected)

    @on(PanelTabs.Turned)
    def _show_selected(self) -> None:
        self._is_due = False
        self.dock.show(self.tree_panel.selected)
        self.ask_for_series()
        self.offer_keys()

    def on_resize(self) -> None:
        """Lay the panels out anew; the first time, open folds."""
        super().on_resize()
        # Once: where a terminal does not know its size, waiting for a refresh brings another event.
        if not self._sized:
            self._sized = True
            self.call_after_refresh(self._open_first_folds)

    def _open_first_folds(self) -> None:
        """Open the folds that were open the last time, or what fits."""
        tree, preferences = self.tree_panel, self._preferences
        self._fresh = False
        if preferences.repeats_folded:
            tree.fold_repeats(True)
        tree.set_folds(preferences.first_folds(self.state.outline, tree.window))
        call = self.state.failure.call if self.state.failure else None
        if call is not None:
            self.go_to(call.path)
        # Not before: a thread that counts a large model takes half of the time of the first paint.
        self.call_after_refresh(self._count)

"""The explorer's screen: it owns what is shown, and tells the panels when that changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Container
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Input

from torchglass.records.flow import Reader
from torchglass.records.model import ModuleId
from torchglass.views.tui.bars import KeyBar, SearchBar, TwoEnds
from torchglass.views.tui.columns import Group
from torchglass.views.tui.details import Details
from torchglass.views.tui.following import Follower, News
from torchglass.views.tui.help import Help
from torchglass.views.tui.keys import Place, bindings, hints
from torchglass.views.tui.rows import Folds, reveal
from torchglass.views.tui.search import Finder, find_match, next_match
from torchglass.views.tui.subject import Measures, Subject, measure
from torchglass.views.tui.tree import ModuleTree

_WIDE, _HIGH = 110, 16
_SHARES = range(20, 85, 5)
_POLL_SECONDS = 0.25
_LIVE_SECONDS = 10.0


class Explorer(Screen[None]):
    """The tree of a model and the panels that follow its cursor."""

    BINDINGS: ClassVar = bindings("anywhere")
    AUTO_FOCUS = "ModuleTree"

    class Measured(Message):
        """The modules are counted."""

        def __init__(self, measures: Measures) -> None:
            super().__init__()
            self.measures = measures

    class Heard(Message):
        """The run was read again."""

        def __init__(self, news: News) -> None:
            super().__init__()
            self.news = news

    def __init__(
        self, subject: Subject, reader: Reader, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self.subject = subject
        self.tree_panel = ModuleTree(subject)
        self.details = Details(subject)
        self._follower = Follower(
            reader, lambda news: self.post_message(self.Heard(news)), interval=_POLL_SECONDS
        )
        self._clock = clock
        self._last: News | None = None
        self._advanced: float | None = None
        self._share = 35
        self._viewing = False
        self._finder = Finder(subject.model)
        self._matches: list[ModuleId] = []
        self.searched = ""
        self._origin: tuple[Folds, ModuleId] | None = None

    @property
    def settled(self) -> bool:
        """Whether all modules are counted, and all that is on the screen is read."""
        return self.subject.measures is not None and self._follower.idle

    def compose(self) -> ComposeResult:
        """A title, the panels, the status or the search, and the keys."""
        yield TwoEnds(id="title")
        with Container(id="panels"):
            yield self.tree_panel
            yield self.details
        yield TwoEnds(id="status")
        yield SearchBar()
        yield KeyBar()

    def on_mount(self) -> None:
        """Begin to count and to follow, both beside the screen."""
        self._lay_out()
        self.run_worker(self._measure, thread=True)
        self.run_worker(self._follower.follow, thread=True)
        self.set_interval(1.0, self._title)
        self._title()

    def on_unmount(self) -> None:
        """Let the thread go."""
        self._follower.stop()

    def _measure(self) -> None:
        self.post_message(self.Measured(measure(self.subject.model)))
        self._finder.prepare()

    @on(Measured)
    def _take_measures(self, message: Measured) -> None:
        self.subject.measures = message.measures
        self.tree_panel.fit_columns()
        self.details.show(self.tree_panel.selected)

    @on(Heard)
    def _take_news(self, message: Heard) -> None:
        news, last = message.news, self._last
        if last is not None and news.step > last.step:
            self._advanced = self._clock()
        self._last = news
        self.subject.learn(news.step, news.series, news.points)
        if news.series:
            self.tree_panel.fit_columns()
            self._ask()
        if news.points:
            self.tree_panel.redraw()
            self.details.show(self.tree_panel.selected)
        if news.problem:
            self._say(f"{news.problem}; what was read before is still shown")
        elif last is not None and last.problem:
            self._say()
        self._title()

    def _ask(self) -> None:
        """Have the series read that are on the screen."""
        shown = map(self.subject.trend, self.tree_panel.on_screen())
        beside = self.subject.series_at(self.tree_panel.selected)
        self._follower.want(one.id for one in (*shown, *beside) if one is not None)

    @on(ModuleTree.Scrolled)
    def _ask_for_what_is_seen(self) -> None:
        self._ask()

    @on(ModuleTree.Moved)
    def _follow_cursor(self) -> None:
        self.details.show(self.tree_panel.selected)
        self._ask()
        self._say()

    def _title(self) -> None:
        run, model = self.subject.run.name, self.subject.model.name
        names = [run] if run == model else [run, model]
        self.query_one("#title", TwoEnds).say(" " + " · ".join(filter(None, names)), self._state())

    def _state(self) -> str:
        """How far the run is, nothing for a model that is not run."""
        if self._last is None or self._last.step < 0:
            return ""
        step = f"step {self._last.step:,} "
        if self._last.problem:
            return step + "✗ lost "
        if self._last.finished:
            return step + "✓ finished "
        live = self._advanced is not None and self._clock() - self._advanced < _LIVE_SECONDS
        return step + ("● live " if live else "○ waiting ")

    def _say(self, message: str = "") -> None:
        """Put a message on the status line; without one, where the cursor is."""
        tree, module = self.tree_panel, self.tree_panel.selected
        peers = self.subject.outline.by_class[module.class_name]
        kind = module.kind if len(peers) == 1 else f"{module.kind} ×{len(peers):,}"
        where = " · ".join(filter(None, (module.path, kind, self._count())))
        self.query_one("#status", TwoEnds).say(
            f" {message or where}", f"{tree.row + 1:,}/{tree.row_count:,} "
        )

    def on_resize(self) -> None:
        """Put the panels side by side or one above the other, as the terminal allows."""
        self._lay_out()

    def _lay_out(self) -> None:
        width, height = self.app.size
        wide = width >= _WIDE
        short = not wide and height < _HIGH
        self.set_class(wide, "wide")
        self.tree_panel.display = not (short and self._viewing)
        self.details.display = self._viewing or not short
        self.details.styles.width = f"{self._share}%" if wide else "100%"
        self.details.styles.height = "100%" if wide or short else f"{self._share}%"

    def on_descendant_focus(self) -> None:
        """Offer the keys that act where the focus is."""
        self._offer_keys()

    def _offer_keys(self) -> None:
        places: dict[object, tuple[Place, ...]] = {
            self.tree_panel: ("anywhere", "tree"),
            self.details: ("anywhere", "details"),
        }
        self.query_one(KeyBar).offer(hints(places.get(self.focused, ("search",))))

    @on(ModuleTree.Viewed)
    def action_view(self) -> None:
        """Go to the details."""
        self._enter(details=True)

    def action_leave(self) -> None:
        """Go back to the tree."""
        self._enter(details=False)

    def _enter(self, *, details: bool) -> None:
        self._viewing = details
        self._lay_out()
        # At once, not by a message: the next key may be there already.
        self.set_focus(self.details if details else self.tree_panel)

    def action_panel(self) -> None:
        """Change between the tree and the details."""
        self._enter(details=self.focused is self.tree_panel)

    def action_resize(self, direction: int) -> None:
        """Give the details more room or less."""
        self._share = min(max(self._share + direction * _SHARES.step, _SHARES[0]), _SHARES[-1])
        self._lay_out()

    def action_column(self, group: Group) -> None:
        """Show or hide the columns of a group."""
        shown = self.tree_panel.toggle_group(group)
        self._say(f"{group} {'shown' if shown else 'hidden'}")

    def action_help(self) -> None:
        """Show all keys."""
        self.app.push_screen(Help())

    def action_quit(self) -> None:
        """Leave the explorer."""
        self.app.exit()

    def action_search(self) -> None:
        """Open the search line."""
        self._origin = self.tree_panel.folds, self.tree_panel.cursor
        line = self.query_one(Input)
        line.value = ""
        self._search()
        self._show_search(True)
        self.set_focus(line)

    def _show_search(self, shown: bool) -> None:
        self.query_one(SearchBar).display = shown
        self.query_one("#status").display = not shown

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool:
        """Leave keys to the search line as long as it is open."""
        return self._origin is None or action not in {"search", "panel"}

    @on(Input.Changed)
    def _search(self) -> None:
        """Find what is typed, and go to the first match from where the search began."""
        text = self.query_one(Input).value
        if self._origin is None or text == self.searched:
            return
        folds, here = self._origin
        self.searched = text
        self._matches = self._finder.find(text)
        self.tree_panel.mark(self._matches)
        # One before the place where it began, so that this place itself can be the first match.
        first = next_match(self._matches, ModuleId(here - 1), 1)
        if first is None:
            self.tree_panel.set_folds(folds, here)
        else:
            self.tree_panel.set_folds(reveal(self.subject.outline, folds, [first]), first)
        self.query_one(SearchBar).say(self._count())

    def _count(self) -> str:
        """Which of the matches the cursor is on."""
        if not self._matches:
            return "no match" if self.searched else ""
        at, on_one = find_match(self._matches, self.tree_panel.cursor)
        total = f"{len(self._matches):,}"
        return f"{at + 1:,} of {total}" if on_one else f"{total} matches"

    def action_match(self, direction: int) -> None:
        """Go to the next match, or to the one before."""
        match = next_match(self._matches, self.tree_panel.cursor, direction)
        if match is None:
            self._say("nothing is searched for; / begins")
            return
        self.tree_panel.go_to(match)
        self.query_one(SearchBar).say(self._count())

    def action_keep_search(self) -> None:
        """Go on in the tree with the matches marked."""
        self._search()
        self._origin = None
        self._show_search(False)
        self._enter(details=False)

    def action_drop_search(self) -> None:
        """Give the search up and go back to where it began."""
        self.query_one(Input).value = ""
        self.action_keep_search()

    def action_clear_search(self) -> None:
        """Forget what was searched for."""
        self.searched = ""
        self._matches = []
        self.tree_panel.mark(())
        self._say()

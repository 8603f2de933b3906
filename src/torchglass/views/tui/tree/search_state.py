"""The state of a search: what it found, and where the tree was before."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from textual.message import Message

from torchglass.records.model import ModuleId
from torchglass.views.tui.explorer_state import Subject
from torchglass.views.tui.tree.rows import Folds, Mask, reveal
from torchglass.views.tui.tree.search import NONE, Finder, Matches, SearchError, Walk

if TYPE_CHECKING:
    from torchglass.views.tui.tree.tree import ModuleTree

_TURN_SECONDS, _REST_SECONDS = 0.01, 0.001
"""After how long a search lets keys be heard, and for how long at least."""


class _Origin(NamedTuple):
    folds: Folds
    cursor: ModuleId


class Searching:
    """What is searched for in the tree."""

    class Found(Message):
        """A search that goes on has found more."""

    def __init__(self, subject: Subject, tree: ModuleTree, *, filtering: bool) -> None:
        self.subject = subject
        self.tree = tree
        self.finder = Finder(subject.model)
        self.filtering = filtering
        """Whether the matches are shown alone."""
        self.clock: Callable[[], float] = time.monotonic
        self.text = ""
        self.is_open = False
        """Whether it is being typed."""
        self.problem = ""
        self._matches = NONE
        self._named: Mask | None = None
        self._walked: Walk | None = None
        self._before: _Origin | None = None
        self._work: Iterator[Matches] | None = None
        self._so_far = NONE

    @property
    def at_work(self) -> bool:
        """Whether it goes on when keys leave time for it."""
        return self._work is not None

    def take_model(self) -> None:
        """Search in the model that the tree shows now."""
        self.finder = Finder(self.subject.model)
        if self._before is not None:
            self._before = _Origin(self.tree.folds, self.tree.cursor)
            self._look()

    @property
    def folds(self) -> Folds:
        """What is open besides what the search opened."""
        return self.tree.folds if self._before is None else self._before.folds

    def begin(self) -> None:
        """Remember where the tree is, to come back there."""
        self.is_open = True
        if self._before is None:
            self._before = _Origin(self.tree.folds, self.tree.cursor)
        if not self.text:
            # The time before the first letter is enough to read all names.
            self._look()

    def find(self, text: str) -> None:
        """Find what is typed, and go to the first match from where the search began."""
        if text == self.text or self._before is None:
            return
        self.text = text
        self._look()

    def toggle_filter(self) -> None:
        """Show the matches alone, or the whole tree."""
        self.filtering = not self.filtering
        if self._before is not None:
            self._show(self.tree.cursor)

    def _look(self) -> None:
        self.problem, self._so_far = "", NONE
        self._work = self.finder.finding(self.text)
        self._go_on(self._work)

    def _go_on(self, work: Iterator[Matches]) -> None:
        """Search until keys have to be heard, and again after them."""
        # Another letter may have begun another search.
        if work is not self._work:
            return
        pause = self.clock() + _TURN_SECONDS
        try:
            for self._so_far in work:
                if self.clock() > pause:
                    # By a timer: what is only called later comes before keys on their way here.
                    self.tree.set_timer(_REST_SECONDS, partial(self._go_on, work))
                    self.tree.post_message(self.Found())
                    return
        except SearchError as problem:
            self._so_far, self.problem = NONE, str(problem)
        self._work = None
        self._take(self._so_far)
        self._show()

    def _take(self, matches: Matches) -> None:
        self._matches, self._walked = matches, None
        self._named = self.finder.named(self.text) if len(matches) else None
        self.tree.mark(matches)

    def _show(self, here: ModuleId | None = None) -> None:
        """Go to the first match from a module, or from where the search began."""
        assert self._before is not None
        first = self._walk.first(self._before.cursor if here is None else here)
        if first is None:
            self.tree.show_rows(*self._before)
            return
        folds = reveal(self.subject.outline, self._before.folds, [first])
        self.tree.show_rows(folds, first, self._matches if self.filtering else None)

    def keep(self) -> None:
        """Go on with the matches marked."""
        self.is_open = False
        if not self.text:
            self.clear()

    def clear(self) -> None:
        """Forget the search; the tree is as it was, with the cursor in view where it is now."""
        self.is_open = False
        self.text = self.problem = ""
        self._work = None
        self._take(NONE)
        if self._before is None:
            return
        folds, cursor = self._before.folds, self.tree.cursor
        self._before = None
        self.tree.show_rows(reveal(self.subject.outline, folds, [cursor]), cursor)

    def drop(self) -> None:
        """Give the search up and go back to where it began."""
        before = self._before
        self.clear()
        if before is not None:
            self.tree.set_folds(*before)

    def step(self, direction: int) -> bool:
        """Go to the next match, or to the one before; whether there is any."""
        match = self._walk.next(self.tree.cursor, direction)
        if match is not None:
            self.tree.go_to(match)
        return match is not None

    @property
    def count(self) -> str:
        """Which of the matches the cursor is on."""
        if self.problem or not self.text:
            return self.problem
        if self.at_work:
            return f"{len(self._so_far):,} so far"
        walk, cursor = self._walk, self.tree.cursor
        if not len(walk):
            return "no match"
        by_name = f", {walk.named_count:,} by name" if 0 < walk.named_count < len(walk) else ""
        if walk.is_match(cursor):
            return f"{walk.number(cursor):,} of {len(walk):,}{by_name}"
        return f"{len(walk):,} matches{by_name}"

    @property
    def _walk(self) -> Walk:
        """The matches in the order of the rows, which the user may sort meanwhile."""
        order = self.tree.arrangement.order
        if self._walked is None or self._walked.order is not order:
            self._walked = Walk(self._matches, order, self._named)
        return self._walked

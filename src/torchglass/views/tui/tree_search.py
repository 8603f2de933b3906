"""Finds modules as the user types, and walks through the matches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import islice, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import regex  # type: ignore[import-untyped]
from textual.message import Message

from torchglass.records.model import Model, Module, ModuleId, Slot
from torchglass.tables.text import shape_text
from torchglass.views.tui.explorer_state import ExplorerState
from torchglass.views.tui.tree_rows import Folds, Ids, Mask, ModuleOrder, reveal

if TYPE_CHECKING:
    from torchglass.views.tui.tree import ModuleTree

_INDEX_BATCH = 5_000
"""Modules whose texts are read in a few milliseconds."""


def _tensor_line(slot: Slot) -> str:
    shape = shape_text(slot.spec).replace("×", "x")
    return f"{slot.name} {shape} {slot.spec.dtype} {slot.spec.device}"


REGEX = "re:"
Matches = Ids
"""The ids of modules, in model order."""
NONE: Matches = np.empty(0, np.int64)

_BATCH = 2_000
"""Texts that are searched at once, so that a regular expression takes a few milliseconds."""
_PATIENCE_SECONDS = 0.05
"""How long a regex may take for a batch: some would take years on one name."""


class SearchError(Exception):
    """Why a search failed, in words for the user."""


class ModuleFinder:
    """Finds modules by name, class, settings, tensors or path. Alike ones share a text."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._words: list[str] = []
        """Name, class, settings and tensors in lower case, each on its own line."""
        self._names: list[str] = []
        """The name at the start of each text."""
        self._numbers: dict[tuple[object, ...], int] = {}
        self._number_of: list[int] = []
        """By module: the index of its text."""
        self._parent_of: list[int] = []
        self._holders: list[int] = []
        """The modules with children, without the root: its path is empty."""
        self._paths: list[str] = []
        """Their paths, in lower case."""

    def find(self, text: str) -> Matches:
        """The modules with the text in their name, class, settings, or names and shapes of tensors.

        Case does not matter. A text with a dot is also looked for in paths, and has to reach the
        module's own name: "layer1.0" finds that block, not everything inside it. "re:" starts a
        regular expression; `SearchError` says what is wrong with it.
        """
        matches = NONE
        for found in self.finding(text):
            matches = found
        return matches

    def named(self, text: str) -> Mask | None:
        """The modules with the text in their name or path; None if that makes no difference.

        Call it after a search, which has read all names.
        """
        if text.startswith(REGEX) or not text:
            return None
        text = text.lower()
        chosen = self._chosen([text in name for name in self._names])
        return chosen | self._at_end_of_path(text) if "." in text else chosen

    def finding(self, text: str) -> Iterator[Matches]:
        """`find` step by step: yields what is found so far, and everything at the end.

        The first search reads all names; an empty text is enough for that.
        """
        for _ in self._reading():
            yield NONE
        if text.startswith(REGEX):
            yield from self._matching(text.removeprefix(REGEX))
            return
        text = text.lower().replace("×", "x")
        if text:
            chosen = self._chosen([text in words for words in self._words])
            if "." in text:
                chosen |= self._at_end_of_path(text)
            yield np.flatnonzero(chosen)

    def _matching(self, expression: str) -> Iterator[Matches]:
        if not expression:
            return
        try:
            pattern = regex.compile(expression, regex.IGNORECASE | regex.MULTILINE)
            of_words = np.zeros(len(self._words), np.bool_)
            for start, end in _batches(len(self._words)):
                of_words[start:end] = _matching(pattern, self._words[start:end])
                yield NONE
            chosen, modules = self._chosen(of_words), self.model.modules
            others = np.flatnonzero(~chosen)
            for start, end in _batches(len(others)):
                asked = others[start:end]
                chosen[asked] = _matching(pattern, [modules[one].path for one in asked.tolist()])
                yield np.flatnonzero(chosen)
            yield np.flatnonzero(chosen)
        except regex.error as error:
            raise SearchError(f"not a valid regex: {error}") from None
        except TimeoutError:
            raise SearchError("regex takes too long") from None

    def _reading(self) -> Iterator[None]:
        """Read the texts in batches; other work can be done between them."""
        modules = self.model.modules
        while len(self._number_of) < len(modules):
            start = len(self._number_of)
            self._read(modules[start : start + _INDEX_BATCH])
            yield

    def _read(self, modules: Sequence[Module]) -> None:
        self._number_of += map(self._number, modules)
        self._parent_of += [module.parent or 0 for module in modules]
        holders = [one for one in modules if one.children and one.parent is not None]
        self._holders += [holder.id for holder in holders]
        self._paths += [holder.path.lower() for holder in holders]

    def _chosen(self, words: Sequence[bool] | Mask) -> Mask:
        """For each module, whether its text is among these."""
        mask: Mask = np.asarray(words, np.bool_)[self._words_of]
        return mask

    def _at_end_of_path(self, text: str) -> Mask:
        """The modules whose path contains the text, with its last dot before their own name."""
        above, _, own = text.rpartition(".")
        named = self._chosen([name.startswith(own) for name in self._names])
        holds = np.zeros(len(named), np.bool_)
        holds[self._holders] = [path.endswith(above) for path in self._paths]
        return named & holds[self._parents]

    def _number(self, module: Module) -> int:
        # A spec is kept alive by the model, and usually shared by all slots of a kind.
        slots = tuple([(slot.name, id(slot.spec)) for slot in module.slots])
        key = (module.name, module.class_name, module.extra, slots)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._numbers)
            lines = [module.name, module.kind, module.extra, *map(_tensor_line, module.slots)]
            self._words.append("\n".join(lines).lower())
            self._names.append(module.name.lower())
        return number

    @cached_property
    def _words_of(self) -> Ids:
        return np.array(self._number_of, np.int64)

    @cached_property
    def _parents(self) -> Ids:
        return np.array(self._parent_of, np.int64)


def _batches(count: int) -> Iterator[tuple[int, int]]:
    return pairwise([*range(0, count, _BATCH), count])


def _matching(pattern: regex.Pattern[str], texts: Sequence[str]) -> Mask:
    """For each text, whether the pattern is found in it. Raises TimeoutError if that takes long."""
    found = np.zeros(len(texts), np.bool_)
    deadline = time.thread_time() + _PATIENCE_SECONDS
    if pattern.search(""):
        return ~found
    # All texts joined: searching each costs more, unless there are more than two matches per text.
    hits = pattern.finditer("\n".join(texts), timeout=_PATIENCE_SECONDS)
    spans = [hit.span() for hit in islice(hits, 2 * len(texts))]
    if len(spans) == 2 * len(texts):
        doubtful: Iterable[int] = range(len(texts))
    else:
        ends = np.cumsum([len(text) + 1 for text in texts]) - 1
        first, last = np.searchsorted(ends, np.array(spans, np.int64).reshape(-1, 2).T)
        found[first[first == last]] = True
        # A match that reaches into the next text may not match either of them alone.
        across = zip(first[first < last].tolist(), last[first < last].tolist(), strict=True)
        doubtful = [text for start, end in across for text in range(start, end + 1)]
    for text in doubtful:
        left = deadline - time.thread_time()
        if left <= 0:
            raise TimeoutError
        found[text] |= bool(pattern.search(texts[text], timeout=left))
    return found


class MatchOrder:
    """The matches of a search: those by name or path first, each kind in row order."""

    def __init__(self, matches: Matches, order: ModuleOrder, named: Mask | None = None) -> None:
        self.order = order
        is_named = np.ones(len(matches), np.bool_) if named is None else named[matches]
        # They are usually in order already, which a stable sort detects at once.
        by_name, others = (
            np.sort(order.places[part], kind="stable")
            for part in (matches[is_named], matches[~is_named])
        )
        self._places = np.concatenate([by_name, others])
        self.named_count = len(by_name)

    def __len__(self) -> int:
        return len(self._places)

    def first(self, id: ModuleId) -> ModuleId | None:
        """The module if it matches by name, else the next one that does."""
        count = self.named_count or len(self)
        at = np.searchsorted(self._places[:count], self.order.places[id])
        return self._match(int(at) % count) if count else None

    def next(self, id: ModuleId, direction: int) -> ModuleId | None:
        """The next or previous match of a module, wrapping around; None if there are no matches."""
        before = self._before(id)
        at = before + self.is_match(id) if direction > 0 else before - 1
        return self._match(at % len(self)) if len(self) else None

    def number(self, id: ModuleId) -> int:
        return self._before(id) + 1

    def is_match(self, id: ModuleId) -> bool:
        return bool((self._places == self.order.places[id]).any())

    def _before(self, id: ModuleId) -> int:
        """How many matches of its kind, and of the kinds before, come before a module."""
        place, named = self.order.places[id], self.named_count
        if named and place not in self._places[named:]:
            return int(np.searchsorted(self._places[:named], place))
        return named + int(np.searchsorted(self._places[named:], place))

    def _match(self, number: int) -> ModuleId:
        return ModuleId(int(self.order.ids[self._places[number]]))


_TURN_SECONDS, _REST_SECONDS = 0.01, 0.001
"""How long a search works before it handles keys, and how long it pauses for them."""


class _Origin(NamedTuple):
    folds: Folds
    cursor: ModuleId


class SearchState:
    """What is searched for in the tree, and where the tree was before."""

    class Found(Message):
        """A search in progress has found more."""

    def __init__(self, state: ExplorerState, tree: ModuleTree, *, filtering: bool) -> None:
        self.state = state
        self.tree = tree
        self.finder = ModuleFinder(state.model)
        self.filtering = filtering
        """Whether only the matches are shown."""
        self.changes_only = False
        """Whether only the modules that differ in a comparison are shown."""
        self.clock: Callable[[], float] = time.monotonic
        self.text = ""
        self.is_open = False
        """Whether the search bar is open."""
        self.problem = ""
        self._matches = NONE
        self._named: Mask | None = None
        self._walked: MatchOrder | None = None
        self._before: _Origin | None = None
        self._work: Iterator[Matches] | None = None
        self._so_far = NONE

    @property
    def at_work(self) -> bool:
        """Whether the search is still in progress."""
        return self._work is not None

    def take_model(self) -> None:
        self.finder = ModuleFinder(self.state.model)
        if self._before is not None:
            self._before = _Origin(self.tree.folds, self.tree.cursor)
            self._look()

    @property
    def folds(self) -> Folds:
        """The folds without those that the search opened."""
        return self.tree.folds if self._before is None else self._before.folds

    def begin(self) -> None:
        self.is_open = True
        if self._before is None:
            self._before = _Origin(self.tree.folds, self.tree.cursor)
        if not self.text:
            # All names are read before the first letter is typed.
            self._look()

    def find(self, text: str) -> None:
        if text == self.text or self._before is None:
            return
        self.text = text
        self._look()

    def toggle_filter(self) -> None:
        if not self.text and self.state.comparison is not None:
            self._toggle_changes()
            return
        self.filtering = not self.filtering
        if self._before is not None:
            self._show(self.tree.cursor)

    def _toggle_changes(self) -> None:
        """Show only the modules that differ in a comparison, or all again."""
        self.changes_only = not self.changes_only
        changed, cursor, folds = self._changed, self.tree.cursor, self.tree.folds
        first = MatchOrder(changed, self.tree.tree_rows.order).first(cursor)
        if self.changes_only and first is not None:
            folds = reveal(self.state.outline, folds, [ModuleId(int(one)) for one in changed])
            self.tree.show_rows(folds, first, changed)
        else:
            self.tree.show_rows(folds, cursor)

    @property
    def _changed(self) -> Matches:
        """The modules that differ in a comparison; those that only contain some do not count."""
        comparison = self.state.comparison
        if comparison is None:
            return NONE
        found = (one.id for one in self.state.model.modules if one.path in comparison.changes)
        return np.fromiter(found, np.int64)

    def _look(self) -> None:
        self.problem, self._so_far = "", NONE
        self._work = self.finder.finding(self.text)
        self._go_on(self._work)

    def _go_on(self, work: Iterator[Matches]) -> None:
        """Search until keys have to be handled, and continue after them."""
        # Another letter may have started another search.
        if work is not self._work:
            return
        pause = self.clock() + _TURN_SECONDS
        try:
            for self._so_far in work:
                if self.clock() > pause:
                    # By a timer: `call_later` would come before keys that are already waiting.
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
        folds = reveal(self.state.outline, self._before.folds, [first])
        self.tree.show_rows(folds, first, self._matches if self.filtering else None)

    def keep(self) -> None:
        self.is_open = False
        if not self.text:
            self.clear()

    def clear(self) -> None:
        """Forget the search: restore the tree, and keep the cursor visible where it is."""
        self.is_open = False
        self.text = self.problem = ""
        self.changes_only = False
        self._work = None
        self._take(NONE)
        if self._before is None:
            return
        folds, cursor = self._before.folds, self.tree.cursor
        self._before = None
        self.tree.show_rows(reveal(self.state.outline, folds, [cursor]), cursor)

    def drop(self) -> None:
        before = self._before
        self.clear()
        if before is not None:
            self.tree.set_folds(*before)

    def step(self, direction: int) -> bool:
        """Go to the next or previous match, or else change; False if there are none."""
        changes = not self.text and self.state.comparison is not None
        order = self.tree.tree_rows.order
        walk = MatchOrder(self._changed, order) if changes else self._walk
        match = walk.next(self.tree.cursor, direction)
        if match is not None:
            self.tree.go_to(match)
        return match is not None

    @property
    def count(self) -> str:
        """The position among the matches, in words."""
        if self.problem or not self.text:
            return self.problem
        if self.at_work:
            return f"{len(self._so_far):,} so far"
        walk, cursor = self._walk, self.tree.cursor
        if not len(walk):
            return "no matches"
        by_name = f", {walk.named_count:,} by name" if 0 < walk.named_count < len(walk) else ""
        if walk.is_match(cursor):
            return f"{walk.number(cursor):,} of {len(walk):,}{by_name}"
        return f"{len(walk):,} matches{by_name}"

    @property
    def _walk(self) -> MatchOrder:
        """The matches in row order, which the user may change meanwhile."""
        order = self.tree.tree_rows.order
        if self._walked is None or self._walked.order is not order:
            self._walked = MatchOrder(self._matches, order, self._named)
        return self._walked

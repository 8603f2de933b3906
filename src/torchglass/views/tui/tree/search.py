"""Finding modules by what is typed, in 200,000 of them between two keystrokes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise

import numpy as np
import regex  # type: ignore[import-untyped]

from torchglass.records.model import Model, ModuleId
from torchglass.views.tui.tree.index import Index
from torchglass.views.tui.tree.rows import Ids, Mask, Order

REGEX = "re:"
Matches = Ids
"""The ids of modules, in the order of the model."""
NONE: Matches = np.empty(0, np.int64)

_BATCH = 2_000
"""Texts that are asked at once: few enough for a regular expression to be done in no time."""
_PATIENCE_SECONDS = 0.05
"""After how long with a batch one is given up: some would take years on one name."""


class SearchError(Exception):
    """Why it cannot be said what matches."""


class Finder:
    """Where the modules of a model are looked up."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._index = Index(model)

    def find(self, text: str) -> Matches:
        """The modules with the text in their name, class, settings, or names and shapes of tensors.

        Case is no matter. A text with a dot in it is looked for in paths, too, and has to reach the
        module's own name: "layer1.0" finds that block, not all that is inside it. "re:" begins a
        regular expression; `SearchError` says what is wrong with it.
        """
        matches = NONE
        for found in self.finding(text):
            matches = found
        return matches

    def finding(self, text: str) -> Iterator[Matches]:
        """The same step by step: what is found so far, and at last all of it.

        The first time all names are read before, for which "" is enough.
        """
        for _ in self._index.reading():
            yield NONE
        if text.startswith(REGEX):
            yield from self._matching(text.removeprefix(REGEX))
            return
        text = text.lower().replace("×", "x")
        if text:
            chosen = self._index.chosen([text in words for words in self._index.words])
            if "." in text:
                chosen |= self._index.at_end_of_path(text)
            yield np.flatnonzero(chosen)

    def _matching(self, expression: str) -> Iterator[Matches]:
        if not expression:
            return
        try:
            pattern = regex.compile(expression, regex.IGNORECASE | regex.MULTILINE)
        except regex.error as error:
            raise SearchError(f"no regex yet: {error}") from None
        try:
            yield from self._matched(pattern)
        except TimeoutError:
            raise SearchError("this regex takes too long") from None

    def _matched(self, pattern: regex.Pattern[str]) -> Iterator[Matches]:
        words, modules = self._index.words, self.model.modules
        of_words = np.zeros(len(words), np.bool_)
        for start, end in _batches(len(words)):
            of_words[start:end] = _matching(pattern, words[start:end])
            yield NONE
        chosen = self._index.chosen(of_words)
        others = np.flatnonzero(~chosen)
        for start, end in _batches(len(others)):
            asked = others[start:end]
            chosen[asked] = _matching(pattern, [modules[one].path for one in asked.tolist()])
            yield np.flatnonzero(chosen)
        yield np.flatnonzero(chosen)


def _batches(count: int) -> Iterator[tuple[int, int]]:
    return pairwise([*range(0, count, _BATCH), count])


def _matching(pattern: regex.Pattern[str], texts: Sequence[str]) -> Mask:
    """For each text whether the pattern is found in it; `TimeoutError` if that takes long."""
    found = np.zeros(len(texts), np.bool_)
    deadline = time.thread_time() + _PATIENCE_SECONDS
    if pattern.search(""):
        return ~found
    # All texts as one, because asking each costs more, as long as they have a match or two each.
    hits = pattern.finditer("\n".join(texts), timeout=_PATIENCE_SECONDS)
    spans = [hit.span() for hit in islice(hits, 2 * len(texts))]
    if len(spans) == 2 * len(texts):
        doubtful: Iterable[int] = range(len(texts))
    else:
        ends = np.cumsum([len(text) + 1 for text in texts]) - 1
        first, last = np.searchsorted(ends, np.array(spans, np.int64).reshape(-1, 2).T)
        found[first[first == last]] = True
        # A match that reaches into the next text may be none in either of them.
        doubtful = _between(first[first < last], last[first < last])
    for text in doubtful:
        left = deadline - time.thread_time()
        if left <= 0:
            raise TimeoutError
        found[text] |= bool(pattern.search(texts[text], timeout=left))
    return found


def _between(first: Matches, last: Matches) -> Iterator[int]:
    """All numbers from each of the first to the last beside it."""
    for start, end in zip(first.tolist(), last.tolist(), strict=True):
        yield from range(start, end + 1)


class Walk:
    """The matches of a search in the order in which the tree has its rows."""

    def __init__(self, matches: Matches, order: Order) -> None:
        self.order = order
        # Mostly they are in order already, which the stable sort sees at once.
        self._places = np.sort(order.places[matches], kind="stable")

    def __len__(self) -> int:
        return len(self._places)

    def first(self, id: ModuleId) -> ModuleId | None:
        """The module itself if it is a match, else the next one."""
        return self._match(self._before(id)) if len(self) else None

    def next(self, id: ModuleId, direction: int) -> ModuleId | None:
        """The match after a module, or before it with -1, around the end; None without any."""
        if not len(self):
            return None
        before = self._before(id)
        return self._match(before + self.is_match(id) if direction > 0 else before - 1)

    def number(self, id: ModuleId) -> int:
        """Which match a module is, or would be, from 1 on."""
        return self._before(id) + 1

    def is_match(self, id: ModuleId) -> bool:
        """Whether a module is one of them."""
        at = self._before(id)
        return at < len(self) and bool(self._places[at] == self.order.places[id])

    def _before(self, id: ModuleId) -> int:
        return int(np.searchsorted(self._places, self.order.places[id]))

    def _match(self, number: int) -> ModuleId:
        place = self._places[number % len(self)]
        return ModuleId(int(self.order.ids[place]))

"""Finds modules as the user types."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice, pairwise

import numpy as np
import regex  # type: ignore[import-untyped]

from torchglass.records.model import Model, Module, ModuleId, Slot
from torchglass.views.formats import shape_text
from torchglass.views.tui.tree.rows import Ids, Mask, Order

_INDEX_BATCH = 5_000
"""Modules whose texts are read in some milliseconds."""


class Index:
    """What is typed is looked for in here. Modules that are alike share their words."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.words: list[str] = []
        """In lower case and a line each: a name, a class, settings, and each of the tensors."""
        self.names: list[str] = []
        """By number of the words: the name that they begin with."""
        self._numbers: dict[tuple[object, ...], int] = {}
        self._number_of: list[int] = []
        """By module: the number of its words."""
        self._parent_of: list[int] = []
        self._holders: list[int] = []
        """The modules that hold others; after the root's path there is no dot."""
        self._paths: list[str] = []
        """Those of the holders, in lower case."""

    def reading(self) -> Iterator[None]:
        """Read what was not read yet; after each step there is time for something else."""
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

    def chosen(self, words: Sequence[bool] | Mask) -> Mask:
        """For each module whether its words are among these."""
        mask: Mask = np.asarray(words, np.bool_)[self._words_of]
        return mask

    def at_end_of_path(self, text: str) -> Mask:
        """The modules whose path has the text in it with its last dot before their own name."""
        above, _, own = text.rpartition(".")
        named = self.chosen([name.startswith(own) for name in self.names])
        holds = np.zeros(len(named), np.bool_)
        holds[self._holders] = [path.endswith(above) for path in self._paths]
        return named & holds[self._parents]

    def _number(self, module: Module) -> int:
        # A spec is a record that the model keeps alive, and mostly shared by all slots of a kind.
        slots = tuple([(slot.name, id(slot.spec)) for slot in module.slots])
        key = (module.name, module.class_name, module.extra, slots)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._numbers)
            lines = [module.name, module.kind, module.extra, *map(_line, module.slots)]
            self.words.append("\n".join(lines).lower())
            self.names.append(module.name.lower())
        return number

    @cached_property
    def _words_of(self) -> Ids:
        return np.array(self._number_of, np.int64)

    @cached_property
    def _parents(self) -> Ids:
        return np.array(self._parent_of, np.int64)


def _line(slot: Slot) -> str:
    shape = shape_text(slot.spec).replace("×", "x")
    return f"{slot.name} {shape} {slot.spec.dtype} {slot.spec.device}"


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

        Upper and lower case are the same. A text with a dot in it is also looked for in paths, and
        has to reach the module's own name: "layer1.0" finds that block, not all that is inside it.
        "re:" begins a regular expression; `SearchError` says what is wrong with it.
        """
        matches = NONE
        for found in self.finding(text):
            matches = found
        return matches

    def named(self, text: str) -> Mask | None:
        """The modules with the text in their name or path; None where that makes no difference.

        All names were read before, by a search.
        """
        if text.startswith(REGEX) or not text:
            return None
        text = text.lower()
        chosen = self._index.chosen([text in name for name in self._index.names])
        return chosen | self._index.at_end_of_path(text) if "." in text else chosen

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
            raise SearchError(f"not a valid regex: {error}") from None
        try:
            yield from self._matched(pattern)
        except TimeoutError:
            raise SearchError("regex takes too long") from None

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
    """The matches of a search: those by name or path first, each kind in the order of the rows."""

    def __init__(self, matches: Matches, order: Order, named: Mask | None = None) -> None:
        self.order = order
        is_named = np.ones(len(matches), np.bool_) if named is None else named[matches]
        # Mostly they are in order already, which the stable sort sees at once.
        self._named, self._others = (
            np.sort(order.places[part], kind="stable")
            for part in (matches[is_named], matches[~is_named])
        )

    def __len__(self) -> int:
        return len(self._named) + len(self._others)

    @property
    def named_count(self) -> int:
        """How many of them match by name or path."""
        return len(self._named)

    def first(self, id: ModuleId) -> ModuleId | None:
        """The module itself if it matches by name, else the next one that does."""
        if not len(self):
            return None
        place = self.order.places[id]
        if len(self._named):
            return self._match(int(np.searchsorted(self._named, place)) % len(self._named))
        return self._match(int(np.searchsorted(self._others, place)))

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
        return _is_in(self._named, self.order.places[id]) or _is_in(
            self._others, self.order.places[id]
        )

    def _before(self, id: ModuleId) -> int:
        """How many matches come before a module."""
        place = self.order.places[id]
        if _is_in(self._others, place) or not len(self._named):
            return len(self._named) + int(np.searchsorted(self._others, place))
        return int(np.searchsorted(self._named, place))

    def _match(self, number: int) -> ModuleId:
        number %= len(self)
        named = len(self._named)
        place = self._named[number] if number < named else self._others[number - named]
        return ModuleId(int(self.order.ids[place]))


def _is_in(places: Ids, place: int) -> bool:
    at = int(np.searchsorted(places, place))
    return at < len(places) and bool(places[at] == place)

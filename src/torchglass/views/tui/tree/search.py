"""Finding modules by what is typed, in 200,000 of them between two keystrokes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from functools import cached_property

import numpy as np
import numpy.typing as npt
import regex  # type: ignore[import-untyped]

from torchglass.records.model import Model, Module, ModuleId, Slot
from torchglass.views.columns import shape_text
from torchglass.views.tui.tree.rows import Order

REGEX = "re:"
Matches = npt.NDArray[np.int64]
"""The ids of modules, in the order of the model."""
NONE: Matches = np.empty(0, np.int64)

_PATIENCE_SECONDS = 0.5
"""After how long a regular expression is given up: some would take years on one name."""


class SearchError(Exception):
    """Why it cannot be said what matches."""


class Finder:
    """Where the modules of a model are looked up."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def prepare(self) -> None:
        """Read all names now, so that the first search is as quick as the next."""
        _ = self._words, self._names, self._holders, self._parents, self._paths

    def find(self, text: str) -> Matches:
        """The modules with the text in their name, class, settings, or names and shapes of tensors.

        Case is no matter. A text with a dot in it is looked for in paths, too, and has to reach the
        module's own name: "layer1.0" finds that block, not all that is inside it. "re:" begins a
        regular expression; `SearchError` says what is wrong with it.
        """
        if text.startswith(REGEX):
            return self._matching(text.removeprefix(REGEX))
        text = text.lower().replace("×", "x")
        if not text:
            return NONE
        chosen = self._words.chosen([text in words for words in self._words.texts])
        if "." in text:
            chosen |= self._at_end_of_path(text)
        return np.flatnonzero(chosen)

    def _at_end_of_path(self, text: str) -> npt.NDArray[np.bool_]:
        """The modules whose path has the text in it with its last dot before their own name."""
        above, _, own = text.rpartition(".")
        named = self._names.chosen([name.startswith(own) for name in self._names.texts])
        holders, paths = self._holders
        holds = np.zeros(len(named), np.bool_)
        holds[holders] = np.array([path.endswith(above) for path in paths], np.bool_)
        return named & holds[self._parents]

    def _matching(self, expression: str) -> Matches:
        if not expression:
            return NONE
        try:
            pattern = regex.compile(expression, regex.IGNORECASE | regex.MULTILINE)
            chosen = self._words.chosen(self._words.matching(pattern))
            chosen |= self._paths.chosen(self._paths.matching(pattern))
        except regex.error as error:
            raise SearchError(f"no regex yet: {error}") from None
        except TimeoutError:
            raise SearchError("this regex takes too long") from None
        return np.flatnonzero(chosen)

    @cached_property
    def _words(self) -> _Texts:
        slots = _SlotWords()
        return _Texts(
            f"{module.name}\n{module.kind}\n{module.extra}{slots.of(module)}"
            for module in self.model.modules
        )

    @cached_property
    def _names(self) -> _Texts:
        return _Texts(module.name for module in self.model.modules)

    @cached_property
    def _paths(self) -> _Texts:
        return _Texts(module.path for module in self.model.modules)

    @cached_property
    def _holders(self) -> tuple[npt.NDArray[np.int64], list[str]]:
        """The modules that hold others, and their paths; after the root's there is no dot."""
        holders = [one for one in self.model.modules if one.children and one.parent is not None]
        ids = np.array([one.id for one in holders], np.int64)
        return ids, [one.path.lower() for one in holders]

    @cached_property
    def _parents(self) -> npt.NDArray[np.int64]:
        return np.array([module.parent or 0 for module in self.model.modules], np.int64)


class _Texts:
    """A text for each module in lower case; those that are the same are kept and searched once."""

    def __init__(self, texts: Iterable[str]) -> None:
        numbers: dict[str, int] = {}
        of_modules = [numbers.setdefault(text.lower(), len(numbers)) for text in texts]
        self.texts = list(numbers)
        self._text_of = np.array(of_modules, np.int64)

    def chosen(self, texts: Iterable[bool]) -> npt.NDArray[np.bool_]:
        """For each module whether its text is among these."""
        return np.fromiter(texts, np.bool_, len(self.texts))[self._text_of]

    def matching(self, pattern: regex.Pattern[str]) -> npt.NDArray[np.bool_]:
        """For each text whether the pattern is found in it; `TimeoutError` if that takes long."""
        found = np.zeros(len(self.texts), np.bool_)
        if pattern.search(""):
            return ~found
        deadline = time.thread_time() + _PATIENCE_SECONDS
        # All texts as one: asking each by itself costs more than the search.
        whole, ends = self._joined
        hits = [hit.span() for hit in pattern.finditer(whole, timeout=_PATIENCE_SECONDS)]
        first, last = np.searchsorted(ends, np.array(hits, np.int64).reshape(-1, 2).T)
        found[first[first == last]] = True
        # A match that reaches into the next text may be none in either of them.
        for text in _between(first[first < last], last[first < last]):
            left = deadline - time.thread_time()
            if left <= 0:
                raise TimeoutError
            found[text] |= bool(pattern.search(self.texts[text], timeout=left))
        return found

    @cached_property
    def _joined(self) -> tuple[str, npt.NDArray[np.int64]]:
        """All texts, and where each of them ends."""
        lengths = np.array([len(text) + 1 for text in self.texts], np.int64)
        return "\n".join(self.texts), np.cumsum(lengths) - 1


def _between(first: Matches, last: Matches) -> Iterator[int]:
    """All numbers from each of the first to the last beside it."""
    for start, end in zip(first.tolist(), last.tolist(), strict=True):
        yield from range(start, end + 1)


class _SlotWords:
    """Names, shapes and types of tensors as text, made once for the many that are alike."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], str] = {(): ""}

    def of(self, module: Module) -> str:
        """What a module's tensors are."""
        # A spec is a record that the model keeps alive, and mostly shared by all slots of a kind.
        key = tuple([(slot.name, id(slot.spec)) for slot in module.slots])
        words = self._known.get(key)
        if words is None:
            words = self._known[key] = "".join(map(_words, module.slots))
        return words


def _words(slot: Slot) -> str:
    shape = shape_text(slot.spec).replace("×", "x")
    return f"\n{slot.name} {shape} {slot.spec.dtype} {slot.spec.device}"


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

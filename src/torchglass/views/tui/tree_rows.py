"""Which modules have a row in the tree, and in which order.

>>> rows = visible(outline.order, folds=frozenset({model.root.id}))

Folds are a set of module ids: an id in it shows its children. A key that folds turns one set into
the next, so that nothing here knows of a screen. A closed fold keeps what was open below it, and
shows it again when it is opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from torchglass.records.model import Model, Module, ModuleId

if TYPE_CHECKING:
    from torchglass.views.tui.explorer_state import ExplorerState

Folds = frozenset[ModuleId]
Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
"""A boolean for each module."""


@dataclass(frozen=True, slots=True)
class ModuleOrder:
    """The modules from top to bottom with all folds open, and where each branch ends."""

    ids: Ids
    ends: Ids
    """By module: the place in `ids` after the last one of its branch."""
    places: Ids
    """By module: its place in `ids`."""


def visible(
    order: ModuleOrder, folds: Folds, keep: Mask | None = None, opened: Mask | None = None
) -> Ids:
    """The modules that have a row, from top to bottom; with `keep`, only those in it.

    Modules in `opened` are open like the folds.
    """
    is_closed = order.ends > order.places + 1
    is_closed[np.fromiter(folds, np.int64, len(folds))] = False
    if opened is not None:
        is_closed &= ~opened
    closed = np.flatnonzero(is_closed)
    # A closed module hides the places from the next one to the end of its branch.
    changes = -np.bincount(order.ends[closed], minlength=len(order.ids) + 1)
    changes[order.places[closed] + 1] += 1
    hidden = np.cumsum(changes[:-1]) > 0
    if keep is not None:
        hidden |= ~keep[order.ids]
    return order.ids[~hidden]


class Outline:
    """The shape of a model's tree, computed once."""

    def __init__(self, model: Model) -> None:
        self.model = model

    @cached_property
    def depths(self) -> list[int]:
        depths = [0] * len(self.model.modules)
        for module in self.model.modules:
            below = depths[module.id] + 1
            for child in module.children:
                depths[child] = below
        return depths

    @cached_property
    def sizes(self) -> Ids:
        sizes = [1] * len(self.model.modules)
        for module in reversed(self.model.modules):
            if module.parent is not None:
                sizes[module.parent] += sizes[module.id]
        return np.array(sizes, np.int64)

    @cached_property
    def order(self) -> ModuleOrder:
        ids = np.arange(len(self.model.modules), dtype=np.int64)
        return ModuleOrder(ids=ids, ends=ids + self.sizes, places=ids)

    def ordered(self, keys: Sequence[float]) -> ModuleOrder:
        """The order in which siblings with the smallest keys come first."""
        ids = np.empty(len(self.model.modules), np.int64)
        waiting = [self.model.root.id]
        place = 0
        while waiting:
            top = waiting.pop()
            ids[place] = top
            place += 1
            children = sorted(self.model[top].children, key=keys.__getitem__)
            waiting.extend(reversed(children))
        places = np.empty_like(ids)
        places[ids] = np.arange(len(ids))
        return ModuleOrder(ids=ids, ends=places + self.sizes, places=places)

    @cached_property
    def foldable(self) -> Folds:
        return frozenset(module.id for module in self.model.modules if module.children)

    @cached_property
    def classless(self) -> frozenset[str]:
        """Placeholders for unknown classes, as in a checkpoint."""
        return frozenset(name for name in self.by_class if "." not in name)

    @cached_property
    def by_class(self) -> dict[str, list[ModuleId]]:
        classes: dict[str, list[ModuleId]] = {}
        for module in self.model.modules:
            classes.setdefault(module.class_name, []).append(module.id)
        return classes

    def ancestors(self, id: ModuleId) -> Iterator[ModuleId]:
        above = self.model[id].parent
        while above is not None:
            yield above
            above = self.model[above].parent

    def above(self, ids: Ids) -> Mask:
        """The modules above any of these."""
        counts = np.zeros(len(self.model.modules) + 1, np.int64)
        counts[ids + 1] = 1
        np.cumsum(counts, out=counts)
        # The ids of a branch are consecutive, because modules are numbered along the tree.
        own = np.arange(len(self.model.modules))
        inside: Mask = counts[own + self.sizes] > counts[own + 1]
        return inside

    def branches(self, tops: Iterable[ModuleId]) -> Mask:
        """All modules in the branches of `tops`, including `tops`."""
        first = np.array(list(tops), np.int64)
        changes = np.zeros(len(self.model.modules) + 1, np.int64)
        np.add.at(changes, first, 1)
        np.subtract.at(changes, first + self.sizes[first], 1)
        return np.cumsum(changes[:-1]) > 0

    def below(self, tops: Iterable[ModuleId]) -> Folds:
        """All foldable modules in the branches of `tops`, including `tops`."""
        found: set[ModuleId] = set()
        waiting = list(tops)
        while waiting:
            top = waiting.pop()
            # One that was found before is below another of `tops`: its branch is done.
            if top in self.foldable and top not in found:
                found.add(top)
                waiting.extend(self.model[top].children)
        return frozenset(found)

    def first_folds(self, room: int, most: int | None = None) -> Folds:
        """The folds to open first: whole levels, as many as fit in `room` rows.

        With `most`, exactly that many levels.
        """
        folds: set[ModuleId] = set()
        shown = 1
        level: list[Module] = [self.model.root]
        depth = 0
        while level and depth != most:
            below = [child for module in level for child in self.model.children(module)]
            shown += len(below)
            if most is None and folds and shown > room:
                break
            folds.update(module.id for module in level if module.children)
            level = below
            depth += 1
        return frozenset(folds)


def toggle(outline: Outline, folds: Folds, id: ModuleId, reach: str) -> Folds:
    """Fold modules if the given one is open, else unfold them.

    `reach` says which: "one", its "branch", its "siblings" or all of its "class", which "sibling
    branches" and "class branches" fold with everything below them, or "all".
    """
    model = outline.model
    if reach == "all":
        root = frozenset({model.root.id})
        return outline.foldable if folds <= root else root & outline.foldable
    module, tops = model[id], [id]
    if reach.startswith("sibling") and module.parent is not None:
        tops += model[module.parent].children
    elif reach.startswith("class"):
        tops += outline.by_class[module.class_name]
    ids = outline.below(tops) if "branch" in reach else outline.foldable.intersection(tops)
    lead = next((one for one in tops if one in outline.foldable), None)
    if lead in folds:
        return folds - ids
    return reveal(outline, folds | ids, tops) if reach.startswith("class") else folds | ids


def reveal(outline: Outline, folds: Folds, ids: Iterable[ModuleId]) -> Folds:
    """Unfold everything above some modules, so that they have rows."""
    opened: set[ModuleId] = set()
    for hidden in ids:
        for above in outline.ancestors(hidden):
            if above in opened:
                break
            opened.add(above)
    return folds | opened


def shared_places(model: Model, module: Module) -> list[ModuleId]:
    """All places of a shared module or of its tied tensors; [] if there is only one."""
    own = module.id if module.alias_of is None else module.alias_of
    found = {one.id for one in model.modules if own in (one.id, one.alias_of)}
    for slot in module.slots:
        for place in model.tied.get(slot.tensor, ()):
            other = model.find(place.rpartition(".")[0])
            if other is not None:
                found.add(other.id)
    return sorted(found) if len(found) > 1 else []


def next_shared_place(model: Model, module: Module) -> Module | None:
    """The next place, wrapping around; None if there is no other."""
    places = shared_places(model, module)
    if not places:
        return None
    return model[places[(places.index(module.id) + 1) % len(places)]]


class TreeRows:
    """The rows of the tree: folds, filter, order and grouped repeats."""

    def __init__(self, state: ExplorerState) -> None:
        self.state = state
        self._folds: Folds = frozenset()
        self.repeats_folded = False
        self.order: ModuleOrder = state.outline.order
        self.filter: Mask | None = None
        self._opened: Mask | None = None
        """What a filter opened in addition to the folds."""
        self.rows: Ids = state.outline.order.ids[:1]

    @property
    def folds(self) -> Folds:
        # Not earlier: building a set of a large model's ids takes longer than the rest of a search.
        if self._opened is not None:
            self._folds |= frozenset(np.flatnonzero(self._opened).tolist())
            self._opened = None
        return self._folds

    def is_open(self, id: ModuleId) -> bool:
        return id in self._folds or (self._opened is not None and bool(self._opened[id]))

    def __len__(self) -> int:
        return len(self.rows)

    def module(self, place: int) -> Module:
        return self.state.model[ModuleId(int(self.rows[place]))]

    def row(self, module: Module) -> Sequence[Module]:
        """The modules of a row."""
        if not self.repeats_folded:
            return (module,)
        members = self.state.repeats.get(module.id, (module.id,))
        return [self.state.model[member] for member in members]

    def place_of(self, id: ModuleId) -> int:
        """The row of a module, or of the nearest module above it that has one."""
        for candidate in (id, *self.state.outline.ancestors(id)):
            found = np.flatnonzero(self.rows == candidate)
            if len(found):
                return int(found[0])
        return 0

    def fold(self, folds: Folds) -> None:
        self._folds, self._opened = folds, None
        self._lay_out()

    def show(self, id: ModuleId) -> None:
        """Unfold everything above a module, and drop what else hides it."""
        outline = self.state.outline
        if self.repeats_folded and self._repeated()[id]:
            self.repeats_folded = False
        if self.filter is not None and not self.filter[id]:
            self.filter = None
        self.fold(reveal(outline, self.folds, [id]))

    def arrange(self, folds: Folds, matches: Ids | None = None) -> None:
        """Open these folds; with matches, show only them and the modules above them."""
        outline = self.state.outline
        self._folds, self.filter, self._opened = folds, None, None
        if matches is not None:
            self._opened = outline.above(matches)
            self.filter = self._opened.copy()
            self.filter[matches] = True
        self._lay_out()

    def fold_repeats(self, folded: bool) -> None:
        self.repeats_folded = folded
        self._lay_out()

    def sort(self, ranks: Sequence[float] | None) -> None:
        """Order siblings by these keys; None for model order."""
        outline = self.state.outline
        self.order = outline.order if ranks is None else outline.ordered(ranks)
        self._lay_out()

    def _lay_out(self) -> None:
        keep = self.filter
        if self.repeats_folded:
            alone = ~self._repeated()
            keep = alone if keep is None else keep & alone
        self.rows = visible(self.order, self._folds, keep, self._opened)

    def _repeated(self) -> Mask:
        """The modules that are grouped with another one, and all below them."""
        runs = self.state.repeats.values()
        return self.state.outline.branches(one for run in runs for one in run[1:])

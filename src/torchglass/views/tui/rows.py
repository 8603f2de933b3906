"""Which modules have a row in the tree, given the folds that are open.

    >>> rows = visible(model, folds=frozenset({model.root.id}))

Folds are a set of module ids: an id in it shows its children. Each key that folds is a function
from one set to the next, so that nothing here knows of a screen. A closed fold keeps what was open
below it, and shows it again when it is opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

from torchglass.records.model import Model, Module, ModuleId

Folds = frozenset[ModuleId]


def visible(model: Model, folds: Folds) -> list[ModuleId]:
    """The modules that have a row, from top to bottom."""
    rows: list[ModuleId] = []
    waiting = [model.root.id]
    while waiting:
        module = model[waiting.pop()]
        rows.append(module.id)
        if module.id in folds:
            children = module.children
            if folds.isdisjoint(children):
                rows.extend(children)
            else:
                waiting.extend(reversed(children))
    return rows


class Outline:
    """The shape of a model's tree, worked out once."""

    def __init__(self, model: Model) -> None:
        self.model = model

    @cached_property
    def depths(self) -> list[int]:
        """How far each module is below the root."""
        depths = [0] * len(self.model.modules)
        for module in self.model.modules:
            below = depths[module.id] + 1
            for child in module.children:
                depths[child] = below
        return depths

    @cached_property
    def foldable(self) -> Folds:
        """The modules that have something below them."""
        return frozenset(module.id for module in self.model.modules if module.children)

    @cached_property
    def by_class(self) -> dict[str, list[ModuleId]]:
        """The modules of each class."""
        classes: dict[str, list[ModuleId]] = {}
        for module in self.model.modules:
            classes.setdefault(module.class_name, []).append(module.id)
        return classes

    def ancestors(self, id: ModuleId) -> Iterator[ModuleId]:
        """The modules above one, nearest first."""
        above = self.model[id].parent
        while above is not None:
            yield above
            above = self.model[above].parent

    def below(self, tops: Iterable[ModuleId]) -> Folds:
        """All foldable modules in the branches of `tops`, themselves included."""
        found: set[ModuleId] = set()
        waiting = list(tops)
        while waiting:
            top = waiting.pop()
            # One found before stands below another of the tops: its branch is done already.
            if top in self.foldable and top not in found:
                found.add(top)
                waiting.extend(self.model[top].children)
        return frozenset(found)

    def first_folds(self, room: int) -> Folds:
        """What to open at the start: whole levels, as many as `room` rows can show."""
        folds: set[ModuleId] = set()
        shown = 1
        level: list[Module] = [self.model.root]
        while level:
            below = [child for module in level for child in self.model.children(module)]
            shown += len(below)
            if folds and shown > room:
                break
            folds.update(module.id for module in level if module.children)
            level = below
        return frozenset(folds)


def toggle(outline: Outline, folds: Folds, id: ModuleId) -> Folds:
    """Fold or unfold one module (space)."""
    return folds ^ ({id} & outline.foldable)


def toggle_branch(outline: Outline, folds: Folds, id: ModuleId) -> Folds:
    """Fold or unfold a module and all below it (z)."""
    branch = outline.below([id])
    return folds - branch if id in folds else folds | branch


def toggle_all(outline: Outline, folds: Folds, id: ModuleId) -> Folds:
    """Fold all but the root if anything below it is open, else unfold everything (Z)."""
    root = frozenset({outline.model.root.id})
    return outline.foldable if folds <= root else root & outline.foldable


def toggle_siblings(outline: Outline, folds: Folds, id: ModuleId) -> Folds:
    """Fold or unfold the module and those beside it (s)."""
    siblings = _siblings(outline, id)
    return _turn(outline, folds, outline.foldable.intersection(siblings), [id, *siblings])


def toggle_sibling_branches(outline: Outline, folds: Folds, id: ModuleId) -> Folds:
    """Fold or unfold the module, those beside it and all below them (S)."""
    siblings = _siblings(outline, id)
    return _turn(outline, folds, outline.below(siblings), [id, *siblings])


def toggle_class(outline: Outline, folds: Folds, id: ModuleId) -> Folds:
    """Fold all modules of the same class, or unfold them and show where they are (o)."""
    peers = _peers(outline, id)
    return _turn_class(outline, folds, outline.foldable.intersection(peers), [id, *peers])


def toggle_class_branches(outline: Outline, folds: Folds, id: ModuleId) -> Folds:
    """The same with all that is below those modules (O)."""
    peers = _peers(outline, id)
    return _turn_class(outline, folds, outline.below(peers), [id, *peers])


def reveal(outline: Outline, folds: Folds, ids: Iterable[ModuleId]) -> Folds:
    """Open what is above some modules, so that they have rows."""
    opened: set[ModuleId] = set()
    for hidden in ids:
        for above in outline.ancestors(hidden):
            if above in opened:
                break
            opened.add(above)
    return folds | opened


def nearest_shown(outline: Outline, folds: Folds, id: ModuleId) -> ModuleId:
    """The module itself if it has a row, else the lowest of those above it that has one."""
    shown = id
    for above in outline.ancestors(id):
        if above not in folds:
            shown = above
    return shown


def _turn(outline: Outline, folds: Folds, ids: Folds, leads: list[ModuleId]) -> Folds:
    """Close `ids` if the first of `leads` that can be folded is open, else open them."""
    lead = next((one for one in leads if one in outline.foldable), None)
    return folds - ids if lead in folds else folds | ids


def _turn_class(outline: Outline, folds: Folds, ids: Folds, peers: list[ModuleId]) -> Folds:
    turned = _turn(outline, folds, ids, peers)
    return turned if turned < folds else reveal(outline, turned, peers)


def _siblings(outline: Outline, id: ModuleId) -> tuple[ModuleId, ...]:
    parent = outline.model[id].parent
    return (id,) if parent is None else outline.model[parent].children


def _peers(outline: Outline, id: ModuleId) -> list[ModuleId]:
    return outline.by_class[outline.model[id].class_name]

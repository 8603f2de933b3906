"""The differences between two models, module by module.

Modules are matched by their paths, or as `module_pairs` says; tensors by their names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from torchglass.analyse.module_pairs import pair_modules
from torchglass.records.comparison import BothHistograms
from torchglass.records.model import Model, Module, ModuleId, TensorId, TensorSpec, join_path

Verdict = Literal["added", "removed", "changed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotChange:
    """A tensor of a module that differs between the models."""

    name: str
    before: TensorSpec | None = None
    """None if only the new model has it."""
    after: TensorSpec | None = None
    """None if only the old model has it."""
    distance: float | None = None
    """The distance of the values relative to the old ones; None if shapes differ, or if it was
    not computed."""
    histograms: BothHistograms | None = None
    """Of the old and the new values, if they were compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleChange:
    """The change of a module."""

    path: str
    verdict: Verdict
    class_before: str = ""
    """The old class, if it changed."""
    extra_before: str | None = None
    """The old `extra_repr`, if it changed."""
    path_before: str | None = None
    """The old path, if the module was renamed or moved itself, not with its parent."""
    sharing: str = ""
    """How the tensors that it shares with other modules changed."""
    slots: tuple[SlotChange, ...] = ()

    @property
    def distance(self) -> float | None:
        """The largest distance of its tensors."""
        return max((one.distance for one in self.slots if one.distance is not None), default=None)

    @property
    def has_only_values(self) -> bool:
        """Whether the module itself is the same, and only the values of its tensors changed."""
        own = self.class_before or self.path_before is not None or self.sharing
        same = self.verdict == "changed" and not own and self.extra_before is None
        return same and all(one.distance is not None for one in self.slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModulePair:
    """A row of two trees side by side: one module of both models, or one that only one has."""

    depth: int
    before: Module | None
    after: Module | None
    change: ModuleChange | None = None
    """None if nothing of the module itself changed."""


@dataclass(frozen=True, kw_only=True)
class ModelDiff:
    """Both models in one tree, and their differences."""

    before: Model
    """The old model."""
    after: Model
    """The new model."""
    model: Model
    """The modules of the new model, and at their paths those that only the old one has."""
    changes: Mapping[str, ModuleChange] = field(default_factory=dict)
    """By path, without unchanged modules."""
    pairs: Mapping[str, str] = field(default_factory=dict)
    """The old path of each module of the new model that the old one has, too."""
    removed: tuple[Module, ...] = ()
    """The modules that only the old model has."""

    @cached_property
    def below(self) -> Mapping[str, int]:
        """The number of changed modules below each module, if any."""
        counts: dict[ModuleId, int] = {}
        for module in reversed(self.model.modules):
            inside = counts.get(module.id, 0) + (module.path in self.changes)
            if module.parent is not None and inside:
                counts[module.parent] = counts.get(module.parent, 0) + inside
        return {self.model[top].path: count for top, count in counts.items()}

    @cached_property
    def changed_paths(self) -> tuple[str, ...]:
        """The paths of `changes` in the order of the tree, to go from one to the next."""
        return tuple(one.path for one in self.model.modules if one.path in self.changes)

    @cached_property
    def side_by_side(self) -> tuple[ModulePair, ...]:
        """Both trees row by row, in the order of the new one.

        A module that only the old model has comes after its old neighbor; one that moved is at its
        new place on both sides.
        """
        rows: list[ModulePair] = []
        waiting = [ModulePair(depth=0, before=self.before.root, after=self.after.root)]
        while waiting:
            row = waiting.pop()
            rows.append(replace(row, change=self._change_of(row)))
            waiting += reversed(list(self._rows_below(row)))
        return tuple(rows)

    def _change_of(self, row: ModulePair) -> ModuleChange | None:
        if row.after is not None:
            return self.changes.get(row.after.path)
        old = row.before
        return None if old is None else _change(old.path, old, None, {}, {}, {}, {})

    def _rows_below(self, row: ModulePair) -> Iterator[ModulePair]:
        """The children of a row; a removed one follows the child that was in front of it."""
        old = list(self.before.children(row.before)) if row.before else []
        new = list(self.after.children(row.after)) if row.after else []
        removed_after: dict[str, list[Module]] = {}
        kept = {self.pairs[child.path] for child in new if child.path in self.pairs}
        neighbor = ""
        for child in old:
            if child.path in kept:
                neighbor = child.path
            elif child.path in self._removed_paths:
                removed_after.setdefault(neighbor, []).append(child)
        depth = row.depth + 1
        for child in removed_after.get("", ()):
            yield ModulePair(depth=depth, before=child, after=None)
        for child in new:
            path = self.pairs.get(child.path)
            before = None if path is None else self.before.find(path)
            yield ModulePair(depth=depth, before=before, after=child)
            for gone in removed_after.get(path, ()) if path else ():
                yield ModulePair(depth=depth, before=gone, after=None)

    @cached_property
    def _removed_paths(self) -> frozenset[str]:
        return frozenset(one.path for one in self.removed)


def compare(
    before: Model,
    after: Model,
    distances: Mapping[str, float] | None = None,
    pairs: Mapping[str, str] | None = None,
    histograms: Mapping[str, BothHistograms] | None = None,
) -> ModelDiff:
    """The differences between two models.

    `distances` are the relative distances between tensors, by dotted name in the new model: the
    norm of the difference divided by that of the old tensor. Without it, values are not compared.
    `pairs` are the old paths of modules by their new ones; without it, they are looked for.
    `histograms` are those of the values that changed, by dotted name in the new model.
    """
    if pairs is None:
        pairs = pair_modules(before, after)
    both = {
        module.path: (before.find(pairs[module.path]) if module.path in pairs else None, module)
        for module in after.modules
    }
    kept = {*pairs.values()}
    removed = [module for module in before.modules if module.path not in kept]
    ties = _sharing_changes(before, after, pairs)
    changes = {
        path: change
        # A path of the old model may be that of another module in the new one.
        for path, (old, new) in ({one.path: (one, None) for one in removed} | both).items()
        if (change := _change(path, old, new, distances or {}, histograms or {}, pairs, ties))
    }
    gone = frozenset(module.path for module in removed)
    return ModelDiff(
        before=before,
        after=after,
        model=_joined(before, after, gone),
        changes=changes,
        pairs=pairs,
        removed=tuple(removed),
    )


def _change(
    path: str,
    before: Module | None,
    after: Module | None,
    distances: Mapping[str, float],
    histograms: Mapping[str, BothHistograms],
    pairs: Mapping[str, str],
    ties: Mapping[str, str],
) -> ModuleChange | None:
    slots = tuple(_slot_changes(path, before, after, distances, histograms))
    if before is None or after is None:
        verdict: Verdict = "added" if before is None else "removed"
        return ModuleChange(path=path, verdict=verdict, slots=slots)
    change = ModuleChange(
        path=path,
        verdict="changed",
        class_before=before.class_name if _has_other_class(before, after) else "",
        extra_before=before.extra if _has_other_arguments(before, after) else None,
        path_before=_moved_from(before.path, path, pairs),
        sharing=ties.get(path, ""),
        slots=slots,
    )
    return None if change == ModuleChange(path=path, verdict="changed") else change


_UNKNOWN_CLASSES = frozenset({"checkpoint", "group"})
"""What modules of a checkpoint are called: it has no classes, and no arguments."""


def _has_other_class(before: Module, after: Module) -> bool:
    names = {before.class_name, after.class_name}
    return len(names) > 1 and not names & _UNKNOWN_CLASSES


def _has_other_arguments(before: Module, after: Module) -> bool:
    is_known = all(one.class_name not in _UNKNOWN_CLASSES and one.extra for one in (before, after))
    # A module without arguments is of another class, or its arguments were not saved.
    return is_known and before.extra != after.extra


def _moved_from(old: str, new: str, pairs: Mapping[str, str]) -> str | None:
    """The old path of a module; None if only its parent has another one."""
    if old == new:
        return None
    old_parent, _, old_name = old.rpartition(".")
    new_parent, _, new_name = new.rpartition(".")
    is_with_parent = pairs.get(new_parent) == old_parent and old_name == new_name
    return None if is_with_parent else old


def _sharing_changes(before: Model, after: Model, pairs: Mapping[str, str]) -> dict[str, str]:
    """By new path, how the sharing of a module or of its tensors changed."""
    found: dict[str, str] = {}
    old_ties, new_ties = _partners(before), _partners(after)
    for path, old_path in pairs.items():
        old, new = before.find(old_path), after.find(path)
        if old is None or new is None:
            continue
        if (old.alias_of is None) != (new.alias_of is None):
            is_now = new.alias_of is not None
            found[path] = "now the same module as another" if is_now else "no longer shared"
            continue
        names = {slot.name for slot in old.slots} & {slot.name for slot in new.slots}
        for name in sorted(names):
            one = old_ties.get(join_path(old_path, name), ())
            other = new_ties.get(join_path(path, name), ())
            if bool(one) != bool(other):
                found[path] = (
                    f"{name} is now shared with {other[0]}"
                    if other
                    else f"{name} is no longer shared with {one[0]}"
                )
    return found


def _partners(model: Model) -> dict[str, tuple[str, ...]]:
    """The other names of each tensor that has several."""
    return {
        name: tuple(other for other in names if other != name)
        for names in model.tied.values()
        for name in names
    }


def _slot_changes(
    path: str,
    before: Module | None,
    after: Module | None,
    distances: Mapping[str, float],
    histograms: Mapping[str, BothHistograms],
) -> Iterator[SlotChange]:
    old = {slot.name: slot.spec for slot in before.slots} if before else {}
    new = {slot.name: slot.spec for slot in after.slots} if after else {}
    for name in dict.fromkeys([*new, *old]):
        one, other = old.get(name), new.get(name)
        full = join_path(path, name)
        distance = distances.get(full) if one and other else None
        if _kind(one) != _kind(other) or distance:
            yield SlotChange(
                name=name,
                before=one,
                after=other,
                distance=distance or None,
                histograms=histograms.get(full),
            )


def _kind(spec: TensorSpec | None) -> object:
    """What must be equal in both models: not the device."""
    return None if spec is None else (spec.shape, spec.dtype, spec.layout)


def _joined(before: Model, after: Model, gone: frozenset[str]) -> Model:
    """The new model; modules that only the old one has come after the children of their parent."""
    joined: list[Module] = []
    ids: dict[str, ModuleId] = {}
    waiting: list[tuple[Module, ModuleId | None, bool]] = [(after.root, None, True)]
    while waiting:
        module, parent, is_new = waiting.pop()
        own = ids[module.path] = ModuleId(len(joined))
        joined.append(replace(module, id=own, parent=parent, children=()))
        waiting += reversed(
            [(child, own, new) for child, new in _below(module, is_new, before, after, gone)]
        )
    return replace(after, modules=tuple(_linked(joined, before, after, ids)))


def _below(
    module: Module, is_new: bool, before: Model, after: Model, gone: frozenset[str]
) -> Iterator[tuple[Module, bool]]:
    if not is_new:
        yield from ((child, False) for child in before.children(module) if child.path in gone)
        return
    yield from ((child, True) for child in after.children(module))
    old = before.find(module.path)
    for child in before.children(old) if old else ():
        if child.path in gone and after.find(child.path) is None:
            yield child, False


def _linked(
    joined: Sequence[Module], before: Model, after: Model, ids: Mapping[str, ModuleId]
) -> Iterator[Module]:
    """The modules with the ids of the merged tree for their children and aliases."""
    children: dict[ModuleId, list[ModuleId]] = {}
    for module in joined:
        if module.parent is not None:
            children.setdefault(module.parent, []).append(module.id)
    shift = 1 + max((slot.tensor for each in after.modules for slot in each.slots), default=-1)
    for module in joined:
        is_new = after.find(module.path) is not None
        home = after if is_new else before
        alias = None if module.alias_of is None else ids.get(home[module.alias_of].path)
        # Tensor ids of the old model must not clash with those of the new one.
        shifted = (replace(slot, tensor=TensorId(slot.tensor + shift)) for slot in module.slots)
        slots = module.slots if is_new else tuple(shifted)
        below = tuple(children.get(module.id, ()))
        yield replace(module, children=below, alias_of=alias, slots=slots)

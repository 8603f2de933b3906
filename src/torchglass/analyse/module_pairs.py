"""Which module of one model is which of another, though it was renamed or moved.

This works as in git: modules with the same path and structure are a pair. Of the others, equal
modules under the same parent were renamed, and elsewhere they were moved. If several are equal,
their values decide, if they can be read, and otherwise their order.
"""

from __future__ import annotations

import math
import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import cast

from torchglass.records.model import Model, Module, ModuleId, join_path

ValueSample = tuple[tuple[int, ...], tuple[float, ...]]
"""The shape of a tensor and some of its values, at places that depend on its size alone."""
ValueKey = Callable[[str], ValueSample | None]
"""The sample of a tensor by its dotted name; None if it cannot be read."""
_ALIKE = 0.5
"""The share of modules that two subtrees must have in common to be one that was edited."""
_MOST_CANDIDATES = 64


def pair_modules(
    before: Model,
    after: Model,
    names: Mapping[str, str] | None = None,
    values: tuple[ValueKey, ValueKey] | None = None,
) -> dict[str, str]:
    """The old path of each module of the new model that the old one has, too.

    Args:
        before: The old model.
        after: The new model.
        names: Old paths by new ones, of modules that the user has paired.
        values: Keys of the values of old and new tensors.
    """
    return _Pairing(before, after, names or {}, values).run()


class _Side:
    """One of both models, with what its modules look like."""

    def __init__(self, model: Model, value_key: ValueKey | None) -> None:
        self.model = model
        self._value_key = value_key

    @cached_property
    def looks(self) -> list[int]:
        """For each module a number that is equal for subtrees that look the same inside."""
        return self._hashed(lambda module: (module.class_name, module.extra, _slots(module)), True)

    @cached_property
    def shapes(self) -> list[int]:
        """The same without the names and the arguments inside."""
        return self._hashed(lambda module: (module.kind, _slots(module)), False)

    def _hashed(self, own: Callable[[Module], Hashable], named: bool) -> list[int]:
        found = [0] * len(self.model.modules)
        for module in reversed(self.model.modules):
            below = tuple(
                (self.model[child].name if named else "", found[child]) for child in module.children
            )
            found[module.id] = hash((own(module), below, module.alias_of is not None))
        return found

    @cached_property
    def sizes(self) -> list[int]:
        """The number of modules in each subtree."""
        found = [1] * len(self.model.modules)
        for module in reversed(self.model.modules):
            if module.parent is not None:
                found[module.parent] += found[module.id]
        return found

    def inside(self, module: Module) -> Iterator[Module]:
        """A module and all below it."""
        waiting = [module]
        while waiting:
            one = waiting.pop()
            yield one
            waiting += self.model.children(one)

    def values(self, module: Module) -> Hashable:
        """The values of all tensors of a subtree; None without any."""
        if self._value_key is None:
            return None
        keys = [
            self._value_key(join_path(one.path, slot.name))
            for one in self.inside(module)
            for slot in one.slots
        ]
        return tuple(keys) if keys and None not in keys else None

    def samples(self, module: Module) -> list[float] | None:
        """Some values of all tensors of a subtree; None without any."""
        keys = self.values(module)
        if keys is None:
            return None
        return [value for key in cast("Sequence[ValueSample]", keys) for value in key[1]]

    def words(self, module: Module) -> Counter[Hashable]:
        """What a subtree consists of, to tell how much two have in common."""
        return Counter((one.kind, _slots(one)) for one in self.inside(module))


class _Pairing:
    def __init__(
        self,
        before: Model,
        after: Model,
        names: Mapping[str, str],
        values: tuple[ValueKey, ValueKey] | None,
    ) -> None:
        self.old = _Side(before, values[0] if values else None)
        self.new = _Side(after, values[1] if values else None)
        self.names = names
        self.pairs: dict[ModuleId, ModuleId] = {}
        """New modules to old ones."""
        self.taken: set[ModuleId] = set()

    def run(self) -> dict[str, str]:
        for new_path, old_path in self.names.items():
            new, old = self.new.model.find(new_path), self.old.model.find(old_path)
            if new is not None and old is not None:
                self._take(old, new)
        self._pair_tree(self.old.model.root, self.new.model.root)
        self._pair_rest()
        return {
            self.new.model[new].path: self.old.model[old].path for new, old in self.pairs.items()
        }

    def _take(self, old: Module, new: Module) -> None:
        self.pairs[new.id] = old.id
        self.taken.add(old.id)

    def _is_free(self, old: Module, new: Module) -> bool:
        return old.id not in self.taken and new.id not in self.pairs

    def _pair_tree(self, old: Module, new: Module) -> None:
        """Pair two modules, and what is below them as far as it is known."""
        waiting = [(old, new)]
        while waiting:
            old, new = waiting.pop()
            if self._is_free(old, new):
                self._take(old, new)
            waiting += self._pair_children(
                list(self.old.model.children(old)), list(self.new.model.children(new))
            )

    def _pair_children(
        self, old: Sequence[Module], new: Sequence[Module]
    ) -> list[tuple[Module, Module]]:
        """Pair the children of two modules, by one rule after the other; returns the pairs."""
        has_other_names = [one.name for one in old] != [one.name for one in new]
        rules: list[Callable[[list[Module], list[Module]], Iterable[tuple[Module, Module]]]] = [
            *([self._by_values] if has_other_names else []),
            partial(self._by_name, self._looks),
            partial(self._by_name, self._kinds),
            partial(self._in_order, "looks"),
            partial(self._in_order, "shapes"),
            partial(self._by_name, self._is_edited),
            self._most_alike,
        ]
        found: list[tuple[Module, Module]] = []
        for rule in rules:
            left = [one for one in old if one.id not in self.taken]
            right = [one for one in new if one.id not in self.pairs]
            if not left or not right:
                break
            for one, other in list(rule(left, right)):
                self._take(one, other)
                found.append((one, other))
        return found

    def _by_name(
        self,
        same: Callable[[Module, Module], bool],
        old: Iterable[Module],
        new: Iterable[Module],
    ) -> Iterator[tuple[Module, Module]]:
        names = {one.name: one for one in old}
        for other in new:
            one = names.get(other.name)
            if one is not None and same(one, other):
                yield one, other

    def _is_edited(self, old: Module, new: Module) -> bool:
        is_leaf = not old.children and not new.children
        return is_leaf or self._share(old, new) >= _ALIKE

    def _looks(self, old: Module, new: Module) -> bool:
        return self.old.looks[old.id] == self.new.looks[new.id]

    def _kinds(self, old: Module, new: Module) -> bool:
        if old.class_name != new.class_name:
            return False
        return bool(old.children or new.children) or _slots(old) == _slots(new)

    def _in_order(
        self, looks: str, old: Iterable[Module], new: Iterable[Module]
    ) -> Iterator[tuple[Module, Module]]:
        """Modules that look the same, paired in order."""
        alike: defaultdict[int, list[Module]] = defaultdict(list)
        for one in old:
            alike[getattr(self.old, looks)[one.id]].append(one)
        for other in new:
            candidates = alike.get(getattr(self.new, looks)[other.id])
            if candidates:
                yield candidates.pop(0), other

    def _by_values(
        self, old: Sequence[Module], new: Sequence[Module]
    ) -> Iterator[tuple[Module, Module]]:
        """Those with the same values, where several look alike."""
        looks = Counter(self.new.looks[one.id] for one in new)
        looks.update(self.old.looks[one.id] for one in old)
        several = {look for look, count in looks.items() if count > 2}
        keys: list[dict[Hashable, list[Module]]] = []
        for side, modules in ((self.old, old), (self.new, new)):
            found: dict[Hashable, list[Module]] = {}
            for one in modules:
                if side.looks[one.id] in several and (key := side.values(one)) is not None:
                    found.setdefault(key, []).append(one)
            keys.append(found)
        for key, owners in keys[0].items():
            others = keys[1].get(key, [])
            # Norms that were not trained have the same values: then names tell more.
            if len(owners) == len(others) == 1:
                yield owners[0], others[0]

    def _most_alike(
        self, old: Sequence[Module], new: Sequence[Module]
    ) -> Iterator[tuple[Module, Module]]:
        """Subtrees that were both edited and renamed, the most similar first."""
        if not old or not new or len(old) * len(new) > _MOST_CANDIDATES**2:
            return
        shares = sorted(
            (
                (self._share(one, other), -abs(at - to), one.id, other.id)
                for at, one in enumerate(old)
                for to, other in enumerate(new)
                if bool(one.children) == bool(other.children)
            ),
            reverse=True,
        )
        used: set[tuple[str, int]] = set()
        for share, _, one_id, other_id in shares:
            if share < _ALIKE or ("old", one_id) in used or ("new", other_id) in used:
                continue
            used |= {("old", one_id), ("new", other_id)}
            yield self.old.model[one_id], self.new.model[other_id]

    def _share(self, old: Module, new: Module) -> float:
        one, other = self.old.words(old), self.new.words(new)
        return 2 * (one & other).total() / max(one.total() + other.total(), 1)

    def _pair_rest(self) -> None:
        """What was moved to another parent, the largest subtrees first."""
        for looks in ("looks", "shapes"):
            old = [one for one in self.old.model.modules if one.id not in self.taken]
            new = [one for one in self.new.model.modules if one.id not in self.pairs]
            new.sort(key=lambda one: -self.new.sizes[one.id])
            alike: defaultdict[int, list[Module]] = defaultdict(list)
            for one in old:
                alike[getattr(self.old, looks)[one.id]].append(one)
            for other in new:
                candidates = alike.get(getattr(self.new, looks)[other.id], [])
                free = [one for one in candidates if self._is_free(one, other)]
                if free and self._tells(free, other):
                    self._pair_tree(self._best(free, other), other)

    def _tells(self, candidates: Sequence[Module], new: Module) -> bool:
        """Whether a module without tensors and children is more than one of many activations."""
        is_plain = not new.slots and not new.children
        return not is_plain or any(one.name == new.name for one in candidates)

    def _best(self, candidates: Sequence[Module], new: Module) -> Module:
        if len(candidates) == 1:
            return candidates[0]
        named = sorted(candidates, key=lambda one: one.name != new.name)
        samples = self.new.samples(new)
        if samples is None:
            return named[0]
        # Weights that were trained further are still nearest to what they were.
        likeness = {one.id: _cosine(self.old.samples(one), samples) for one in named}
        return max(named, key=lambda one: round(likeness[one.id], 3))


def _cosine(one: Sequence[float] | None, other: Sequence[float]) -> float:
    if one is None or len(one) != len(other):
        return -1.0
    sizes = math.hypot(*one) * math.hypot(*other)
    return sum(map(operator.mul, one, other)) / sizes if sizes else 0.0


def _slots(module: Module) -> tuple[Hashable, ...]:
    return tuple((slot.name, slot.spec.shape) for slot in module.slots)

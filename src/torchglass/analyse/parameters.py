"""Parameter counts and sizes, each shared tensor counted once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

from torchglass.records.model import Model, Module, ModuleId, Slot, TensorId


@dataclass(frozen=True, slots=True)
class Counts:
    """Elements and bytes of a set of tensors."""

    parameters: int = 0
    trainable: int = 0
    """The parameters that have gradients."""
    buffers: int = 0
    parameter_bytes: int = 0
    trainable_bytes: int = 0
    buffer_bytes: int = 0

    @property
    def frozen(self) -> int:
        """Parameters that have no gradients, including packed weights of quantized modules."""
        return self.parameters - self.trainable

    @property
    def bytes(self) -> int:
        """Parameters and buffers together."""
        return self.parameter_bytes + self.buffer_bytes

    # Field by field: a large model adds many, and a loop over the fields takes 1.6 times as long.
    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.parameters + other.parameters,
            self.trainable + other.trainable,
            self.buffers + other.buffers,
            self.parameter_bytes + other.parameter_bytes,
            self.trainable_bytes + other.trainable_bytes,
            self.buffer_bytes + other.buffer_bytes,
        )

    def __sub__(self, other: Counts) -> Counts:
        return Counts(
            self.parameters - other.parameters,
            self.trainable - other.trainable,
            self.buffers - other.buffers,
            self.parameter_bytes - other.parameter_bytes,
            self.trainable_bytes - other.trainable_bytes,
            self.buffer_bytes - other.buffer_bytes,
        )


COUNT_FIELDS = tuple(field.name for field in fields(Counts))
NOTHING = Counts()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCounts:
    """The tensors of one module, counted."""

    own: Counts
    """Its own tensors, without those of the modules below it."""
    total: Counts
    """All that can be reached from it, each tensor once."""
    per_use: Counts
    """The same with every use counted, so aliases and tied slots count again."""


def count(model: Model) -> tuple[ModuleCounts, ...]:
    """The counts of each module, in the order of `model.modules`.

    An alias has the counts of its module. A module that contains itself reaches everything that its
    outer occurrence reaches, and its inner occurrence is not another use.
    """
    sizes = _Sizes()
    if _shares_nothing(model.modules):
        own = [sizes.of(module.slots) for module in model.modules]
        total = per_use = _summed(model.modules, own)
    else:
        own = [sizes.of_own(module) for module in model.modules]
        total = _Distinct(model.modules, sizes).totals(own)
        per_use = _uses(model.modules, sizes)
    rows = _rows(own, total, per_use)
    shown = [module.id if module.alias_of is None else module.alias_of for module in model.modules]
    return tuple([rows[number] for number in shown])


def _rows(*columns: Sequence[Counts]) -> list[ModuleCounts]:
    """Modules with equal counts share one object: large models have many of them."""
    known: dict[tuple[int, int, int], ModuleCounts] = {}
    rows = []
    for own, total, per_use in zip(*columns, strict=True):
        key = (id(own), id(total), id(per_use))
        if key not in known:
            known[key] = ModuleCounts(own=own, total=total, per_use=per_use)
        rows.append(known[key])
    return rows


class _Sizes:
    """The counts of slots; slots of one kind share one object."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Counts] = {(): NOTHING}

    def of(self, slots: Iterable[Slot]) -> Counts:
        """The sum over slots."""
        # The model keeps specs alive, and slots of a kind mostly share one.
        kinds = tuple([(id(slot.spec), slot.role, slot.trainable) for slot in slots])
        counts = self._known.get(kinds)
        if counts is None:
            counts = self._known[kinds] = sum(map(_size, slots), NOTHING)
        return counts

    def of_own(self, module: Module) -> Counts:
        """The sum over a module's own tensors, each counted once."""
        slots = module.slots
        if len(slots) > 1 and len({slot.tensor for slot in slots}) < len(slots):
            slots = tuple({slot.tensor: slot for slot in reversed(slots)}.values())
        return self.of(slots)


def _size(slot: Slot) -> Counts:
    elements, size = slot.spec.elements, slot.spec.bytes
    if slot.role == "buffer":
        return Counts(buffers=elements, buffer_bytes=size)
    if slot.role == "parameter" and slot.trainable:
        return Counts(elements, elements, 0, size, size, 0)
    return Counts(parameters=elements, parameter_bytes=size)


def _shares_nothing(modules: Sequence[Module]) -> bool:
    tensors = [slot.tensor for module in modules for slot in module.slots]
    return len(set(tensors)) == len(tensors) and all(m.alias_of is None for m in modules)


def _summed(modules: Sequence[Module], own: Sequence[Counts]) -> list[Counts]:
    """For each module the sum over itself and all below it."""
    sums = list(own)
    # Identical blocks are summed up once: their parts are the same objects.
    known: dict[tuple[int, ...], Counts] = {}
    for module in reversed(modules):
        if module.children:
            parts = [sums[module.id], *[sums[child] for child in module.children]]
            key = tuple(map(id, parts))
            if key not in known:
                known[key] = sum(parts, NOTHING)
            sums[module.id] = known[key]
    return sums


class _Distinct:
    """Distinct tensors per subtree.

    A tensor at the nodes n1 … nk, in the order of the tree, is added at each of them and taken away
    at the lowest common ancestor of each pair of neighbors: a subtree with some of these
    nodes then sums up to the tensor exactly once.
    """

    def __init__(self, modules: Sequence[Module], sizes: _Sizes) -> None:
        self._modules = modules
        self._sizes = sizes
        self._slots: dict[TensorId, Slot] = {}
        self._last: dict[TensorId, ModuleId] = {}
        self._reach: dict[ModuleId, tuple[TensorId, ...]] = {}

    def totals(self, own: Sequence[Counts]) -> list[Counts]:
        """The counts of everything each module reaches, from the counts of its own tensors."""
        sums = list(own)
        heads = _loop_heads(self._modules)
        for module, line in _with_ancestors(self._modules):
            if module.alias_of is None:
                self._slots.update((slot.tensor, slot) for slot in reversed(module.slots))
                self._place({slot.tensor for slot in module.slots}, line, sums)
            elif heads[module.alias_of] != heads[module.id]:
                tensors = self._reachable(heads[module.alias_of])
                sums[module.id] = self._sizes.of([self._slots[tensor] for tensor in tensors])
                self._place(tensors, line, sums)
        sums = _summed(self._modules, sums)
        return [sums[head] for head in heads]

    def _place(
        self, tensors: Iterable[TensorId], line: Sequence[ModuleId], sums: list[Counts]
    ) -> None:
        for tensor in tensors:
            previous = self._last.get(tensor)
            if previous is not None:
                # Of the nodes from the root down to here, those numbered up to `previous` have it
                # below them too, because the numbers follow the order of the tree.
                common = line[bisect_right(line, previous) - 1]
                sums[common] -= self._sizes.of([self._slots[tensor]])
            self._last[tensor] = line[-1]

    def _reachable(self, top: ModuleId) -> tuple[TensorId, ...]:
        if top not in self._reach:
            tensors: dict[TensorId, None] = {}
            seen, waiting = {top}, [top]
            while waiting:
                module = self._modules[waiting.pop()]
                tensors.update(dict.fromkeys(slot.tensor for slot in module.slots))
                below = [other for other in _below(module) if other not in seen]
                waiting += below
                seen.update(below)
            self._reach[top] = tuple(tensors)
        return self._reach[top]


def _below(module: Module) -> tuple[ModuleId, ...]:
    """The modules that a module leads to: its children, or the module it is an alias of."""
    return module.children if module.alias_of is None else (module.alias_of,)


def _uses(modules: Sequence[Module], sizes: _Sizes) -> list[Counts]:
    """The counts of each subtree if every use of a tensor or a module were a copy."""
    uses: list[Counts | None] = [None] * len(modules)
    for module in _children_first(modules):
        if module.alias_of is None:
            below = (uses[child] or NOTHING for child in module.children)
            uses[module.id] = sum(below, sizes.of(module.slots))
        else:
            # Still None if the alias is inside its own module.
            uses[module.id] = uses[module.alias_of]
    return [use or NOTHING for use in uses]


def _loop_heads(modules: Sequence[Module]) -> list[ModuleId]:
    """For each module the outermost one that it can reach and that can reach it; mostly itself.

    The tree with its aliases is a graph whose depth-first tree is the tree itself, so these are
    the roots of its strongly connected components (Tarjan).
    """
    heads = [module.id for module in modules]
    if all(module.alias_of is None for module in modules):
        return heads
    closed: set[ModuleId] = set()
    waiting: list[ModuleId] = []
    for module in _children_first(modules):
        open_ones = (heads[other] for other in _below(module) if other not in closed)
        heads[module.id] = min(open_ones, default=module.id)
        waiting.append(module.id)
        if heads[module.id] == module.id:
            while waiting and waiting[-1] >= module.id:
                member = waiting.pop()
                heads[member] = module.id
                closed.add(member)
    return heads


def _with_ancestors(
    modules: Sequence[Module],
) -> Iterator[tuple[Module, list[ModuleId]]]:
    """Each module with the modules from the root down to itself; the list is reused."""
    line: list[ModuleId] = []
    for module in modules:
        while line and line[-1] != module.parent:
            line.pop()
        line.append(module.id)
        yield module, line


def _children_first(modules: Sequence[Module]) -> Iterator[Module]:
    line: list[Module] = []
    for module in modules:
        while line and line[-1].id != module.parent:
            yield line.pop()
        line.append(module)
    yield from reversed(line)

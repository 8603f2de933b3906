"""The contents of a summary: one row per module, and totals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchglass.analyse.parameters import Counts, ModuleCounts, count
from torchglass.analyse.sibling_order import Sort, alike, builds, sort_key
from torchglass.errors import collector_paused
from torchglass.records.model import Model, Module, ModuleId, Slot, TensorId, join_path

if TYPE_CHECKING:
    from torchglass.records.trace import CallRecord, Value

_MOMENTS_OF_ADAM = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRow:
    """One line of a summary: a module, or several identical siblings."""

    module: Module
    """The first of them."""
    members: tuple[ModuleId, ...]
    depth: int
    """How far it is below the model."""
    last: bool
    """Whether no sibling follows."""
    own: Counts
    """The parameters of the first module itself."""
    total: Counts
    """The parameters of all of them with all below, each tensor once."""
    dtypes: tuple[str, ...]
    """The dtypes of their parameters (of buffers if they have none), all below included."""
    devices: tuple[str, ...]
    calls: tuple[CallRecord, ...] = ()
    """The calls of the first of them."""
    tied_to: tuple[str, ...] = ()
    """The first names of its own tensors that other modules share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """The memory that a model needs to run and to train, without tensors that are created and freed
    inside a module, and without the allocator's overhead."""

    weight_bytes: int
    """Parameters and buffers."""
    gradient_bytes: int
    """One gradient for each trainable parameter."""
    optimizer_bytes: int
    """The two moments that Adam keeps of each."""
    activation_bytes: int | None
    """Outputs of all modules, shared memory counted once; None without a forward."""
    largest_call_bytes: int | None
    """Inputs and outputs of the innermost call with the most bytes."""

    @property
    def inference_bytes(self) -> int:
        """Weights, and the largest call."""
        return self.weight_bytes + (self.largest_call_bytes or 0)

    @property
    def training_bytes(self) -> int:
        """Weights, gradients, Adam's moments, and all activations kept for the backward pass."""
        kept = self.activation_bytes or 0
        return self.weight_bytes + self.gradient_bytes + self.optimizer_bytes + kept


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryReport:
    """All that the views of a summary show."""

    model: Model
    rows: tuple[SummaryRow, ...]
    counts: ModuleCounts
    """The counts of the whole model, whatever rows are shown."""
    memory: MemoryEstimate
    ran: bool
    """Whether a forward was run, so that the rows have calls."""


@collector_paused()
def summarize(
    model: Model,
    calls: Sequence[CallRecord] | None = None,
    *,
    depth: int | None = None,
    sort: Sort | None = None,
    fold: bool = False,
) -> SummaryReport:
    """The report of a model down to a depth, with siblings sorted or identical ones folded."""
    counts = count(model)
    total = counts[model.root.id].total
    return SummaryReport(
        model=model,
        rows=tuple(_RowBuilder(model, counts, calls or ()).build(depth, sort, fold)),
        counts=counts[model.root.id],
        memory=MemoryEstimate(
            weight_bytes=total.bytes,
            gradient_bytes=total.trainable_bytes,
            optimizer_bytes=_MOMENTS_OF_ADAM * total.trainable_bytes,
            activation_bytes=None if calls is None else _activation_bytes(calls),
            largest_call_bytes=None if calls is None else _largest_call_bytes(calls),
        ),
        ran=calls is not None,
    )


class _RowBuilder:
    """Builds the rows from lookup tables."""

    def __init__(
        self, model: Model, counts: Sequence[ModuleCounts], calls: Sequence[CallRecord]
    ) -> None:
        self._model = model
        self._counts = counts
        self._calls: dict[str, list[CallRecord]] = {}
        for call in calls:
            self._calls.setdefault(call.path, []).append(call)
        self._dtypes = kinds_below(model, lambda slot: slot.spec.dtype)
        self._devices = kinds_below(model, lambda slot: slot.spec.device, of_all=True)

    def build(self, depth: int | None, sort: Sort | None, fold: bool) -> list[SummaryRow]:
        model = self._model
        build = builds(model) if fold else []
        rows: list[SummaryRow] = []
        waiting: list[tuple[tuple[ModuleId, ...], int, bool]] = [((model.root.id,), 0, True)]
        while waiting:
            members, level, last = waiting.pop()
            module = model[members[0]]
            rows.append(self._row(module, members, level, last))
            if depth is not None and level >= depth:
                continue
            below: list[tuple[ModuleId, ...]] = [(child,) for child in module.children]
            if fold:
                below = alike(model, module.children, build)
            if sort:
                below = sorted(below, key=sort_key(sort, model, self._counts))
            waiting.extend(
                (run, level + 1, index == 0) for index, run in enumerate(reversed(below))
            )
        return rows

    def _row(
        self, module: Module, members: tuple[ModuleId, ...], depth: int, last: bool
    ) -> SummaryRow:
        first = module.id
        return SummaryRow(
            module=module,
            members=members,
            depth=depth,
            last=last,
            own=self._counts[first].own,
            total=self._counts[first].total
            if len(members) == 1
            else _together(self._model, members),
            dtypes=self._dtypes[first],
            devices=self._devices[first],
            calls=tuple(self._calls.get(module.path, ())),
            tied_to=tuple(
                names[0]
                for slot in module.slots
                if (names := self._model.tied.get(slot.tensor))
                and names[0] != join_path(module.path, slot.name)
            ),
        )


def _together(model: Model, members: Sequence[ModuleId]) -> Counts:
    """The parameters of several branches, shared tensors counted once."""
    slots: dict[TensorId, Slot] = {}
    seen: set[ModuleId] = set()
    waiting = list(members)
    while waiting:
        module = model[waiting.pop()]
        if module.id not in seen:
            seen.add(module.id)
            waiting.extend(module.children if module.alias_of is None else (module.alias_of,))
            slots.update((slot.tensor, slot) for slot in module.slots)
    holder = Module(id=ModuleId(0), path="", name="", class_name="", slots=tuple(slots.values()))
    return count(Model(name="", modules=(holder,)))[0].total


def kinds_below(
    model: Model, kind: Callable[[Slot], str], *, of_all: bool = False
) -> list[tuple[str, ...]]:
    """The kinds of the tensors in each branch: of its parameters, or else of its buffers.

    With `of_all` those of both.
    """
    # A bit for each kind: a model has few kinds, and may have very many modules.
    bits: dict[str, int] = {}
    parameters = [0] * len(model.modules)
    buffers = [0] * len(model.modules)
    for module in reversed(model.modules):
        for slot in module.slots:
            found = buffers if slot.role == "buffer" and not of_all else parameters
            found[module.id] |= bits.setdefault(kind(slot), 1 << len(bits))
        if module.parent is not None:
            parameters[module.parent] |= parameters[module.id]
            buffers[module.parent] |= buffers[module.id]
    shown = [own or other for own, other in zip(parameters, buffers, strict=True)]
    kinds = {
        some: tuple(sorted(name for name, bit in bits.items() if bit & some)) for some in set(shown)
    }
    return [kinds[some] for some in shown]


def _activation_bytes(calls: Sequence[CallRecord]) -> int:
    given = {value.memory for call in calls if call.parent is None for value in call.inputs}
    outputs = (value for call in calls for value in call.outputs)
    return _bytes(value for value in outputs if value.memory is None or value.memory not in given)


def _largest_call_bytes(calls: Sequence[CallRecord]) -> int:
    outer = {call.parent for call in calls}
    inner = (call for call in calls if call.id not in outer)
    return max((_bytes((*call.inputs, *call.outputs)) for call in inner), default=0)


def _bytes(values: Iterable[Value]) -> int:
    """The bytes of values, those that share memory counted once."""
    sizes: dict[int, int] = {}
    apart = 0
    for value in values:
        if value.memory is None:
            apart += value.spec.bytes
        else:
            sizes[value.memory] = max(sizes.get(value.memory, 0), value.spec.bytes)
    return apart + sum(sizes.values())

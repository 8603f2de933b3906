"""Removes channels from copies of a model, and measures the harm, the FLOPs and the time.

Removing a channel is the same as setting the weights that read it to zero, so harm is measured that
way, without changing a shape. Only cutting the channel out of all layers saves time.

Within a group the channels that contribute least go first: the size of a channel's activations
times the size of the weights that read it.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from torchglass.capture.measure.flops import count
from torchglass.errors import CaptureError
from torchglass.records.measures import FlopRecord, GroupPruning, PrunedSpeed
from torchglass.whatif.channel_groups import (
    ChannelCounter,
    ChannelEnd,
    ChannelGroup,
    ChannelProbe,
    channel_axis,
    counters_of,
    group_count,
    is_layer,
    passes_channels,
    weight_axes,
)
from torchglass.whatif.quantization import Metric, QuantizationExperiment, sqnr_db

SHARES = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75)
"""The shares of a group's channels that are tried."""
_SAME_DB = 60.0
"""A cut copy whose outputs differ more from the zeroed ones than this is wrong."""
_ROUNDS = 15
_LONGEST_REASON = 90
_MOST_COUNTERS = 5
"""Attributes that may count the units of a group; all their combinations are tried."""


class _ChannelCut(NamedTuple):
    """The channels to remove from each layer."""

    outputs: dict[str, list[int]]
    inputs: dict[str, list[int]]


@dataclass(slots=True)
class PruningExperiment:
    """A copy of a model whose channels are silenced and put back."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    metric: Metric | None = None
    progress: Callable[[GroupPruning], None] | None = None
    groups: list[ChannelGroup] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """Why some layers cannot be pruned, a sentence each."""
    _runner: QuantizationExperiment = field(init=False)
    _trained: set[str] = field(init=False)
    _flops: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._trained = {name for name, one in self.model.named_parameters() if one.requires_grad}
        self._runner = QuantizationExperiment(self.model, self.args, self.kwargs, self.metric)
        self.model = self._runner.model
        self._flops = self._count()
        found = ChannelProbe(self.model, (self.args, dict(self.kwargs))).groups()
        importance = self._contributions()
        for group in found:
            units = tuple(sorted(group.units, key=lambda unit: _least(unit, importance)))
            ordered = ChannelGroup(group.producers, units)
            problem = self._problem_with(ordered)
            if not problem:
                self.groups.append(ordered)
            elif (counted := self._with_counters(ordered)) is not None:
                self.groups.append(counted)
            else:
                self.skipped.append(f"{', '.join(group.producers)}: {problem}")
        if not self.groups:
            reason = (
                "every layer leads to the output, or into a norm or attention over all channels"
            )
            raise CaptureError(
                f"{type(self.model).__name__} has no channels that can be removed: "
                + ("; ".join(self.skipped) or reason)
            )

    def measure(self) -> Iterator[GroupPruning]:
        """Silence growing shares of each group alone, and measure the outputs."""
        plain = self._runner.outputs()
        for number, group in enumerate(self.groups):
            for share in SHARES:
                units = group.units[: int(share * len(group.units))]
                if not units:
                    continue
                with self._silenced(units):
                    found = GroupPruning(
                        group=number,
                        layers=group.producers,
                        channels=len(group.units),
                        removed=len(units),
                        sqnr_db=sqnr_db(plain, self._runner.outputs()),
                        metric=self._runner.baseline(),
                        saved_flops=self._saved(units),
                    )
                if self.progress is not None:
                    self.progress(found)
                yield found

    def baseline(self) -> float | None:
        """The metric of the model as it is; None without a metric."""
        return self._runner.baseline()

    @property
    def flops(self) -> int:
        """What the forward of the whole model computes."""
        return self._flops[""]

    def quality(self, removed: Mapping[int, int]) -> tuple[float, float | None]:
        """The SQNR and the metric with the first units of several groups silenced."""
        plain = self._runner.outputs()
        with self._silenced(self._units(removed)):
            return sqnr_db(plain, self._runner.outputs()), self._runner.baseline()

    def cut(self, removed: Mapping[int, int]) -> nn.Module:
        """A copy of the model without the first units of several groups, ready to be trained."""
        counters = [
            one._replace(per_unit=one.per_unit * many)
            for number, many in removed.items()
            for one in self.groups[number].counters
        ]
        smaller = cut_copy(self.model, self._units(removed), counters)
        for name, parameter in smaller.named_parameters():
            parameter.requires_grad_(name in self._trained)
        return smaller

    def flops_of(self, model: nn.Module) -> int:
        """What the forward of a copy computes."""
        return sum(op.flops for op in self._counted(model).ops)

    def speed(self, removed: Mapping[int, int], smaller: nn.Module) -> PrunedSpeed:
        """The time of a forward: as it is, with weights set to zero, and with channels cut out."""
        zeroed = copy.deepcopy(self.model)
        _silence(zeroed, self._units(removed))
        runs = {"plain": self.model, "zeroed": zeroed, "cut": smaller}
        times: dict[str, list[float]] = defaultdict(list)
        for turn in range(_ROUNDS + 1):
            for name, model in runs.items():
                start = time.perf_counter()
                self._forward(model)
                if turn:
                    times[name].append(time.perf_counter() - start)
        return PrunedSpeed(
            plain_s=min(times["plain"]),
            zeroed_s=min(times["zeroed"]),
            cut_s=min(times["cut"]),
            repeats=_ROUNDS,
        )

    def _forward(self, model: nn.Module) -> None:
        with torch.no_grad():
            model(*self.args, **self.kwargs)
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def _units(self, removed: Mapping[int, int]) -> list[frozenset[ChannelEnd]]:
        return [
            unit for number, many in removed.items() for unit in self.groups[number].units[:many]
        ]

    @contextlib.contextmanager
    def _silenced(self, units: Sequence[frozenset[ChannelEnd]]) -> Iterator[None]:
        kept = _silence(self.model, units)
        try:
            yield
        finally:
            for weight, original in kept:
                weight.data.copy_(original)

    def _with_counters(self, group: ChannelGroup) -> ChannelGroup | None:
        """The same with attributes that count its units, if a copy is right with them smaller."""
        possible = counters_of(self.model, group)[:_MOST_COUNTERS]
        for size in range(1, len(possible) + 1):
            for chosen in itertools.combinations(possible, size):
                counted = ChannelGroup(group.producers, group.units, chosen)
                if not self._problem_with(counted):
                    return counted
        return None

    def _problem_with(self, group: ChannelGroup) -> str:
        """Why a copy without a channel of the group is wrong; "" if it gives what zeroing gives."""
        unit = group.units[:1]
        try:
            smaller = cut_copy(self.model, unit, group.counters)
            with torch.no_grad():
                changed = QuantizationExperiment(smaller, self.args, self.kwargs).outputs()
        except (RuntimeError, ValueError, IndexError, TypeError, CaptureError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            return f"a copy with fewer channels does not run ({reason[:_LONGEST_REASON]})"
        with self._silenced(unit):
            expected = self._runner.outputs()
        same = [one.shape for one in expected] == [one.shape for one in changed]
        if same and sqnr_db(expected, changed) > _SAME_DB:
            return ""
        return "a copy with fewer channels computes something else"

    def _contributions(self) -> dict[tuple[str, int], float]:
        """For each input of each layer: the size of its values times that of their weights."""
        found: dict[tuple[str, int], float] = {}

        def look(path: str) -> Callable[..., None]:
            def hook(module: nn.Module, args: Any) -> None:
                values = args[0].detach().float().movedim(channel_axis(module), 0).flatten(1)
                _, read = weight_axes(module)
                weights = module.weight.detach().float().movedim(read, 0).flatten(1)  # type: ignore[operator]
                size = values.square().mean(1).sqrt() * weights.norm(dim=1)
                found.update({(path, index): one for index, one in enumerate(size.tolist())})

            return hook

        with contextlib.ExitStack() as stack:
            for path, module in self.model.named_modules():
                if is_layer(module) and group_count(module) == 1:
                    stack.callback(module.register_forward_pre_hook(look(path)).remove)
            self._runner.outputs()
        return found

    def _count(self) -> dict[str, int]:
        work = self._counted(self.model)
        flops: dict[str, int] = defaultdict(int)
        for op in work.ops:
            flops[""] += op.flops
            if op.place is not None and work.places[op.place].path:
                flops[work.places[op.place].path] += op.flops
        return flops

    def _counted(self, model: nn.Module) -> FlopRecord:
        # The fused kernel of an encoder layer would hide the layers inside.
        was_fused = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            return count(model, self.args, dict(self.kwargs)).work
        finally:
            torch.backends.mha.set_fastpath_enabled(was_fused)

    def _saved(self, units: Sequence[frozenset[ChannelEnd]]) -> int:
        """FLOPs of the layers that make and read some channels, in proportion."""
        cut = _cut_of(units)
        saved = 0.0
        for path in {*cut.outputs, *cut.inputs}:
            module = self.model.get_submodule(path)
            lost = [cut.inputs.get(path, []), cut.outputs.get(path, [])]
            shares = [
                len(set(one)) / whole for one, whole in zip(lost, _widths(module), strict=True)
            ]
            # Channels that pass through, and groups of a convolution, are lost on both sides.
            is_one = passes_channels(module) or group_count(module) > 1
            left = 1 - max(shares) if is_one else (1 - shares[0]) * (1 - shares[1])
            saved += (1 - left) * self._flops.get(path, 0)
        return int(saved)


def _widths(module: Any) -> tuple[int, int]:
    """How many channels a module reads and makes."""
    for names in (("in_features", "out_features"), ("in_channels", "out_channels")):
        if hasattr(module, names[0]):
            return getattr(module, names[0]), getattr(module, names[1])
    count = next(
        getattr(module, name)
        for name in ("num_features", "num_channels", "num_parameters")
        if hasattr(module, name)
    )
    return count, count


def _least(unit: frozenset[ChannelEnd], importance: Mapping[tuple[str, int], float]) -> float:
    return sum(importance.get((p.path, p.channel), 0.0) ** 2 for p in unit if not p.is_output)


def _cut_of(units: Sequence[frozenset[ChannelEnd]]) -> _ChannelCut:
    cut = _ChannelCut(defaultdict(list), defaultdict(list))
    for unit in units:
        for place in unit:
            (cut.outputs if place.is_output else cut.inputs)[place.path].append(place.channel)
    return cut


def _silence(
    model: nn.Module, units: Sequence[frozenset[ChannelEnd]]
) -> list[tuple[nn.Parameter, torch.Tensor]]:
    """Set the weights that read some channels to zero; returns what they were."""
    kept = []
    for path, indices in _cut_of(units).inputs.items():
        module = model.get_submodule(path)
        # A convolution loses whole groups with what they make, so nothing reads them.
        if is_layer(module) and group_count(module) == 1:
            weight: nn.Parameter = module.weight  # type: ignore[assignment]
            kept.append((weight, weight.detach().clone()))
            weight.data.movedim(weight_axes(module)[1], 0)[indices] = 0
    return kept


def cut_copy(
    model: nn.Module,
    units: Sequence[frozenset[ChannelEnd]],
    counters: Sequence[ChannelCounter] = (),
) -> nn.Module:
    """A copy of a model without some channels: all its layers are really smaller."""
    smaller = copy.deepcopy(model)
    for path, name, many in counters:
        above = smaller.get_submodule(path)
        setattr(above, name, getattr(above, name) - many)
    cut = _cut_of(units)
    for path in dict.fromkeys([*cut.outputs, *cut.inputs]):
        module: Any = smaller.get_submodule(path)
        outputs, inputs = cut.outputs.get(path, []), cut.inputs.get(path, [])
        if passes_channels(module):
            _cut_passing(module, inputs)
            continue
        made, read = weight_axes(module)
        if group_count(module) > 1:
            module.groups -= len(set(inputs)) * module.groups // module.in_channels
        else:
            _keep(module, "weight", read, inputs)
        _keep(module, "weight", made, outputs)
        _keep(module, "bias", 0, outputs)
        _shrink(module, ("in_features", "in_channels"), inputs)
        _shrink(module, ("out_features", "out_channels"), outputs)
    return smaller


def _cut_passing(module: Any, indices: Sequence[int]) -> None:
    if isinstance(module, nn.GroupNorm):
        left = module.num_channels - len(set(indices))
        module.num_groups = module.num_groups * left // module.num_channels
    for name in ("weight", "bias", "running_mean", "running_var"):
        _keep(module, name, 0, indices)
    for name in ("num_features", "num_channels", "num_parameters", "in_channels", "out_channels"):
        _shrink(module, (name,), indices)
    if hasattr(module, "groups"):
        module.groups = module.in_channels


def _keep(module: Any, name: str, axis: int, removed: Sequence[int]) -> None:
    """Cut indices out of a parameter or buffer, if the module has it."""
    tensor = getattr(module, name, None)
    if tensor is None or not removed:
        return
    gone = set(removed)
    kept = torch.tensor([i for i in range(tensor.shape[axis]) if i not in gone]).to(tensor.device)
    smaller = tensor.detach().index_select(axis, kept)
    if isinstance(tensor, nn.Parameter):
        smaller = nn.Parameter(smaller, requires_grad=tensor.requires_grad)
    setattr(module, name, smaller)


def _shrink(module: Any, names: Sequence[str], removed: Sequence[int]) -> None:
    for name in names:
        if removed and hasattr(module, name):
            setattr(module, name, getattr(module, name) - len(set(removed)))


def choose_channels(
    measured: Sequence[GroupPruning], flops: int, amount: float, baseline: float | None
) -> dict[int, int]:
    """How many units to remove from each group to save a share of the FLOPs at the least harm."""
    levels: dict[int, list[GroupPruning]] = defaultdict(list)
    for one in measured:
        levels[one.group].append(one)
    removed: dict[int, int] = {}
    now = dict.fromkeys(levels, (0.0, 0))
    saved = 0
    while (missing := amount * flops - saved) > 0:
        steps = [
            (_harm(one, baseline) - now[group][0], one.saved_flops - now[group][1], one)
            for group, options in levels.items()
            for one in options
            if one.saved_flops > now[group][1]
        ]
        if not steps:
            break
        _, gain, best = min(steps, key=lambda step: (step[0] / step[1], -step[1]))
        if gain > missing:
            # The last step: as much as is missing, at the least harm.
            enough = [step for step in steps if step[1] >= missing]
            _, gain, best = min(enough, key=lambda step: (step[0], step[1]))
        saved += gain
        now[best.group] = _harm(best, baseline), best.saved_flops
        removed[best.group] = best.removed
    return removed


def _harm(one: GroupPruning, baseline: float | None) -> float:
    if one.metric is not None and baseline is not None:
        return max(baseline - one.metric, 0.0)
    return float(10 ** (-one.sqnr_db / 10))

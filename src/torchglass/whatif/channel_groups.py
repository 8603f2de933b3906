"""Finds the channels of a model that can only be removed together.

In a residual network the convolutions whose outputs are added must lose the same channels, together
with the norms behind them and the inputs of the layers that read the sum. What belongs together is
found by an experiment, not by rules for each operation: the channels of a layer are perturbed, and
the inputs of other layers that change depend on them. Other layers then return what they returned
before, so the change ends there.

Channel i is perturbed in the samples whose bit is set in the binary code of i, and in those for the
complement of the code. An input that depends on one channel changes in exactly one sample of each
pair, which spells the number of the channel; one that depends on several changes in both. Then each
channel is perturbed alone, and those that an input depends on go together: both halves of a gated
unit, the channels of a group norm. So do the channels of each group of a convolution.
"""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from torchglass.capture.isolated_run import keeping_random_state
from torchglass.capture.torch_internals import tree_map_only
from torchglass.errors import CaptureError
from torchglass.whatif.plan import with_batch

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_NORMS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
    nn.GroupNorm,
)
_PUSH = 8.0
"""Perturbations are this many times the scale of the layer's output."""
_CHANGED = 1e-3
"""A smaller change, as a share of the scale of the input, is rounding."""
_TURNED = 0.3
"""The share of positions that are pushed the other way."""
_MOST_ALONE = 1024
"""In a layer with more channels, none is perturbed alone."""
_AT_ONCE = 32
"""Channels that are perturbed alone in one forward, each up and down."""


class ChannelEnd(NamedTuple):
    """A channel of a layer: one that it makes, or one that it reads."""

    path: str
    channel: int
    is_output: bool


class ChannelCounter(NamedTuple):
    """An integer attribute of a module that gets smaller with each unit that is removed."""

    path: str
    name: str
    per_unit: int


@dataclass(frozen=True, slots=True)
class ChannelGroup:
    """Layers whose channels are coupled, and the sets of channels that go together."""

    producers: tuple[str, ...]
    units: tuple[frozenset[ChannelEnd], ...]
    """What is removed together: each unit has a channel of every producer, or several."""
    counters: tuple[ChannelCounter, ...] = ()
    """Attributes of modules that count the units, such as the heads of an attention."""

    @property
    def consumers(self) -> tuple[str, ...]:
        """The layers that read the channels."""
        return tuple(dict.fromkeys(p.path for u in self.units for p in u if not p.is_output))


def is_depthwise(module: nn.Module) -> bool:
    """Whether a convolution has one filter per channel, so channels pass through it."""
    return (
        isinstance(module, _CONVOLUTIONS)
        and module.groups == module.in_channels == module.out_channels
        and module.groups > 1
    )


def is_layer(module: nn.Module) -> bool:
    """Whether a module mixes channels: all of them, or those of each of its groups."""
    if isinstance(module, _CONVOLUTIONS):
        return not is_depthwise(module)
    return isinstance(module, nn.Linear) or (isinstance(module, _TRANSPOSED) and module.groups == 1)


def group_count(module: nn.Module) -> int:
    """The groups of a convolution; 1 for other layers."""
    return int(getattr(module, "groups", 1))


def passes_channels(module: nn.Module) -> bool:
    """Whether a module has a value per channel and keeps channels apart."""
    is_prelu = isinstance(module, nn.PReLU) and module.num_parameters > 1
    return isinstance(module, _NORMS) or is_prelu or is_depthwise(module)


def channel_axis(module: nn.Module) -> int:
    """The dimension of channels in what goes into and out of a layer."""
    return -1 if isinstance(module, nn.Linear) else 1


def weight_axes(module: nn.Module) -> tuple[int, int]:
    """The dimensions of output and input channels in the weight of a layer."""
    return (1, 0) if isinstance(module, _TRANSPOSED) else (0, 1)


def channels_of(module: nn.Module) -> int:
    """How many output channels a layer has."""
    return int(getattr(module, "out_features", None) or module.out_channels)  # type: ignore[arg-type]


def counters_of(model: nn.Module, group: ChannelGroup) -> tuple[ChannelCounter, ...]:
    """The attributes beside the layers of a group that are as large as it: `self.num_heads`."""
    count = len(group.units)
    found = []
    for above in dict.fromkeys(path.rpartition(".")[0] for path in group.producers):
        widths = {channels_of(model.get_submodule(path)) for path in group.producers}
        for name, value in vars(model.get_submodule(above)).items():
            if type(value) is int and (value == count or value in widths) and value % count == 0:
                found.append(ChannelCounter(above, name, value // count))
    return tuple(found)


@dataclass(slots=True)
class ChannelProbe:
    """Runs a model with perturbed channels, and sees which inputs depend on them."""

    model: nn.Module
    sample: Any
    """One batch of arguments, as (args, kwargs)."""
    _layers: dict[str, nn.Module] = field(default_factory=dict)
    _passing: dict[str, nn.Module] = field(default_factory=dict)

    def groups(self) -> list[ChannelGroup]:
        """The groups of channels that can be removed, in the order of the model."""
        calls = self._count_calls()
        named = [(path, one) for path, one in self.model.named_modules() if calls.get(path)]
        self._layers = {path: one for path, one in named if is_layer(one)}
        self._passing = {path: one for path, one in named if passes_channels(one)}
        links: dict[ChannelEnd, set[ChannelEnd]] = {}
        dense: set[str] = set()
        for path in self._layers:
            found = self._dependents(path)
            if found is None:
                dense.add(path)
            else:
                links.update(found)
        together = list(self._grouped_ends())
        read = {end for ends in links.values() for end in ends}
        # A convolution in groups that reads the input of the model cannot lose a group.
        dense |= {end.path for ends in together for end in ends if not end.is_output} - {
            end.path for end in read
        }
        return list(_coupled(links, together, dense))

    def _grouped_ends(self) -> Iterator[set[ChannelEnd]]:
        """What a convolution in groups reads and makes in each of its groups."""
        for path, module in self._layers.items():
            count = group_count(module)
            if count > 1:
                sizes = {False: module.in_channels, True: module.out_channels}
                for group in range(count):
                    yield {
                        ChannelEnd(path, index, is_output)
                        for is_output, size in sizes.items()
                        for index in range(group * size // count, (group + 1) * size // count)  # type: ignore[operator]
                    }

    def _count_calls(self) -> Mapping[str, int]:
        counts: dict[str, int] = defaultdict(int)

        def count(path: str) -> Callable[..., None]:
            def hook(module: nn.Module, args: Any) -> None:
                counts[path] += 1

            return hook

        with contextlib.ExitStack() as stack:
            for path, module in self.model.named_modules():
                stack.callback(module.register_forward_pre_hook(count(path)).remove)
            self._run(self.sample)
        return counts

    def _run(self, sample: Any) -> Any:
        args, kwargs = sample
        with torch.no_grad(), keeping_random_state():
            return self.model(*args, **kwargs)

    def _dependents(self, path: str) -> dict[ChannelEnd, set[ChannelEnd]] | None:
        """What reads each channel of a layer; None if channels cannot be distinguished."""
        channels = channels_of(self._layers[path])
        bits = max((channels - 1).bit_length(), 1)
        codes = torch.arange(channels).unsqueeze(0) >> torch.arange(bits).unsqueeze(1) & 1
        # For each bit: channels with it and channels without it.
        seen = self._changes(path, torch.cat([codes, 1 - codes]).bool())
        if seen is None:
            return None
        found = _read(path, channels, bits, seen)
        if found is None and channels <= _MOST_ALONE:
            found = self._alone(path, channels)
        return None if found is None else _completed(path, channels, found)

    def _alone(self, path: str, channels: int) -> dict[ChannelEnd, set[ChannelEnd]] | None:
        """The same with each channel perturbed alone, where inputs depend on several."""
        found: dict[ChannelEnd, set[ChannelEnd]] = {}
        for start in range(0, channels, _AT_ONCE):
            numbers = torch.arange(start, min(start + _AT_ONCE, channels))
            seen = self._changes(path, numbers.unsqueeze(1) == torch.arange(channels))
            if seen is None:
                return None
            for row, number in enumerate(numbers.tolist()):
                found[ChannelEnd(path, number, True)] = {
                    ChannelEnd(other, index, False)
                    for other, changed in seen.items()
                    for index in changed[row].nonzero().flatten().tolist()
                }
        return found

    def _changes(self, path: str, pushed: torch.Tensor) -> dict[str, torch.Tensor] | None:
        """Which inputs of other layers change if channels of a layer are pushed up or down.

        `pushed` has a row for each trial. None if the output of the model changes past all layers.
        """
        producer = self._layers[path]
        signs = torch.cat([torch.ones(len(pushed)), -torch.ones(len(pushed))])
        sample = with_batch(with_batch(self.sample, 1), 2 * len(pushed) + 1)
        seen: dict[str, torch.Tensor] = {}
        with contextlib.ExitStack() as stack:
            push = _Push(torch.cat([pushed, pushed]), signs, channel_axis(producer))
            stack.callback(producer.register_forward_hook(push).remove)
            for other, module in {**self._layers, **self._passing}.items():
                look = _changes_of(seen, other, channel_axis(module))
                stack.callback(module.register_forward_pre_hook(look).remove)
                if other in self._layers and other != path:
                    stack.callback(module.register_forward_hook(_as_before).remove)
            try:
                output = self._run(sample)
            except RuntimeError as error:
                raise CaptureError(
                    f"{type(self.model).__name__} does not run with another batch size, in which "
                    f"the channels of {path} are perturbed: {error}"
                ) from error
        if _has_changed(output):
            return None
        return {other: one[: len(pushed)] | one[len(pushed) :] for other, one in seen.items()}


class _Push:
    """A hook that perturbs channels of a layer in all samples but the first."""

    def __init__(self, pushed: torch.Tensor, signs: torch.Tensor, axis: int) -> None:
        self._pushed, self._signs, self._axis = pushed, signs, axis

    def __call__(self, module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        scale = _PUSH * (output[0].std(correction=0) + output[0].abs().mean() + 1e-6)
        push = (self._pushed * self._signs.unsqueeze(1) * scale).to(output)
        shape = [1] * output.dim()
        shape[0], shape[self._axis] = push.shape
        # A layer that runs again on its own result starts from what is not perturbed.
        changed = output[:1].expand_as(output).clone()
        changed[1:] += push.view(shape) * self._pattern(output)
        return changed

    def _pattern(self, output: torch.Tensor) -> torch.Tensor:
        """Factors that differ between positions: a norm removes what is the same for all."""
        sizes = list(output.shape)
        sizes[0] = sizes[self._axis] = 1
        if math.prod(sizes) == 1:
            return output.new_ones(())
        factors = torch.rand(sizes, generator=torch.Generator().manual_seed(0)) + 0.5
        signs = torch.rand(sizes, generator=torch.Generator().manual_seed(1)) < _TURNED
        return torch.where(signs, -factors, factors).to(output)


def _as_before(module: nn.Module, args: Any, output: Any) -> Any:
    """What a layer returns for the first sample, which is not perturbed, for all samples."""
    return output[:1].expand_as(output)


def _changes_of(
    seen: dict[str, torch.Tensor], path: str, axis: int
) -> Callable[[nn.Module, Any], None]:
    def look(module: nn.Module, args: Any) -> None:
        values = args[0].movedim(axis, 1).flatten(2) if args[0].dim() > 2 else args[0].unsqueeze(2)
        change = (values[1:] - values[:1]).abs().amax(2)
        found = change > _CHANGED * (values[0].abs().mean() + 1e-6)
        seen[path] = seen[path] | found if path in seen else found

    return look


def _has_changed(output: Any) -> bool:
    """Whether a perturbation reached the output of the model past all other layers."""
    tensors: list[torch.Tensor] = []
    tree_map_only(torch.Tensor, tensors.append, output)
    return any(
        bool(((one[1:] - one[:1]).abs() > _CHANGED * (one[0].abs().mean() + 1e-6)).any())
        for one in tensors
        if one.dim() and one.dtype.is_floating_point
    )


def _read(
    path: str, channels: int, bits: int, seen: Mapping[str, torch.Tensor]
) -> dict[ChannelEnd, set[ChannelEnd]] | None:
    """The channel that each input depends on, from the samples in which it changed."""
    found: dict[ChannelEnd, set[ChannelEnd]] = {
        ChannelEnd(path, i, True): set() for i in range(channels)
    }
    weights = 2 ** torch.arange(bits)
    for other, changed in seen.items():
        ones, zeros = changed[:bits], changed[bits:]
        touched = (ones | zeros).any(0)
        if bool((ones & zeros).any()) or bool((~(ones | zeros))[:, touched].any()):
            # It depends on several channels, or the change was lost on the way.
            return None
        numbers = (ones.long() * weights.unsqueeze(1)).sum(0)
        for index in touched.nonzero().flatten().tolist():
            number = int(numbers[index])
            if number >= channels:
                return None
            found[ChannelEnd(path, number, True)].add(ChannelEnd(other, index, False))
    return found


def _completed(
    path: str, channels: int, found: dict[ChannelEnd, set[ChannelEnd]]
) -> dict[ChannelEnd, set[ChannelEnd]]:
    """Add the readers of dead channels, which no perturbation wakes: those beside the others.

    Most channels of a layer are read in order. If all that are seen to be read by another layer
    are, the rest are taken to be, too.
    """
    shifts: dict[str, list[int]] = defaultdict(list)
    for channel, inputs in found.items():
        for end in inputs:
            shifts[end.path].append(end.channel - channel.channel)
    for other, seen in shifts.items():
        if len(set(seen)) == 1 and channels // 2 < len(seen) < channels:
            for number in range(channels):
                found[ChannelEnd(path, number, True)].add(
                    ChannelEnd(other, number + seen[0], False)
                )
    return found


class _Units:
    """Sets of channel ends that go together; joining two ends joins their sets."""

    def __init__(self) -> None:
        self._owner: dict[ChannelEnd, ChannelEnd] = {}

    def join(self, ends: Iterable[ChannelEnd]) -> None:
        """Make one set of all sets that these ends are in."""
        first, *others = map(self._root, ends)
        for other in others:
            self._owner[other] = first

    def sets(self) -> Iterable[set[ChannelEnd]]:
        """The sets as they are now."""
        found: dict[ChannelEnd, set[ChannelEnd]] = defaultdict(set)
        for end in self._owner:
            found[self._root(end)].add(end)
        return found.values()

    def _root(self, end: ChannelEnd) -> ChannelEnd:
        while self._owner.setdefault(end, end) != end:
            end = self._owner[end]
        return end


def _coupled(
    links: Mapping[ChannelEnd, set[ChannelEnd]],
    together: Sequence[set[ChannelEnd]],
    dense: set[str],
) -> Iterator[ChannelGroup]:
    """Join channels that are read by the same inputs, and layers whose channels are joined."""
    units = _Units()
    for channel, inputs in links.items():
        units.join([channel, *inputs])
    for ends in together:
        units.join(ends)
    by_layers: dict[tuple[str, ...], list[frozenset[ChannelEnd]]] = defaultdict(list)
    for unit in units.sets():
        by_layers[tuple(sorted({place.path for place in unit if place.is_output}))].append(
            frozenset(unit)
        )
    spoiled = dense | _partly_grouped(by_layers)
    for producers, found in by_layers.items():
        is_read = any(not place.is_output for unit in found for place in unit)
        if len(found) > 1 and is_read and not spoiled & set(producers):
            yield ChannelGroup(producers, tuple(found))


def _partly_grouped(groups: Mapping[tuple[str, ...], Sequence[frozenset[ChannelEnd]]]) -> set[str]:
    """Layers some of whose channels are coupled with other layers than the rest."""
    counts: dict[str, int] = defaultdict(int)
    for producers in groups:
        for path in producers:
            counts[path] += 1
    return {path for path, count in counts.items() if count > 1}

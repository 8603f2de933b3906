"""Finds the channels of a model that can only be removed together.

In a residual network the convolutions whose outputs are added must lose the same channels, together
with the norms behind them and the inputs of the layers that read the sum. What belongs together is
found by an experiment, not by rules for each operation: the channels of a layer are perturbed, and
the inputs of other layers that change depend on them. Other layers then return what they returned
before, so the change ends there.

Channel i is perturbed in the samples whose bit is set in the binary code of i, and in those for the
complement of the code. An input that depends on one channel changes in exactly one sample of each
pair, which spells the number of the channel; one that depends on several changes in both.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from torchglass.capture.isolated_run import keeping_random_state
from torchglass.capture.torch_internals import tree_map_only
from torchglass.whatif.plan import with_batch

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_PUSH = 8.0
"""Perturbations are this many times the scale of the layer's output."""
_CHANGED = 1e-3
"""A smaller change, as a share of the scale of the input, is rounding."""


class ChannelEnd(NamedTuple):
    """A channel of a layer: one that it makes, or one that it reads."""

    path: str
    channel: int
    is_output: bool


@dataclass(frozen=True, slots=True)
class ChannelGroup:
    """Layers whose channels are coupled, and the sets of channels that go together."""

    producers: tuple[str, ...]
    units: tuple[frozenset[ChannelEnd], ...]
    """What is removed together: each unit has a channel of every producer, or several."""

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
    """Whether a module mixes all its input channels into each of its output channels."""
    if isinstance(module, _CONVOLUTIONS):
        return module.groups == 1
    return isinstance(module, nn.Linear)


def passes_channels(module: nn.Module) -> bool:
    """Whether a module has a value per channel and keeps channels apart."""
    return isinstance(module, _NORMS) or is_depthwise(module)


def channel_axis(module: nn.Module) -> int:
    """The dimension of channels in what goes into and out of a layer."""
    return -1 if isinstance(module, nn.Linear) else 1


def channels_of(module: nn.Module) -> int:
    """How many output channels a layer has."""
    return int(getattr(module, "out_features", None) or module.out_channels)  # type: ignore[arg-type]


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
        named = [(path, one) for path, one in self.model.named_modules() if calls.get(path) == 1]
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
        return list(_coupled(links, dense))

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
        producer = self._layers[path]
        channels = channels_of(producer)
        bits = max((channels - 1).bit_length(), 1)
        codes = torch.arange(channels).unsqueeze(0) >> torch.arange(bits).unsqueeze(1) & 1
        # For each bit: channels with it and channels without it, pushed up and pushed down.
        pushed = torch.cat([codes, 1 - codes, codes, 1 - codes]).bool()
        signs = torch.cat([torch.ones(2 * bits), -torch.ones(2 * bits)])
        sample = with_batch(with_batch(self.sample, 1), len(pushed) + 1)
        seen: dict[str, torch.Tensor] = {}
        with contextlib.ExitStack() as stack:
            push = _Push(pushed, signs, channel_axis(producer))
            stack.callback(producer.register_forward_hook(push).remove)
            for other, module in {**self._layers, **self._passing}.items():
                if other == path:
                    continue
                look = _changes_of(seen, other, channel_axis(module))
                stack.callback(module.register_forward_pre_hook(look).remove)
                if other in self._layers:
                    stack.callback(module.register_forward_hook(_as_before).remove)
            output = self._run(sample)
        if _has_changed(output):
            return None
        return _read(path, channels, bits, seen)


class _Push:
    """A hook that perturbs channels of a layer in all samples but the first."""

    def __init__(self, pushed: torch.Tensor, signs: torch.Tensor, axis: int) -> None:
        self._pushed, self._signs, self._axis = pushed, signs, axis

    def __call__(self, module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        scale = _PUSH * (output[0].std(correction=0) + output[0].abs().mean() + 1e-6)
        push = (self._pushed * self._signs.unsqueeze(1) * scale).to(output)
        shape = [1] * output.dim()
        shape[0], shape[self._axis] = push.shape
        changed = output.clone()
        changed[1:] += push.view(shape)
        return changed


def _as_before(module: nn.Module, args: Any, output: Any) -> Any:
    """What a layer returns for the first sample, which is not perturbed, for all samples."""
    return output[:1].expand_as(output)


def _changes_of(
    seen: dict[str, torch.Tensor], path: str, axis: int
) -> Callable[[nn.Module, Any], None]:
    def look(module: nn.Module, args: Any) -> None:
        values = args[0].movedim(axis, 1).flatten(2) if args[0].dim() > 2 else args[0].unsqueeze(2)
        change = (values[1:] - values[:1]).abs().amax(2)
        seen[path] = change > _CHANGED * (values[0].abs().mean() + 1e-6)

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
        up, down = changed[: 2 * bits], changed[2 * bits :]
        ones, zeros = (up | down)[:bits], (up | down)[bits:]
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


def _coupled(
    links: Mapping[ChannelEnd, set[ChannelEnd]], dense: set[str]
) -> Iterator[ChannelGroup]:
    """Join channels that are read by the same inputs, and layers whose channels are joined."""
    owner: dict[ChannelEnd, ChannelEnd] = {}

    def root(place: ChannelEnd) -> ChannelEnd:
        while owner.setdefault(place, place) != place:
            place = owner[place]
        return place

    for channel, inputs in links.items():
        for read in inputs:
            owner[root(read)] = root(channel)
    units: dict[ChannelEnd, set[ChannelEnd]] = defaultdict(set)
    for channel, inputs in links.items():
        units[root(channel)] |= {channel, *inputs}
    by_layers: dict[tuple[str, ...], list[frozenset[ChannelEnd]]] = defaultdict(list)
    for unit in units.values():
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

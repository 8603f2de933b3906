"""Inputs that were already NaN or Inf when they reached the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from torchglass.capture.guard.evidence import Exhibit, Spot, arrival, input_names
from torchglass.capture.guard.finding_report import Desk
from torchglass.capture.guard.tensor_health import Health, KnownHealth, look_again
from torchglass.records.findings import Finding

Inputs = tuple[nn.Module, tuple[Any, ...], Mapping[str, Any]]
"""A module, and what it was called with."""


class _Source(NamedTuple):
    """A tensor that was there before, and the words for what it brings along."""

    name: str
    words: str
    tensor: torch.Tensor


class Arrivals:
    """Tells of inputs, parameters and buffers, each once."""

    def __init__(self, desk: Desk, memory: KnownHealth) -> None:
        self._desk = desk
        self._memory = memory
        self._names: set[str] = set()
        """Of all that was found."""
        self.inputs: Inputs | None = None
        """What the outermost call that is running was called with."""

    def are_behind(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor with Inf was there before, and is not a mask: no op is to blame then."""
        known = self._memory.recall(tensor)
        if known is not None and self._memory.maker(tensor) not in self._names:
            return False
        source = self._source_of(tensor, Health.INF)
        return _is_trained(source.tensor) or not _looks_like_a_mask(source.tensor, Health.INF)

    def find(self, ill: Iterable[torch.Tensor], spot: Spot) -> Finding | None:
        """The finding that one of these tensors brought it along, if no op is known to have."""
        for tensor in ill:
            if self._memory.recall(tensor) is not None:
                continue
            health = look_again(tensor)
            source = self._source_of(tensor, health)
            self._memory.remember(tensor, health, source.name)
            self._names.add(source.name)
            if health is Health.NEAR or self._memory.is_undefined(tensor):
                continue
            if not _is_trained(source.tensor) and _looks_like_a_mask(source.tensor, health):
                continue
            if self._desk.is_news(health, Spot(source.name, "", 0, None)):
                exhibit = Exhibit(source.name, "argument", source.tensor)
                return arrival(spot, health, source.words, exhibit, self._desk.held)
        return None

    def _source_of(self, tensor: torch.Tensor, health: Health) -> _Source:
        """The tensor itself, or what it was moved out of by ops that are not looked at."""
        sources = list(self._sources())
        for source in sources:
            if source.tensor is tensor:
                return source
        for source in sources:
            if look_again(source.tensor) >= health:
                return source
        return _Source("a tensor", "{count} came with a tensor from before the guard", tensor)

    def _sources(self) -> Iterator[_Source]:
        if self.inputs is not None:
            for name, tensor in input_names(*self.inputs):
                yield _Source(f"input {name}", f"{{count}} came in with input {name}", tensor)
        for name, parameter in self._desk.model.named_parameters():
            yield _Source(name, f"parameter {name} holds {{count}}", parameter)
        for name, buffer in self._desk.model.named_buffers():
            yield _Source(name, f"buffer {name} holds {{count}}", buffer)


def _is_trained(tensor: torch.Tensor) -> bool:
    """Whether it is a weight; a parameter that is not trained may be a mask."""
    return isinstance(tensor, nn.Parameter) and tensor.requires_grad


def _looks_like_a_mask(tensor: torch.Tensor, health: Health) -> bool:
    """Whether there is no NaN, and of Inf only the negative one."""
    return health is Health.INF and not bool(torch.isposinf(tensor.detach()).any())

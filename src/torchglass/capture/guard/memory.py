"""What was found of tensors, for as long as they live and nobody writes into them."""

from __future__ import annotations

import weakref
from typing import NamedTuple

import torch

from torchglass.capture.guard.finiteness import Health, look_again
from torchglass.capture.tensor.extents import View, version_of, view_of

_MOST = 1 << 14
"""After so many tensors, those that are gone are forgotten."""


class _Known(NamedTuple):
    view: View
    version: int
    health: Health
    maker: str


class Memory:
    """Remembers tensors without holding them, so that none is looked at twice.

    The id of one that was freed may come back as another's: the memory that it shows tells the two
    apart.
    """

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._limit = _MOST
        self._undefined: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.any_bad = False
        """Whether a tensor was remembered that is not fine."""

    def remember(self, tensor: torch.Tensor, health: Health, maker: str = "") -> None:
        """Keep what was found of a tensor, and what made it so."""
        if health:
            self.any_bad = True
        self._known[id(tensor)] = _Known(view_of(tensor), version_of(tensor), health, maker)
        if len(self._known) > self._limit:
            self._forget_the_dead()

    def recall(self, tensor: torch.Tensor) -> Health | None:
        """What is known of a tensor as it is now."""
        known = self._of(tensor)
        return None if known is None else known.health

    def health(self, tensor: torch.Tensor) -> Health:
        """What is known of a tensor, or what a look at it tells."""
        known = self.recall(tensor)
        return look_again(tensor) if known is None else known

    def maker(self, tensor: torch.Tensor) -> str:
        """What made a tensor's values that are not finite, as far as that is known."""
        known = self._of(tensor)
        return "" if known is None else known.maker

    def leave_undefined(self, tensor: torch.Tensor) -> None:
        """Note that a tensor's memory was not written yet: what stands in it means nothing."""
        storage = tensor.untyped_storage()
        self._undefined[id(storage)] = weakref.ref(storage)

    def is_undefined(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in memory that began undefined."""
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return False
        noted = self._undefined.get(id(storage))
        return noted is not None and noted() is storage

    def _of(self, tensor: torch.Tensor) -> _Known | None:
        known = self._known.get(id(tensor))
        if known is None or known.version != version_of(tensor) or known.view != view_of(tensor):
            return None
        return known

    def _forget_the_dead(self) -> None:
        self._known = {
            key: known for key, known in self._known.items() if known.view[0]() is not None
        }
        self._undefined = {key: ref for key, ref in self._undefined.items() if ref() is not None}
        self._limit = 2 * len(self._known) + _MOST

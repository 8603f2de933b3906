"""Which nodes of autograd keep which tensors for the backward.

Hooks on saved tensors would tell, but they turn off autograd's own check for tensors that were
written over, and `torch.func` refuses to run below them. So the nodes are asked, right before the
backward begins.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import Node

from torchglass.capture.places import tensors_in
from torchglass.capture.timing.backward import Reached
from torchglass.capture.trace.nodes import LateMakers
from torchglass.records.memory import Saver

_saving_hooks = torch._C._autograd._top_saved_tensors_default_hooks


class _Maker(NamedTuple):
    path: str | None
    hooked: bool
    """Whether hooks of the model's own took what was saved, as those of a checkpoint do."""


class Makers:
    """Remembers in which module each node was made."""

    def __init__(self) -> None:
        self._makers: LateMakers[_Maker] = LateMakers()

    def note(self, path: str | None) -> None:
        """A kernel of a module ran; the nodes made since the last one are that module's."""
        if self._makers.has_new:
            self._makers.end(_Maker(path, _saving_hooks(False) is not None))

    def find(self, node: Node) -> _Maker | None:
        """Where a node was made; None for one that was not made in the step."""
        return self._makers.find(node._sequence_nr())


def saved_tensors(nodes: Iterable[Reached], makers: Makers) -> Iterator[tuple[torch.Tensor, Saver]]:
    """The tensors that nodes keep and who keeps them, in the order of the forward."""
    made = sorted((reached.node for reached in nodes), key=lambda node: node._sequence_nr())
    for node in made:
        maker = makers.find(node)
        # To unpack what hooks have packed may run a part of the model again.
        if maker is None or maker.hooked:
            continue
        saver = Saver(node=node.name().rpartition("::")[2], path=maker.path)
        for name in _names(type(node)):
            for tensor in _saved(node, name):
                yield tensor, saver


def _saved(node: Any, name: str) -> Iterator[torch.Tensor]:
    try:
        saved = getattr(node, name)
    except RuntimeError:
        # Written over since, or freed: the backward itself will say so.
        return
    yield from (tensor for _, tensor in tensors_in(saved))


@functools.lru_cache(maxsize=4096)
def _names(kind: type) -> tuple[str, ...]:
    """Under which names nodes of a class give what they have saved."""
    return tuple(
        name for name in dir(kind) if name.startswith("_saved_") or name == "saved_tensors"
    )

"""Autograd graphs: which op created which node, walking the graph, hooks, saved tensors.

Nodes are numbered as they are made, so the numbers at each change of who is at work tell it.
"""

from __future__ import annotations

import types
from bisect import bisect_right
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

from torchglass.capture.torch_internals import BACKWARD_CODE, node_count
from torchglass.records.trace import Phase

M = TypeVar("M")

nodes_made: Callable[[], int] = node_count
"""How many nodes this thread has made, which is the number of the next one."""
UNNUMBERED = 2**64 - 1
"""The number of a node that adds a gradient to its leaf: it is not made in a forward."""


class NodeCreators(Generic[M]):
    """Remembers whose the nodes are that are made from here on."""

    def __init__(self) -> None:
        self._bounds: list[int] = []
        self._makers: list[M] = []

    def begin(self, maker: M) -> None:
        """All that follow are a maker's, until another begins."""
        self._bounds.append(nodes_made())
        self._makers.append(maker)

    def find(self, number: int) -> M | None:
        """Who made the node of a number; None for one that nobody is known to have made."""
        place = bisect_right(self._bounds, number) - 1
        return self._makers[place] if 0 <= place < len(self._makers) else None


class LateNodeCreators(NodeCreators[M]):
    """The same where it is told afterwards whose the nodes are."""

    def __init__(self) -> None:
        super().__init__()
        self._bounds.append(nodes_made())

    @property
    def has_new(self) -> bool:
        """Whether there are nodes of which it has not been told."""
        return nodes_made() > self._bounds[-1]

    def end(self, maker: M) -> None:
        """All that were made since the last maker ended are this one's."""
        made = nodes_made()
        if made > self._bounds[-1]:
            self._bounds.append(made)
            self._makers.append(maker)


BACKWARD = BACKWARD_CODE

_STEP = next(
    part
    for part in torch.optim.Optimizer.profile_hook_step.__code__.co_consts
    if isinstance(part, types.CodeType)
)
"""What torch puts around the `step` of every optimizer."""


def phase_of(chain: tuple[Any, ...]) -> Phase:
    """The phase of an op that was called along a chain of code."""
    if BACKWARD in chain:
        return "backward"
    return "optimizer" if _STEP in chain else "forward"

"""Autograd graphs: which module or op created which node, walking the graph, hooks, saved tensors.

While gradients are on, every differentiable op leaves a node in the autograd graph. The backward
runs these nodes in reverse. Everything that Torchglass reports about a backward (time, FLOPs,
memory, a NaN gradient) is measured at a node, and then assigned to the module call or op of the
forward that created the node. This file does that.

**Who created a node.** Each thread numbers its nodes in the order in which it creates them, and
`node_count()` is the next number. Noting that number whenever a module call begins or ends is
enough: the creator of node n is the last one noted at or below n. Nothing is stored per node.

    creators = NodeCreators()
    creators.begin("encoder")          # the nodes from here on belong to "encoder"
    hidden = encoder(x)
    creators.begin("decoder")
    creators.of(hidden.grad_fn)        # "encoder"

An observer that knows the creator only afterwards uses `created` instead of `begin`. The
nodes that add a gradient to a leaf (`AccumulateGrad`) are not created by an op and have the number
`UNNUMBERED`. They run right after the node that computed the gradient, and belong to its creator.

**Walking the graph.** `nodes_behind(tensors)` gives every node that a backward from these tensors
will run. `NewNodes` gives each node that was created since a point in time, once; it stops at older
nodes, so a walk costs as much as there are new nodes, however large the graph is. Both are `walk`
with different conditions. Holding a node keeps alive what it saved for the backward, so no node is
stored for longer than a pass.

**Hooks.** A prehook of a node gets the gradients that arrive, and a hook gets those that the node
computed. They are freed with the graph, except on `AccumulateGrad`, which may live as long as its
parameter. `HookHandles` removes all hooks of an observer, and drops the handles of freed nodes.
`GradientHook` is registered on a tensor, does not keep its receiver alive, and turns our own errors
into warnings: an exception in a hook would end the user's backward.

**Saved tensors.** `saved_tensors(node)` reads what a node keeps for its backward. Saved-tensor
hooks would see the same, but they switch off autograd's check for tensors that were overwritten,
and `torch.func` refuses to run below them. If the model itself has such hooks (a checkpoint does),
reading a saved tensor may run a part of the model again: ask `has_saved_tensor_hooks()` at the time
the node is created.

**Where a backward is.** `running_node()` and `current_backward()` are the node and
the backward that this thread runs.

**Where a backward starts.** `sum_of_outputs` is the loss if the user names none. A verb that needs
no backward runs without gradients; `retried_with_gradients` is for forwards that need some.
"""

from __future__ import annotations

import functools
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch.autograd.graph import Node

from torchglass.capture.tensor.description import NamedTensors, iter_tensors, named_tensors
from torchglass.capture.tensor.memory_extent import view_of
from torchglass.capture.torch_internals import (
    SAVED_PREFIX,
    FunctionNode,
    current_backward,
    node_count,
    node_number,
)
from torchglass.errors import CaptureError

Creator = TypeVar("Creator")
Result = TypeVar("Result")
Gradients = tuple[torch.Tensor | None, ...]
"""The gradients that arrive at a node, or that it computes; None for one that nothing needs."""

NO_BACKWARD = -1
"""The value of `current_backward` outside of a backward."""
UNNUMBERED = 2**64 - 1
"""The number of a node that adds a gradient to its leaf: it is not created in a forward."""


def is_in_backward() -> bool:
    """Whether this thread runs a backward."""
    return current_backward() != NO_BACKWARD


class NodeCreators(Generic[Creator]):
    """Remembers who created the nodes of this thread from here on."""

    def __init__(self) -> None:
        self._bounds = [node_count()]
        self._creators: list[Creator | None] = [None]

    @property
    def has_new(self) -> bool:
        """Whether nodes were created since the last call of `begin` or `created`."""
        return node_count() > self._bounds[-1]

    def begin(self, creator: Creator | None) -> None:
        """The nodes created from here on are this creator's, until another one begins."""
        self._bounds.append(node_count())
        self._creators.append(creator)

    def created(self, creator: Creator) -> None:
        """The nodes created since the last call are this creator's."""
        made = node_count()
        if made > self._bounds[-1]:
            self._creators[-1] = creator
            self._bounds.append(made)
            self._creators.append(None)

    def find(self, number: int) -> Creator | None:
        """The creator of a node by its number; None if it is not known."""
        index = bisect_right(self._bounds, number) - 1
        return self._creators[index] if index >= 0 else None

    def of(self, node: Node) -> Creator | None:
        return self.find(node_number(node))


class Reached(NamedTuple):
    """A node of a graph, and the one through which it was reached first."""

    node: Node
    through: Node | None


def walk(
    roots: Iterable[Node | None],
    is_wanted: Callable[[Node], bool],
    *,
    nearest_first: bool = False,
) -> Iterator[tuple[Node, Node | None]]:
    """The wanted nodes that a backward from these roots runs, users before creators.

    The walk does not go beyond a node that is not wanted. `is_wanted` is called whenever a node is
    reached, so it must return True only once per node. With `nearest_first`, nodes come in the
    order of their distance from the roots.
    """
    waiting = deque[tuple[Node, Node | None]]((node, None) for node in roots if node is not None)
    while waiting:
        reached = waiting.popleft() if nearest_first else waiting.pop()
        node = reached[0]
        if is_wanted(node):
            yield reached
            waiting.extend(
                (before, node) for before, _ in node.next_functions if before is not None
            )


def nodes_behind(
    tensors: Iterable[torch.Tensor] = (),
    roots: Iterable[Node | None] = (),
    *,
    nearest_first: bool = False,
) -> Iterator[Reached]:
    """All nodes that a backward from these tensors or nodes runs, each once."""
    seen: set[Node] = set()

    def is_first_time(node: Node) -> bool:
        is_first = node not in seen
        seen.add(node)
        return is_first

    starts = (*(tensor.grad_fn for tensor in tensors), *roots)
    found = walk(starts, is_first_time, nearest_first=nearest_first)
    return (Reached(*both) for both in found)


class NewNodes:
    """Finds the nodes that this thread creates from here on, each once. It holds none of them."""

    def __init__(self) -> None:
        self._first = node_count()
        self._found: set[int] = set()

    def is_new(self, node: Node) -> bool:
        """Whether a node was created since then and was not found yet."""
        number = node_number(node)
        return self._first <= number != UNNUMBERED and number not in self._found

    def behind(self, tensors: Iterable[torch.Tensor]) -> Iterator[Node]:
        """The new nodes that these tensors come from."""
        return (node for node, _ in walk((t.grad_fn for t in tensors), self._find))

    def _find(self, node: Node) -> bool:
        is_new = self.is_new(node)
        if is_new:
            self._found.add(node_number(node))
        return is_new


_ADDS_TO_LEAF = "torch::autograd::AccumulateGrad"


def leaves_among(nodes: Iterable[Reached]) -> list[torch.Tensor]:
    """The tensors that a backward through these nodes adds gradients to."""
    return [
        reached.node.variable  # type: ignore[attr-defined]
        for reached in nodes
        if reached.node.name() == _ADDS_TO_LEAF
    ]


def node_name(node: Node) -> str:
    """The name of a node without its namespace: "AddmmBackward0"."""
    return node.name().rpartition("::")[2]


def output_of_node(tensor: torch.Tensor) -> tuple[int, int] | None:
    """The number of the node that a tensor comes from, and which of its outputs it is.

    None for a leaf, and for a tensor without gradients.
    """
    node = tensor.grad_fn
    return None if node is None else (node_number(node), tensor.output_nr)


class HookHandles:
    """The hooks that one observer has put on nodes and tensors."""

    def __init__(self) -> None:
        self._handles: list[Any] = []

    def add(self, *handles: Any) -> None:
        self._handles += handles

    def around(
        self,
        node: Node,
        before: Callable[[Gradients], None],
        after: Callable[[Gradients, Gradients], None],
    ) -> None:
        """Call these right before and right after a node runs."""
        self._handles += node.register_prehook(before), node.register_hook(after)

    def drop_freed(self) -> None:
        """Forget the hooks of nodes that no longer exist."""
        self._handles = [each for each in self._handles if each.hooks_dict_ref() is not None]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


class GradientReceiver(Protocol):
    """What a `GradientHook` reports to."""

    def take_gradient(self, hook: Any, gradient: torch.Tensor) -> None:
        """The gradient of a hook's tensor has been computed."""

    def notice_backward(self) -> None:
        """A backward has begun."""

    def gradient_missed(self, problem: Exception) -> None:
        """Our own error: the gradient was not recorded."""


class GradientHook:
    """Reports the gradient of one tensor to a receiver, as long as that is alive.

    Everything that a subclass knows about the tensor is in this one object: thousands of them live
    through a step, and every garbage collection visits all their contents.
    """

    __slots__ = ("_receiver", "_source", "_version")

    def __init__(
        self, receiver: weakref.ref[GradientReceiver], tensor: torch.Tensor, version: int
    ) -> None:
        self._receiver = receiver
        self._source = _source_of(tensor)
        self._version = version

    def is_of(self, tensor: torch.Tensor, version: int) -> bool:
        """Whether it is waiting for the gradient of a tensor in its current state."""
        return self._version == version and self._source == _source_of(tensor)

    def __call__(self, gradient: torch.Tensor | None) -> None:
        receiver = self._receiver()
        # If a node has several outputs and nothing used this one, there is no gradient.
        if receiver is not None and gradient is not None:
            try:
                receiver.take_gradient(self, gradient)
            except Exception as problem:  # noqa: BLE001 - no error of ours may stop a backward
                receiver.gradient_missed(problem)


def _source_of(tensor: torch.Tensor) -> tuple[object, ...]:
    """What tells a tensor from others with the same id: its node, or the memory of a leaf."""
    return output_of_node(tensor) or view_of(tensor)


def saved_tensors(node: Any) -> NamedTensors:
    """The tensors that a node keeps for its backward, by name, as far as they can be read."""
    kind: type = type(node)
    for name in _saved_names(kind):
        try:
            saved = getattr(node, name)
        except RuntimeError:
            # Overwritten since, or freed: the backward itself will say so.
            continue
        yield from ((name.removeprefix(SAVED_PREFIX), tensor) for tensor in iter_tensors(saved))


@functools.lru_cache(maxsize=4096)
def _saved_names(kind: type) -> tuple[str, ...]:
    """The attributes that hold what nodes of a class have saved."""
    return tuple(
        name for name in dir(kind) if name.startswith(SAVED_PREFIX) or name == "saved_tensors"
    )


def is_user_function(node: Any) -> bool:
    """Whether a node is the backward of a user's own `torch.autograd.Function`."""
    return isinstance(node, FunctionNode)


def sum_of_outputs(output: Any) -> torch.Tensor:
    """The sum of all outputs that require a gradient; for complex outputs, of both parts."""
    sums = [
        total
        for place, tensor in named_tensors(output)
        if tensor.requires_grad
        for total in _sums(place, tensor)
    ]
    total = sums[0] if sums else torch.zeros(())
    for other in sums[1:]:
        total = total + other
    return total


def _sums(place: str, tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    try:
        if tensor.is_complex():
            yield torch.view_as_real(tensor.resolve_conj()).sum()
        elif tensor.is_nested and tensor.layout is torch.strided:
            yield from (part.sum() for part in tensor.unbind())
        elif tensor.dtype.itemsize == 1:
            # 8-bit floats have no sum.
            yield tensor.float().sum()
        else:
            yield tensor.sum()
    except NotImplementedError as error:
        name = f"output {place}" if place else "the output"
        raise CaptureError(
            f"backward cannot start: torch cannot sum {name} ({tensor.dtype}, {tensor.layout}). "
            "Pass loss=, a function of the output, or backward=False."
        ) from error


def retried_with_gradients(run: Callable[..., Result]) -> Callable[..., Result]:
    """Call a function that runs a model without gradients once more with `gradients=True`.

    A forward may compute gradients itself, as a force field does from its energy. Others run
    without gradients, as in inference, where some modules have faster paths.
    """

    @functools.wraps(run)
    def called(*args: Any, **kwargs: Any) -> Result:
        try:
            return run(*args, **kwargs)
        except (RuntimeError, AttributeError) as error:
            if not torch.is_grad_enabled() or not _misses_gradients(error):
                raise
        return run(*args, **kwargs, gradients=True)

    return called


def _misses_gradients(error: Exception) -> bool:
    return any(words in str(error) for words in _MISSES_GRADIENTS)


_MISSES_GRADIENTS = (
    "does not require grad",
    "doesn't require grad",
    "requires_grad=False",
    "'NoneType' object has no attribute 'next_functions'",
)
"""The messages of torch if a forward takes a gradient without a graph."""

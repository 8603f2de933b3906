"""Recomputes results that a later op overwrote, instead of copying them first.

A copy lies in memory that the process has not touched yet, and to be given that costs many times
what copying does. What a batch norm made of a convolution's result, which is saved, has no need of
one before a ReLU writes over it: running the batch norm again gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from torchglass.capture.hidden_from_modes import quietly
from torchglass.capture.tensor.memory_extent import copy_of, has_memory
from torchglass.capture.trace.op_mode import OpEvent
from torchglass.errors import CaptureError

Key = tuple[int, int]
"""The number of an event, and which of its results."""

WORTH_IT = 1 << 18
"""Smaller results, in bytes, are copied: that takes no longer than finding out."""
_SMALL = 8
"""The arguments that a recipe has to copy are together so many times smaller than the result."""
_LONGEST = 2
"""As many ops are run again for one result; at the end of a longer row is a copy."""
_ADDITIONS = frozenset(
    {torch.add, torch.Tensor.add, torch.Tensor.add_, torch.Tensor.__add__, torch.Tensor.__iadd__}
)


class Ingredient(NamedTuple):
    """An argument that is itself a result of the pass."""

    key: Key
    tensor: torch.Tensor
    version: int
    length: int
    """How many ops have to be run again to make it; 0 if it is there."""

    def unchanged(self) -> torch.Tensor:
        """The tensor, unless somebody wrote into it after the pass."""
        if self.tensor._version != self.version:
            raise CaptureError(
                "this tensor is made again of another one, into which somebody wrote after the "
                "pass: look at it before that, or name it in `save`"
            )
        if not has_memory(self.tensor):
            raise CaptureError(
                "this tensor is made again of another one, whose memory was freed after the pass: "
                "look at it before that, or name it in `save`"
            )
        return self.tensor


class Recipe(NamedTuple):
    """An op to run again. The tensors among its arguments are ingredients, or copies."""

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    writes: bool
    """Whether it writes into its arguments."""
    length: int
    """How many ops have to be run again, one on what the other made."""


class Overwritten(Mapping[Key, torch.Tensor]):
    """The results that were written over later, as they were when they were made."""

    def __init__(self) -> None:
        self._copies: dict[Key, torch.Tensor] = {}
        self._recipes: dict[Key, Recipe] = {}

    def keep(self, key: Key, tensor: torch.Tensor, recipe: Recipe | None = None) -> None:
        """Keep how a result is made again; a copy of it, if that is not known."""
        if recipe is None:
            self._copies[key] = copy_of(tensor)
        else:
            self._recipes[key] = recipe

    def length(self, key: Key) -> int:
        """How many ops have to be run again for a result."""
        recipe = self._recipes.get(key)
        return 0 if recipe is None else recipe.length

    def __getitem__(self, key: Key) -> torch.Tensor:
        recipe = self._recipes.get(key)
        if recipe is not None:
            self._copies[key] = self._follow(recipe)
            self._recipes.pop(key, None)
        return self._copies[key]

    def __contains__(self, key: object) -> bool:
        return key in self._copies or key in self._recipes

    def __iter__(self) -> Iterator[Key]:
        yield from list(self._copies)
        yield from list(self._recipes)

    def __len__(self) -> int:
        return len(self._copies) + len(self._recipes)

    def _follow(self, recipe: Recipe) -> torch.Tensor:
        def given(argument: Any) -> Any:
            if not isinstance(argument, Ingredient):
                return argument
            tensor = self[argument.key] if argument.key in self else argument.unchanged()
            return tensor.clone() if recipe.writes else tensor

        args = map(given, recipe.args)
        kwargs = {name: given(argument) for name, argument in recipe.kwargs.items()}
        with quietly(), torch.no_grad():
            made: torch.Tensor = recipe.function(*args, **kwargs)
        return made


def recipe_for(
    event: object, known: Callable[[torch.Tensor], Ingredient | torch.Tensor | None]
) -> Recipe | None:
    """How the result of an event is made again; None if it should rather be copied.

    `known` gives an argument as the event saw it: as an ingredient if the pass made it, itself if
    it is from outside and the pass left it alone, None if neither is sure.
    """
    if type(event) is not OpEvent or not _gives_the_same_again(event):
        return None
    output = event.output
    if type(output) is not torch.Tensor or not output.is_cpu or output.nbytes < WORTH_IT:
        return None
    if not any(type(one) is torch.Tensor and one.dtype is output.dtype for one in event.args):
        # What of integers and a number comes to is a matter of torch's default dtype.
        return None
    room = output.nbytes // _SMALL
    length = 1
    arguments: list[Any] = []
    for argument in (*event.args, *event.kwargs.values()):
        taken = known(argument) if isinstance(argument, torch.Tensor) else argument
        if isinstance(taken, Ingredient):
            length = max(length, taken.length + 1)
        elif isinstance(argument, torch.Tensor):
            room -= argument.nbytes
            if taken is None or room < 0:
                return None
            taken = argument.detach().clone()
        arguments.append(taken)
    if length > _LONGEST:
        return None
    args, named = arguments[: len(event.args)], arguments[len(event.args) :]
    kwargs = dict(zip(event.kwargs, named, strict=True))
    return Recipe(event.function, args, kwargs, bool(event.written), length)


def _gives_the_same_again(event: OpEvent) -> bool:
    """Whether running an op again takes little and gives the very same numbers on the CPU."""
    if event.autocast or "out" in event.kwargs:
        return False
    if event.function is functional.batch_norm:
        return not any(event.args[5:6] or (event.kwargs.get("training"),))
    return event.function in _ADDITIONS

"""An optimizer step that changes neither the user's parameters nor the user's optimizer."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from torchglass.capture.nested_tensors import named_tensors
from torchglass.capture.torch_internals import OPTIMIZER_HOOK_TABLES, tree_map_only
from torchglass.errors import CaptureError

Making = str | Optimizer | Callable[[Iterable[nn.Parameter]], Optimizer]
"""An optimizer by its name in torch.optim, as an instance, or as what makes one of parameters."""


class _Trained(NamedTuple):
    """A parameter that the optimizer would change."""

    own: nn.Parameter
    """The copy that it changes instead."""
    original: torch.Tensor
    """The one that the model runs on."""
    users: torch.Tensor
    """The one that the user's optimizer knows; the original may be a fake of it."""


class Twin:
    """An optimizer over copies of parameters, which takes their gradients from the originals."""

    def __init__(
        self,
        making: Making,
        originals: Sequence[torch.Tensor],
        users: Sequence[torch.Tensor],
    ) -> None:
        self._trained = [
            _Trained(nn.Parameter(original.detach().clone()), original, user)
            for original, user in zip(originals, users, strict=True)
            if original.requires_grad
        ]
        self._optimizer = _made(making, self._trained)

    @property
    def name(self) -> str:
        """The class of the optimizer."""
        return type(self._optimizer).__name__

    @property
    def copies(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """What it changes, and what each of those stands for."""
        return ((trained.own, trained.original) for trained in self._trained)

    def take_gradients(self) -> None:
        """Let the copies have the gradients that a backward gave to their originals."""
        for trained in self._trained:
            trained.own.grad = trained.original.grad

    def drop_gradients(self) -> None:
        """Hold no gradient any longer, as the next step would free them before its forward."""
        for trained in self._trained:
            trained.own.grad = None

    def step(self) -> None:
        """Step as the optimizer does."""
        self._optimizer.step()

    def state(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The tensors that it keeps from step to step, each with the parameter it is for."""
        originals = {id(trained.own): trained.original for trained in self._trained}
        for own, state in self._optimizer.state.items():
            for _, tensor in named_tensors(state):
                yield tensor, originals[id(own)]


def _made(making: Making, trained: Sequence[_Trained]) -> Optimizer:
    if isinstance(making, Optimizer):
        return _like(making, {id(one.users): one.own for one in trained})
    make = optimizer_named(making) if isinstance(making, str) else making
    made = make([one.own for one in trained])
    if not isinstance(made, Optimizer):
        raise CaptureError(f"{making!r} made a {type(made).__name__}, which is not an optimizer")
    return made


def optimizer_named(name: str) -> Callable[[Iterable[nn.Parameter]], Optimizer]:
    """The class in torch.optim that has a name, in capitals or not."""
    kinds = {
        kind.lower(): found
        for kind, found in vars(torch.optim).items()
        if isinstance(found, type) and issubclass(found, Optimizer) and found is not Optimizer
    }
    if name.lower() not in kinds:
        raise CaptureError(f"torch.optim has no {name!r}; it has {', '.join(sorted(kinds))}")
    kind: Callable[[Iterable[nn.Parameter]], Optimizer] = kinds[name.lower()]
    return kind


def _like(original: Optimizer, own: Mapping[int, nn.Parameter]) -> Optimizer:
    """An optimizer with the settings and state of another, for the copies of its parameters."""
    twin = object.__new__(type(original))
    # A scheduler puts a `step` on the instance, which would be the original's.
    twin.__dict__.update({name: value for name, value in vars(original).items() if name != "step"})
    twin.__dict__.update({name: OrderedDict() for name in OPTIMIZER_HOOK_TABLES})
    twin.param_groups = [
        {**group, "params": [own[id(p)] for p in group["params"] if id(p) in own]}
        for group in original.param_groups
    ]
    twin.state = defaultdict(dict)
    for parameter, state in original.state.items():
        if id(parameter) in own:
            twin.state[own[id(parameter)]] = _copied(state)
    return twin


def _copied(state: Any) -> Any:
    return tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), state)

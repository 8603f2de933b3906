"""A training step of a hard model, and what must be the same of it with us and without us."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from tests.hard import forwards
from torchglass.capture.autograd import sum_of_outputs

KNOWN_WARNINGS = [
    pytest.mark.filterwarnings("ignore:dropout option adds dropout:UserWarning"),
    pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning"),
    # What a reentrant checkpoint says wherever it runs without gradients.
    pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning"),
]

Loss = Callable[[Any], torch.Tensor]


def tensors(nest: Any) -> list[torch.Tensor]:
    """All tensors of an output, whatever holds them."""
    found: list[torch.Tensor] = []
    for leaf in tree_leaves(nest):
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        elif isinstance(leaf, forwards.Slotted):
            found.append(leaf.logits)
        elif hasattr(leaf, "__dict__") and not isinstance(leaf, nn.Module):
            found += tensors(vars(leaf))
    return found


def ready(name: str) -> nn.Module:
    """A hard model with all its weights."""
    model = forwards.make(name)
    if name.startswith("lazy"):
        # Its first forward draws its weights, which makes it another model than the later ones.
        model(torch.randn(4, 4))
    return model


def anatomy(model: nn.Module) -> list[tuple[type, list[str], list[int]]]:
    """The classes, attributes and numbers of hooks of all modules."""
    return [
        (
            type(module),
            sorted(vars(module)),
            [len(hooks) for name, hooks in vars(module).items() if name.endswith("_hooks")],
        )
        for module in model.modules()
    ]


def go_back(output: Any) -> None:
    """The backward of all of an output that has one."""
    losses = [tensor.abs().sum() for tensor in tensors(output) if tensor.requires_grad]
    if losses:
        torch.autograd.backward(sum(losses, torch.zeros(())))


def left_by_step(
    model: nn.Module,
    around: AbstractContextManager[Any] | None = None,
    forward: Callable[[torch.Tensor], Any] | None = None,
) -> list[torch.Tensor]:
    """All that a step leaves behind: outputs, gradients, weights, buffers and random numbers."""
    x = torch.randn(4, 4, requires_grad=True)
    torch.manual_seed(1)
    with around or nullcontext():
        output = (forward or model)(x)
        go_back(output)
        gradients = [t.grad.clone() for t in (x, *model.parameters()) if t.grad is not None]
        if any(True for _ in model.parameters()):
            torch.optim.Adam(model.parameters(), foreach=True).step()
    left = [*tensors(output), *gradients, *model.parameters(), *model.buffers(), torch.rand(3)]
    # What an output refers to may be a weight, which the update has changed.
    return [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in left]


def assert_same(plain: list[torch.Tensor], other: list[torch.Tensor]) -> None:
    """Bit for bit, and with a gradient to come where there was one."""
    assert len(plain) == len(other)
    for one, another in zip(plain, other, strict=True):
        assert torch.equal(one, another)
        assert one.requires_grad == another.requires_grad


def assert_training_goes_on_after(name: str, look: Callable[[nn.Module], object]) -> None:
    """Looking at a model changes neither it nor the random numbers that come next."""
    plain = left_by_step(ready(name))

    model = ready(name)
    state = torch.get_rng_state()
    look(model)
    assert torch.equal(state, torch.get_rng_state())
    after = left_by_step(model)

    assert_same(plain, after)


def assert_runs_are_plain(
    model: nn.Module, x: torch.Tensor, run: Callable[[Loss], object]
) -> list[list[torch.Tensor]]:
    """Each step that a function runs has the outputs and gradients of a plain one; its outputs."""

    def step(loss: Loss) -> None:
        total = loss(model(x.clone()))
        if total.requires_grad:
            torch.autograd.backward(total)

    # A model with state starts from it again in each of our runs, and not after a plain step.
    outputs, gradients = _numbers(model, run)
    (plain,), plain_gradients = _numbers(model, step)

    for output in outputs:
        assert [tensor.shape for tensor in output] == [tensor.shape for tensor in plain]
        assert all(map(torch.equal, output, plain))
    for path, found in plain_gradients.items():
        # A forward that takes gradients itself has several in each run.
        assert all(map(torch.equal, gradients[path], itertools.cycle(found)))
    return outputs


def _numbers(
    model: nn.Module, run: Callable[[Loss], object]
) -> tuple[list[list[torch.Tensor]], dict[str, list[torch.Tensor]]]:
    """The outputs and gradients of each step that a function runs with a loss."""
    outputs: list[list[torch.Tensor]] = []
    gradients: dict[str, list[torch.Tensor]] = {}

    def loss(output: Any) -> torch.Tensor:
        outputs.append([tensor.detach().clone() for tensor in tensors(output)])
        return sum_of_outputs(output)

    handles = [
        parameter.register_hook(gradients.setdefault(name, []).append)  # type: ignore[no-untyped-call]
        for name, parameter in model.named_parameters()
    ]
    torch.manual_seed(1)
    run(loss)
    for handle in handles:
        handle.remove()
    return outputs, gradients

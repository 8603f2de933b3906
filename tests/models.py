"""A zoo of small models, each with one thing about it that a reader of models can get wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations


class Written(nn.Module):
    """A module whose forward is a function of the test."""

    def __init__(
        self, forward: Callable[..., Any], members: Mapping[str, Any] | None = None, **named: Any
    ) -> None:
        super().__init__()
        for name, member in {**(members or {}), **named}.items():
            setattr(self, name, member)
        self._forward = forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._forward(self, *args, **kwargs)


def train(model: nn.Module, watcher: Any, steps: int, *, lr: float = 0.1) -> None:
    """Train a model of three inputs for a few steps, and log its loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(steps):
        loss = model(torch.eye(4, 3)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)


class NamedLikeOptions(nn.Module):
    """A forward whose arguments have the names of options of the verbs."""

    def forward(
        self, x: Any, *, target: Any = 0, backward: Any = 0, loss: Any = 0, against: Any = 0
    ) -> Any:
        return x + target + backward + loss + against


class TiedLanguageModel(nn.Module):
    """An output layer that shares its weight with the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 16)
        self.body = nn.Linear(16, 16)
        self.head = nn.Linear(16, 100, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.body(self.embed(tokens)))
        return logits


class SharedBlock(nn.Module):
    """One block under two names, as ALBERT shares its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.second = self.first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(self.first(x))
        return out


class ContainsItself(nn.Module):
    """A child that holds its parent, which makes the tree a circle."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.child = nn.Sequential(nn.Linear(3, 3))
        self.child.add_module("parent", self)


class Branching(nn.Module):
    """An expert that a router and a list both hold, and a weight that crosses between branches."""

    def __init__(self) -> None:
        super().__init__()
        expert = nn.Linear(3, 3)
        self.experts = nn.ModuleList([nn.Linear(3, 3), expert])
        self.router = nn.ModuleDict({"gate": nn.Linear(3, 2), "best": expert})
        self.out = nn.Linear(3, 3)
        self.out.bias = self.experts[0].bias  # type: ignore[assignment]


class Counter(nn.Module):
    """A buffer that is saved and one that is not, and a frozen weight beside a trained one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("cache", torch.zeros(8), persistent=False)
        self.register_buffer("absent", None)
        self.register_parameter("missing", None)
        self.trained = nn.Parameter(torch.zeros(3))
        self.frozen = nn.Parameter(torch.zeros(5), requires_grad=False)


class BrokenExtra(nn.Module):
    """Its `extra_repr` raises, with a message of two lines."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(7))
        self.inner = nn.Linear(2, 2)

    def extra_repr(self) -> str:
        raise ValueError("no config\nhas been set")


class Hostile(nn.Module):
    """All that Python lets a class override lies or raises."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(7))
        self.inner = nn.Linear(2, 2)

    def __repr__(self) -> str:
        raise RuntimeError("not to be shown")

    def __len__(self) -> int:
        raise RuntimeError("not to be measured")

    def __bool__(self) -> bool:
        raise RuntimeError("not to be judged")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not to be compared")

    def __hash__(self) -> int:
        raise RuntimeError("not to be hashed")

    @property
    def device(self) -> torch.device:
        raise RuntimeError("not to be asked")

    def named_modules(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("not to be walked")

    def state_dict(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("not to be saved")


class Uninitialized(nn.Module):
    """Its author forgot `super().__init__()`."""

    def __init__(self) -> None:
        pass


class Pipeline:
    """Not a module, but an object that holds some, as a diffusers pipeline does."""

    def __init__(self) -> None:
        self.unet = nn.Sequential(nn.Conv2d(3, 4, 3))
        self.components = {"vae": nn.Linear(2, 3), "unet": self.unet, "scheduler": object()}
        self.stages = [nn.Linear(1, 1), nn.Linear(1, 2)]
        self.name = "small"

    @property
    def device(self) -> torch.device:
        raise RuntimeError("a property that must not be read")


def deep(depth: int) -> nn.Module:
    """A module inside a module, so many times, and a linear layer at the bottom."""
    model: nn.Module = nn.Linear(2, 2)
    for _ in range(depth):
        model = nn.Sequential(model)
    return model


def wide(modules: int) -> nn.Module:
    """Linear layers in groups of nine, about so many modules in all."""
    groups = [nn.Sequential(*[nn.Linear(2, 2) for _ in range(9)]) for _ in range(modules // 10)]
    return nn.Sequential(*groups)


def weight_norm() -> nn.Module:
    """A linear layer whose weight is computed from two others."""
    layer: nn.Module = parametrizations.weight_norm(nn.Linear(4, 3))
    return layer


def hostile_names() -> nn.Module:
    """Names that are markup, paths or nothing."""
    model = nn.Module()
    for name in ("[bold]", "<b>", "a\nb", "", "ü", "__class__x"):
        model._modules[name] = nn.Linear(1, 1)
    model._modules["with.dots"] = nn.Linear(1, 1)
    model._modules["none"] = None
    return model


def all_hooks(hook: Callable[..., None]) -> nn.Module:
    """A layer with a hook of each kind that runs with the model."""
    layer = nn.Linear(2, 2)
    layer.register_forward_pre_hook(hook)
    layer.register_forward_hook(hook)
    layer.register_full_backward_pre_hook(hook)
    layer.register_full_backward_hook(hook)
    return layer


def state_of(model: nn.Module) -> dict[str, Any]:
    """What looking at a model must not change: attributes, hooks, flags and versions of tensors."""
    held: dict[str, Any] = {}
    for path, module in nn.Module.named_modules(model):
        for name, value in vars(module).items():
            kept = dict(value) if isinstance(value, dict) else value
            held[f"{path}:{name}"] = kept if not isinstance(kept, dict) else _described(kept)
    return held


def _described(items: dict[Any, Any]) -> dict[Any, Any]:
    return {
        key: (id(value), value._version, value.requires_grad, value.grad is None)
        if isinstance(value, torch.Tensor)
        else id(value)
        for key, value in items.items()
    }

"""Healthy trainings of models that start switched off, shared, pruned or constrained."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from benchmarks.diagnosis.cases import Watch, fit, functional, healthy
from benchmarks.diagnosis.data import clusters, images, pairs, sentences
from benchmarks.diagnosis.holdout.healthy_optimizers import unlogged_fit
from benchmarks.diagnosis.holdout.models import (
    Llama,
    PreActNet,
)
from benchmarks.diagnosis.holdout.tasks import (
    in_epochs,
    next_token,
    table,
)

FAMILY = "activations"


@healthy(family=FAMILY, on="GPT")
def head_shares_the_embedding(watch: Watch) -> None:
    """The output layer is the embedding."""
    model = Llama(tied=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    fit(watch, model, optimizer, sentences(70), next_token)


class Adapter(nn.Module):
    """A frozen layer with a product of two small matrices, of which one starts at 0."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Any:
        return self.base(x) + 2 * functional.linear(functional.linear(x, self.a), self.b)


@healthy(family=FAMILY, on="GPT")
def adapters_of_low_rank(watch: Watch) -> None:
    """LoRA on a frozen model: B is 0, so A gets no gradient in the first step."""
    model = Llama().requires_grad_(False)
    for layer in model.layers:
        block: Any = layer
        block.attn.qkv = Adapter(block.attn.qkv)
        block.down = Adapter(block.down)
    model.lm_head.requires_grad_(True)
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=1e-2)
    fit(watch, model, optimizer, sentences(70), next_token)


class ReZero(nn.Module):
    """Residual branches that are multiplied by a scalar which starts at 0."""

    def __init__(self, depth: int = 6, width: int = 32) -> None:
        super().__init__()
        self.inp = nn.Linear(16, width)
        self.branches = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
            for _ in range(depth)
        )
        self.scales = nn.ParameterList(torch.zeros(1) for _ in range(depth))
        self.out = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Any:
        h = self.inp(x)
        for scale, branch in zip(self.scales, self.branches, strict=True):
            h = h + scale * branch(h)
        return self.out(h)


@healthy(family=FAMILY, on="residual MLP")
def branches_start_switched_off(watch: Watch) -> None:
    """ReZero: in the first step the branches get no gradient."""
    model = ReZero()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    fit(watch, model, optimizer, clusters(60))


@healthy(family=FAMILY, on="CNN")
def last_convolution_of_each_block_starts_at_zero(watch: Watch) -> None:
    """Blocks start as the identity: their last convolution is 0."""
    model = PreActNet()
    for stage in model.stages:
        nn.init.zeros_(stage.conv2.weight)  # type: ignore[union-attr, arg-type]
        nn.init.zeros_(stage.conv2.bias)  # type: ignore[union-attr, arg-type]
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    in_epochs(watch, model, optimizer, images, functional.cross_entropy, 3, 20)


class GatedCross(nn.Module):
    """Adds what is seen through a gate of tanh(0)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(16, 32)
        self.side = nn.Linear(16, 32)
        self.gate = nn.Parameter(torch.zeros(1))
        self.out = nn.Linear(32, 16)

    def forward(self, x: Tensor, side: Tensor) -> Any:
        h = functional.gelu(self.body(x))
        return self.out(h + torch.tanh(self.gate) * functional.gelu(self.side(side)))


@healthy(family=FAMILY, on="two towers")
def gate_that_starts_closed(watch: Watch) -> None:
    """A tanh gate at 0 lets nothing of the second input in, at first."""
    model = GatedCross()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    watcher = watch(model)
    for x, y in pairs(80):
        loss = functional.mse_loss(model(x, y), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


class Highway(nn.Module):
    """Highway layers whose gates start at sigmoid(-3)."""

    def __init__(self, depth: int = 6, width: int = 32) -> None:
        super().__init__()
        self.inp = nn.Linear(16, width)
        self.transform = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.carry = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        for layer in self.carry:
            nn.init.constant_(layer.bias, -3)  # type: ignore[arg-type]
        self.out = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Any:
        h = self.inp(x)
        for transform, carry in zip(self.transform, self.carry, strict=True):
            gate = torch.sigmoid(carry(h))
            h = gate * torch.relu(transform(h)) + (1 - gate) * h
        return self.out(h)


@healthy(family=FAMILY, on="MLP")
def highway_gates_start_almost_closed(watch: Watch) -> None:
    """Gates of 0.05 by design."""
    model = Highway()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    fit(watch, model, optimizer, clusters(60))


@healthy(family=FAMILY, on="MLP")
def weight_norm_by_parametrization(watch: Watch) -> None:
    """Weights are made of a direction and a length at each forward."""
    model = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(8, 48)),
        nn.ReLU(),
        parametrizations.weight_norm(nn.Linear(48, 1)),
        nn.Flatten(0),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    fit(watch, model, optimizer, table(80), functional.huber_loss)


@healthy(family=FAMILY, on="MLP")
def orthogonal_weights_by_parametrization(watch: Watch) -> None:
    """A hidden weight that stays orthogonal."""
    model = nn.Sequential(
        nn.Linear(16, 24),
        nn.Tanh(),
        parametrizations.orthogonal(nn.Linear(24, 24)),
        nn.Tanh(),
        nn.Linear(24, 4),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    fit(watch, model, optimizer, clusters(60))


@healthy(family=FAMILY, on="CNN")
def nine_of_ten_weights_are_pruned(watch: Watch) -> None:
    """Fine-tuning of a pruned network: 90 % of the weights are 0 and stay so."""
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(256, 64),
        nn.ReLU(),
        nn.Linear(64, 4),
    )
    unlogged_fit(model, images(20), lr=2e-3)
    cut: Any = prune.l1_unstructured
    cut(model[4], "weight", 0.9)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    fit(watch, model, optimizer, images(60))

"""Trainings whose activations are dead, saturated, growing, identical or collapsed."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.diagnosis.cases import Watch, fit, functional, planted
from benchmarks.diagnosis.data import clusters, curve, images, pairs, sentences, waves
from benchmarks.diagnosis.holdout.models import (
    GraphNet,
    GRUTagger,
    Llama,
    PreActNet,
    ResidualMLP,
    TopTwoMixture,
    UNet,
)
from benchmarks.diagnosis.holdout.tasks import blobs, graphs, in_epochs, next_token, reviews, tags

FAMILY = "activations"


@planted("dead-units", at=("mlp.[01]", "mlp.1.*"), family=FAMILY, on="MLP")
def bias_far_below_zero(watch: Watch) -> None:
    """The hidden bias was loaded with the wrong sign: -8, and the ReLU gives only zeros."""
    hidden: Any = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    model = nn.ModuleDict({"mlp": hidden, "head": nn.Linear(64, 4)})
    nn.init.constant_(hidden[0].bias, -8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    watcher = watch(model)
    for x, y in clusters(60):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model["head"](model["mlp"](x)), y)
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted(
    "dead-units",
    at=("middle.[1-4]", "middle", "up2*", "down2*"),
    family=FAMILY,
    on="U-Net",
)
def shift_of_the_norm_kills_the_relu(watch: Watch) -> None:
    """The shift of a group norm was set to -6: the ReLU behind it is 0 for all pixels."""
    model = UNet()
    middle: Any = model.middle
    nn.init.constant_(middle[1].bias, -6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loss_function = functional.binary_cross_entropy_with_logits
    in_epochs(watch, model, optimizer, blobs, loss_function, 3, 15)


@planted("dead-units", at=("stages.*", "", "norm", "conv"), family=FAMILY, on="CNN")
def functional_relu_after_a_large_first_step(watch: Watch) -> None:
    """The norms of all blocks were initialized with bias -5; the ReLUs are functions."""
    model = PreActNet()
    for stage in model.stages:
        nn.init.constant_(stage.norm1.bias, -5)  # type: ignore[union-attr, arg-type]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    fit(watch, model, optimizer, images(50))


@planted("saturated", at=("", "[0-9]"), family=FAMILY, on="MLP")
def tanh_units_with_huge_weights(watch: Watch) -> None:
    """Weights of normal(0, 20) and (0, 5): every tanh is at -1 or 1."""
    first, second = nn.Linear(8, 64), nn.Linear(64, 64)
    nn.init.normal_(first.weight, std=20)
    nn.init.normal_(second.weight, std=5)
    model = nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    fit(watch, model, optimizer, curve(50), functional.mse_loss)


class HandGRU(nn.Module):
    """A gated cell written by hand."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.width = width
        self.gates = nn.Linear(2 + width, 2 * width)
        self.candidate = nn.Linear(2 + width, width)
        self.out = nn.Linear(width, 1)
        nn.init.uniform_(self.gates.weight, -60, 60)
        nn.init.uniform_(self.candidate.weight, -60, 60)

    def forward(self, x: Tensor) -> Any:
        h = torch.zeros(len(x), self.width)
        for t in range(x.shape[1]):
            reset, keep = torch.sigmoid(self.gates(torch.cat([x[:, t], h], -1))).chunk(2, -1)
            new = torch.tanh(self.candidate(torch.cat([x[:, t], reset * h], -1)))
            h = keep * h + (1 - keep) * new
        return self.out(h)


@planted("saturated", at=("", "gates", "candidate"), family=FAMILY, on="GRU")
def gates_of_a_hand_written_cell_are_saturated(watch: Watch) -> None:
    """Weights of uniform(-60, 60): gates are 0 or 1, the candidate is -1 or 1."""
    model = HandGRU()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    fit(watch, model, optimizer, waves(40, length=10), functional.mse_loss)


class UnscaledAttention(nn.Module):
    """Attention without the division by the square root of the width."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, width)
        self.position = nn.Parameter(torch.randn(12, width))
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)
        self.v = nn.Linear(width, width)
        self.head = nn.Linear(width, 16)
        for layer in (self.q, self.k):
            nn.init.normal_(layer.weight, std=0.6)

    def forward(self, tokens: Tensor) -> Any:
        x = self.embed(tokens) + self.position
        scores = self.q(x) @ self.k(x).transpose(1, 2)
        future = torch.ones(12, 12).triu(1).bool()
        return self.head(x + scores.masked_fill(future, -1e9).softmax(-1) @ self.v(x))


@planted(
    "attention-collapse",
    "attention-logit-growth",
    "saturated",
    at=("", "q", "k"),
    family=FAMILY,
    on="transformer",
)
def attention_without_its_scale(watch: Watch) -> None:
    """Scores in the thousands, because nothing divides them: each row is one-hot."""
    model = UnscaledAttention()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    fit(watch, model, optimizer, sentences(50), next_token)


@planted(
    "attention-collapse",
    "attention-logit-growth",
    "saturated",
    at=("", "layers.*"),
    family=FAMILY,
    on="GPT",
)
def scale_of_sdpa_is_the_width(watch: Watch) -> None:
    """`scale=` was given 64 where 1/8 is meant, and q and k are large: each row is one-hot."""
    model = Llama(scale=64.0)
    for layer in model.layers:
        nn.init.normal_(layer.attn.qkv.weight, std=0.5)  # type: ignore[union-attr, arg-type]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    fit(watch, model, optimizer, sentences(50), next_token)


class PlainResidual(nn.Module):
    """Residual blocks without a norm."""

    def __init__(self, depth: int = 16, width: int = 32) -> None:
        super().__init__()
        self.inp = nn.Linear(16, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
            for _ in range(depth)
        )
        self.out = nn.Linear(width, 4)
        for block in self.blocks:
            for layer in (block[0], block[2]):  # type: ignore[index]
                nn.init.kaiming_normal_(layer.weight)

    def forward(self, x: Tensor) -> Any:
        h = self.inp(x)
        for block in self.blocks:
            h = h + block(h)
        return self.out(h)


@planted(
    "growing-activations",
    "exploding-gradient",
    at=("", "blocks", "blocks.*", "out"),
    family=FAMILY,
    on="MLP",
)
def residual_stream_without_norms(watch: Watch) -> None:
    """Each of 16 blocks adds a branch larger than its input: the stream grows by thousands."""
    model = PlainResidual()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    fit(watch, model, optimizer, clusters(40))


@planted(
    "growing-activations",
    "exploding-gradient",
    at=("", "inp", "layers", "layers.*", "readout"),
    family=FAMILY,
    on="GNN",
)
def sums_over_neighbors_grow_with_depth(watch: Watch) -> None:
    """Messages of a dense graph are added up and not divided by the degree, over six layers."""
    model = GraphNet(depth=6, mean=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    watcher = watch(model)
    for x, _, labels in graphs(40):
        nodes = torch.arange(len(x))
        edges = torch.cartesian_prod(nodes, nodes).T
        loss = functional.cross_entropy(model(x, edges), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("identical-units", at=("", "[0-9]"), family=FAMILY, on="MLP")
def constant_initialization(watch: Watch) -> None:
    """All weights start at 0.05: the units of each layer stay equal."""
    model = nn.Sequential(
        nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 5)
    )
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.05)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    fit(watch, model, optimizer, tags(60), functional.binary_cross_entropy_with_logits)


@planted("identical-units", at=("", "layers.*"), family=FAMILY, on="GPT")
def ones_in_the_feed_forward_layers(watch: Watch) -> None:
    """The feed-forward projections are filled with one value: all hidden units are equal."""
    model = Llama()
    for layer in model.layers:
        for name in ("gate", "up", "down"):
            nn.init.constant_(getattr(layer, name).weight, 0.02)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    unlogged_steps(watch, model, optimizer)


def unlogged_steps(watch: Watch, model: nn.Module, optimizer: Any) -> None:
    watcher = watch(model)
    for tokens, targets in sentences(60):
        optimizer.zero_grad()
        loss = next_token(model(tokens), targets)
        loss.backward()
        optimizer.step()
        watch.losses.append(float(loss))
    watcher.close()


@planted("constant-output", at=("", "norm"), family=FAMILY, on="MLP")
def layer_norm_over_one_feature(watch: Watch) -> None:
    """LayerNorm(1) on the output: a single value minus its mean is always 0."""
    model = nn.Sequential()
    for name, module in {
        "first": nn.Linear(8, 32),
        "act": nn.SiLU(),
        "second": nn.Linear(32, 1),
        "norm": nn.LayerNorm(1),
    }.items():
        model.add_module(name, module)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    fit(watch, model, optimizer, curve(60), functional.mse_loss)


class OneProbability(nn.Module):
    """A GRU with a probability at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.body = GRUTagger(classes=1)
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, tokens: Tensor) -> Any:
        return self.softmax(self.body(tokens)).squeeze(-1)


@planted("constant-output", "saturated", at=("", "softmax"), family=FAMILY, on="GRU")
def softmax_over_a_single_output(watch: Watch) -> None:
    """A softmax over one value is 1 for every sample."""
    model = OneProbability()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    watcher = watch(model)
    for tokens, labels in reviews(50):
        probability = model(tokens).clamp(1e-4, 1 - 1e-4)
        loss = functional.binary_cross_entropy(probability, (labels > 1).float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("router-collapse", at=("gate", ""), family=FAMILY, on="mixture")
def gate_prefers_one_expert_by_its_bias(watch: Watch) -> None:
    """The gate starts with a bias of 40 for one expert: all tokens go to it."""
    model = TopTwoMixture()
    with torch.no_grad():
        model.gate.bias[1] = 40
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    fit(watch, model, optimizer, clusters(60))


class SwitchLayer(nn.Module):
    """A mixture in which each token goes to one expert, with a loop over the experts."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.router = nn.Linear(width, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width)) for _ in range(4)
        )
        self.out = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Any:
        gates = functional.softmax(self.router(x), dim=-1)
        gate, index = gates.max(-1)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            mine = index == number
            if mine.any():
                y[mine] = expert(x[mine]) * gate[mine, None]
        return self.out(x + y)


@planted("router-collapse", at=("", "router", "experts", "experts.*"), family=FAMILY, on="mixture")
def router_sees_an_offset_far_larger_than_the_signal(watch: Watch) -> None:
    """An offset in the features makes the router send every token to the same expert."""
    model = SwitchLayer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    offset = 12 * model.router.weight[2].detach().clone()
    fit(watch, model, optimizer, ((x + offset, y) for x, y in clusters(60)))


@planted("dropout-drops-all", at=("", "drop"), family=FAMILY, on="residual MLP")
def keep_probability_given_as_dropout(watch: Watch) -> None:
    """`nn.Dropout(0.99)` where 0.99 was the share to keep."""
    model = nn.Sequential()
    model.add_module("drop", nn.Dropout(0.99))
    model.add_module("net", ResidualMLP())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    in_epochs(watch, model, optimizer, clusters, functional.cross_entropy)


class DroppedChannels(nn.Module):
    """Drops whole channels by a function."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 3, padding=1)
        self.fc = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Any:
        h = functional.relu(self.conv(x))
        h = functional.dropout2d(h, p=1.0, training=self.training)
        return self.fc(h.mean((2, 3)))


@planted("dropout-drops-all", "constant-output", at=("", "conv", "fc"), family=FAMILY, on="CNN")
def functional_dropout_of_all_channels(watch: Watch) -> None:
    """`dropout2d(p=1.0)`: every channel is dropped in training."""
    model = DroppedChannels()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    fit(watch, model, optimizer, images(50))


@planted(
    "representation-collapse", "constant-output", at=("", "[0-9]"), family=FAMILY, on="Siamese"
)
def pairs_without_negatives(watch: Watch) -> None:
    """Only the distance of positive pairs is minimized: all embeddings become one point."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    watcher = watch(model)
    for x, _ in clusters(100):
        left, right = x + 0.3 * torch.randn_like(x), x + 0.3 * torch.randn_like(x)
        loss = (model(left) - model(right)).pow(2).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


class TwoViews(nn.Module):
    """Two encoders of two views."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Sequential(nn.Linear(16, 48), nn.Tanh(), nn.Linear(48, 12))
        self.b = nn.Sequential(nn.Linear(16, 48), nn.Tanh(), nn.Linear(48, 12))

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.a(x), self.b(y)


@planted(
    "representation-collapse",
    "constant-output",
    at=("", "a", "b", "a.2", "b.2"),
    family=FAMILY,
    on="Siamese",
)
def agreement_of_two_views_alone(watch: Watch) -> None:
    """Two encoders of noisy views shall agree, and nothing keeps them from a constant."""
    model = TwoViews()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    watcher = watch(model)
    for x, y in pairs(120):
        a, b = model(x + 2 * torch.randn_like(x), y + 2 * torch.randn_like(y))
        loss = functional.mse_loss(a, b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


class Pooled(nn.Module):
    """Attention over a set with a temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.key = nn.Linear(16, 16)
        self.query = nn.Parameter(torch.randn(16))
        self.fc = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Any:
        weights = torch.softmax(self.key(x) @ self.query / (math.sqrt(16) * 1e-3), -1)
        return self.fc((weights[..., None] * x).sum(1))


@planted("attention-collapse", "saturated", at=("", "key", "query"), family=FAMILY, on="attention")
def temperature_of_a_thousandth(watch: Watch) -> None:
    """Scores are divided by 1e-3: the pooling looks at one element, and its key never learns."""
    model = Pooled()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    batches = ((x[:, None] + torch.randn(32, 6, 16), y) for x, y in clusters(50))
    fit(watch, model, optimizer, batches)

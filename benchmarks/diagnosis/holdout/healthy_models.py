"""Healthy trainings of models with unusual parts or starts."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks.diagnosis.cases import Watch, fit, functional, healthy
from benchmarks.diagnosis.data import clusters, curve, images, pairs, sentences, waves
from benchmarks.diagnosis.holdout.models import (
    EncoderBlock,
    GraphNet,
    Llama,
    LlamaBlock,
    MultiTask,
    ResidualMLP,
    RMSNorm,
    TopTwoMixture,
)
from benchmarks.diagnosis.holdout.tasks import (
    graphs,
    in_epochs,
    next_token,
    reviews,
    unlogged,
)

FAMILY = "activations"


class SparseDictionary(nn.Module):
    """A wide ReLU code of which a few units are active."""

    def __init__(self, width: int = 256, keep: int = 16) -> None:
        super().__init__()
        self.keep = keep
        self.enc = nn.Linear(16, width)
        self.act = nn.ReLU()
        self.dec = nn.Linear(width, 16)

    def forward(self, x: Tensor) -> Any:
        code = self.act(self.enc(x))
        least = code.topk(self.keep, -1).values[:, -1:]
        return self.dec(code * (code >= least))


@healthy(family=FAMILY, on="autoencoder")
def code_of_a_few_active_units(watch: Watch) -> None:
    """A sparse autoencoder keeps the 16 largest of 256 units."""
    model = SparseDictionary()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    watcher = watch(model)
    for x, _ in pairs(80):
        loss = functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


class ThresholdUnits(nn.Module):
    """A wide ReLU layer with a bias that keeps nine of ten units at 0 for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(16, 512)
        self.relu = nn.ReLU()
        self.out = nn.Linear(512, 4)
        nn.init.normal_(self.wide.weight, std=0.25)
        nn.init.constant_(self.wide.bias, -1.4)

    def forward(self, x: Tensor) -> Any:
        return self.out(self.relu(self.wide(x)))


@healthy(family=FAMILY, on="MLP")
def nine_of_ten_activations_are_zero(watch: Watch) -> None:
    """Sparse by design: for each sample other units are active."""
    model = ThresholdUnits()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    fit(watch, model, optimizer, clusters(70, batch=128))


class StochasticDepth(ResidualMLP):
    """Skips each block with a probability of one half while training."""

    def forward(self, x: Tensor) -> Any:
        h = self.inp(x)
        for block in self.blocks:
            if not self.training or torch.rand(()) < 0.5:
                h = h + block(h)
        return self.out(self.norm(h))


@healthy(family=FAMILY, on="residual MLP")
def blocks_are_skipped_at_random(watch: Watch) -> None:
    """A skipped block is not called and gets no gradient in this step."""
    model = StochasticDepth()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    in_epochs(watch, model, optimizer, clusters, functional.cross_entropy)


class EarlyExit(nn.Module):
    """Three blocks with a classifier behind each."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(3))
        self.exits = nn.ModuleList(nn.Linear(16, 4) for _ in range(3))

    def forward(self, x: Tensor) -> list[Any]:
        outputs = []
        for block, leave in zip(self.blocks, self.exits, strict=True):
            x = x + block(x)
            outputs.append(leave(x))
            if not self.training and outputs[-1].softmax(-1).amax(-1).min() > 0.9:
                break
        return outputs


@healthy(family=FAMILY, on="MLP")
def evaluation_leaves_early(watch: Watch) -> None:
    """All exits are trained; in evaluation the later blocks may not be called."""
    model = EarlyExit()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    watcher = watch(model)
    for _ in range(4):
        model.train()
        for x, y in clusters(20):
            loss = sum(functional.cross_entropy(one, y) for one in model(x)) / 3
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)
        model.eval()
        with torch.no_grad():
            for x, _ in clusters(3):
                model(x)
    watcher.close()


class Checkpointed(Llama):
    """Computes its layers again in the backward."""

    def forward(self, tokens: Tensor) -> Any:
        x = self.embed(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.lm_head(self.norm(x))


@healthy(family=FAMILY, on="GPT")
def layers_run_again_in_the_backward(watch: Watch) -> None:
    """Gradient checkpointing."""
    model = Checkpointed()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    fit(watch, model, optimizer, sentences(60), next_token)


class PaddedEncoder(nn.Module):
    """torch's attention with padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 24, padding_idx=0)
        self.block = EncoderBlock(24)
        self.fc = nn.Linear(24, 4)

    def forward(self, tokens: Tensor) -> Any:
        padding = tokens == 0
        x = self.block(self.embed(tokens), padding)
        x = x.masked_fill(padding[..., None], 0).sum(1) / (~padding).sum(1, keepdim=True)
        return self.fc(x)


@healthy(family=FAMILY, on="transformer")
def padded_sentences(watch: Watch) -> None:
    """A padding mask; the row of the padding token never gets a gradient."""
    model = PaddedEncoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    fit(watch, model, optimizer, reviews(80))


class LocalAttention(nn.Module):
    """Attention to the last four tokens, with -inf elsewhere."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, width)
        self.position = nn.Embedding(12, width)
        self.qkv = nn.Linear(width, 3 * width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 16)

    def forward(self, tokens: Tensor) -> Any:
        x = self.embed(tokens) + self.position(torch.arange(tokens.shape[1]))
        q, k, v = self.qkv(x).chunk(3, -1)
        ones = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool)
        allowed = ones.tril() & ~ones.tril(-4)
        bias = torch.zeros(allowed.shape).masked_fill(~allowed, -torch.inf)
        return self.head(self.norm(x + (q @ k.mT / math.sqrt(32) + bias).softmax(-1) @ v))


@healthy(family=FAMILY, on="transformer")
def attention_to_the_last_four_tokens(watch: Watch) -> None:
    """Most scores are -inf by the mask, and no row is empty."""
    model = LocalAttention()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    unlogged(watch, model, optimizer, sentences(80), next_token)


class Universal(nn.Module):
    """One block applied four times, as in a universal transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 32)
        self.block = LlamaBlock(32, 4)
        self.norm = RMSNorm(32)
        self.head = nn.Linear(32, 16)

    def forward(self, tokens: Tensor) -> Any:
        x = self.embed(tokens)
        for _ in range(4):
            x = self.block(x)
        return self.head(self.norm(x))


@healthy(family=FAMILY, on="GPT")
def one_block_applied_four_times(watch: Watch) -> None:
    """Weights shared over depth on purpose: one block, called in a loop."""
    model = Universal()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    fit(watch, model, optimizer, sentences(60), next_token)


@healthy(family=FAMILY, on="mixture")
def mixture_with_a_balance_loss(watch: Watch) -> None:
    """Two of four experts per token, and a loss that keeps them balanced."""
    model = TopTwoMixture()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    watcher = watch(model)
    for x, y in clusters(70, batch=64):
        logits = model(x)
        gates = model.gate(x).softmax(-1)
        share = functional.one_hot(gates.argmax(-1), 4).float().mean(0)
        loss = functional.cross_entropy(logits, y) + 0.1 * 4 * (share * gates.mean(0)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=FAMILY, on="MLP")
def half_of_all_units_are_dropped(watch: Watch) -> None:
    """Dropout of 0.5 behind each layer."""
    model = nn.Sequential(
        nn.Linear(16, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 64), nn.ReLU(),
        nn.Dropout(0.5), nn.Linear(64, 4),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    in_epochs(watch, model, optimizer, clusters, functional.cross_entropy)


@healthy(family=FAMILY, on="multi-task")
def second_head_is_switched_off(watch: Watch) -> None:
    """An auxiliary head has the weight 0 in this experiment."""
    model = MultiTask()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    watcher = watch(model)
    for x, y in clusters(60):
        label, score = model(x)
        loss = functional.cross_entropy(label, y) + 0.0 * functional.mse_loss(score, y / 4.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


class BinaryWeights(nn.Module):
    """Linear layers with the signs of their weights, by a straight-through estimator."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 64)
        self.second = nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Any:
        h = functional.batch_norm(self._apply_signs(self.first, x), None, None, training=True)
        return self._apply_signs(self.second, functional.hardtanh(h)) / 4

    @staticmethod
    def _apply_signs(layer: nn.Linear, x: Tensor) -> Any:
        binary = layer.weight + (layer.weight.sign() - layer.weight).detach()
        return functional.linear(x, binary, layer.bias)


@healthy(family=FAMILY, on="MLP")
def signs_of_weights_with_straight_through(watch: Watch) -> None:
    """A binary network: sign in the forward, identity in the backward."""
    model = BinaryWeights()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    fit(watch, model, optimizer, clusters(80))


@healthy(family=FAMILY, on="CNN")
def bias_before_batch_norm(watch: Watch) -> None:
    """Convolutions keep a bias that batch norm takes out again: its gradient is 0."""
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 4),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    unlogged(watch, model, optimizer, images(60, batch=32), functional.cross_entropy)


class WaveNet(nn.Module):
    """Dilated causal convolutions with gates."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.inp = nn.Conv1d(2, width, 1)
        self.filters = nn.ModuleList(
            nn.Conv1d(width, 2 * width, 2, dilation=2**i) for i in range(4)
        )
        self.out = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Any:
        h = self.inp(x.transpose(1, 2))
        for number, layer in enumerate(self.filters):
            a, b = layer(functional.pad(h, (2**number, 0))).chunk(2, 1)
            h = h + torch.tanh(a) * torch.sigmoid(b)
        return self.out(h[..., -1])


@healthy(family=FAMILY, on="CNN")
def gated_dilated_convolutions(watch: Watch) -> None:
    """tanh and sigmoid gates over a series, smooth L1 loss."""
    model = WaveNet()
    optimizer = torch.optim.RAdam(model.parameters(), lr=5e-3)
    fit(watch, model, optimizer, waves(80), functional.smooth_l1_loss)


@healthy(family=FAMILY, on="GNN")
def graphs_of_different_size(watch: Watch) -> None:
    """Message passing on graphs with 20 to 60 nodes, some of them without edges."""
    model = GraphNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    watcher = watch(model)
    sizes = [graphs(100, nodes=20 + 10 * i) for i in range(5)]
    for step in range(100):
        x, edges, labels = next(sizes[step % 5])
        loss = functional.cross_entropy(model(x, edges), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


class Fourier(nn.Module):
    """High frequencies of the input, then an MLP, as in NeRF."""

    frequencies: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
        self.register_buffer("frequencies", 2 ** torch.linspace(0, 4, 16))

    def forward(self, x: Tensor) -> Any:
        angle = x * self.frequencies
        return self.net(torch.cat([angle.sin(), angle.cos()], -1))


@healthy(family=FAMILY, on="MLP")
def coordinates_as_high_frequencies(watch: Watch) -> None:
    """A curve is learned from sines of its coordinate."""
    model = Fourier()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    watcher = watch(model)
    for _ in range(80):
        x = 2 * torch.rand(64, 1) - 1
        loss = functional.mse_loss(model(x), (5 * x).sin() + 0.5 * (13 * x).cos())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


class HyperNetwork(nn.Module):
    """Makes the weights of a small regression from a description of the task."""

    def __init__(self) -> None:
        super().__init__()
        self.make = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 8))

    def forward(self, x: Tensor, task: Tensor) -> Any:
        return (x * self.make(task)).sum(-1)


@healthy(family=FAMILY, on="MLP")
def weights_are_the_output_of_a_network(watch: Watch) -> None:
    """A hypernetwork; the weights that it makes are not parameters."""
    model = HyperNetwork()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    mix = torch.randn(8, 8) / 8**0.5
    watcher = watch(model)
    for x, _ in curve(90, batch=64):
        task = torch.randn(64, 8)
        loss = functional.mse_loss(model(x, task), (x * (task @ mix)).sum(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()

"""The second set of planted mistakes: activations, set-up and dynamics."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.diagnosis.cases import Watch, fit, functional, planted
from benchmarks.diagnosis.data import clusters, curve, images, pairs, ring, sentences, waves
from benchmarks.diagnosis.holdout.models import (
    DLRM,
    ConvVAE,
    Denoiser,
    GraphNet,
    GRUTagger,
    PreActNet,
    ResidualMLP,
    TopTwoMixture,
)
from benchmarks.diagnosis.holdout.tasks import (
    clicks,
    draws,
    graphs,
    in_epochs,
    next_token,
    reviews,
    table,
    unlogged,
)


class SqueezeExcite(nn.Module):
    """Convolution, a sigmoid gate per channel, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 3, padding=1)
        self.squeeze = nn.Linear(16, 16)
        self.gate = nn.Sigmoid()
        self.fc = nn.Linear(16, 4)
        nn.init.normal_(self.squeeze.weight, std=500)

    def forward(self, x: Tensor) -> Any:
        h = self.conv(x)
        gate = self.gate(self.squeeze(h.abs().mean((2, 3))))
        return self.fc((functional.relu(h) * gate[..., None, None]).mean((2, 3)))


@planted("saturated", at=("", "gate", "squeeze"), family="activations", on="CNN")
def gate_of_squeeze_and_excite_is_saturated(watch: Watch) -> None:
    """Weights of normal(0, 500) before a sigmoid: gates are 0 or 1 and do not learn."""
    model = SqueezeExcite()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    fit(watch, model, optimizer, images(50))


@planted("identical-units", at=("", "conv", "stages.*"), family="activations", on="CNN")
def convolutions_filled_with_ones(watch: Watch) -> None:
    """All convolutions start at 1 / fan-in: all channels stay equal."""
    model = PreActNet()
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.constant_(module.weight, 1 / module.weight[0].numel())
            nn.init.constant_(module.bias, 0.0)  # type: ignore[arg-type]
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    fit(watch, model, optimizer, images(50))


@planted(
    "representation-collapse", "constant-output", at=("", "*"), family="activations", on="Siamese"
)
def two_copies_agree_without_a_stop_gradient(watch: Watch) -> None:
    """Two noisy passes of one encoder shall agree; the constant is the easiest solution."""
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16), nn.LayerNorm(16))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    watcher = watch(model)
    for x, _ in pairs(120):
        a = model(x + 0.5 * torch.randn_like(x))
        b = model(x + 0.5 * torch.randn_like(x))
        loss = (a - b).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("dropout-drops-all", at=("", "drop"), family="activations", on="LSTM")
def dropout_between_the_layers_drops_nearly_all(watch: Watch) -> None:
    """`nn.Dropout(0.98)`: one of fifty values is left."""
    model = nn.Sequential()
    model.add_module("embed", nn.Embedding(16, 24))
    model.add_module("drop", nn.Dropout(0.98))
    model.add_module("fc", nn.Linear(24, 16))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    fit(watch, model, optimizer, sentences(50), next_token)


@planted("eval-mode", at=("", "*"), family="set-up", on="MLP")
def train_is_called_with_false(watch: Watch) -> None:
    """`model.train(args.train)` gets False from a default."""
    model = nn.Sequential(
        nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 4)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    watcher = watch(model)
    for _ in range(3):
        model.train(False)
        for x, y in clusters(20):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)
    watcher.close()


@planted("softmax-before-cross-entropy", at=("", "head"), family="set-up", on="mixture")
def probabilities_and_class_weights(watch: Watch) -> None:
    """`.softmax(1)` in the loop before a weighted cross entropy."""
    model = TopTwoMixture()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 1.0, 1.0]))
    watcher = watch(model)
    for x, y in clusters(60):
        optimizer.zero_grad()
        loss = criterion(model(x).softmax(1), y)
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("sigmoid-before-bce", at=("", "top", "top.2"), family="set-up", on="DLRM")
def click_probability_before_logits_loss(watch: Watch) -> None:
    """The loop applies torch.sigmoid, and the loss does so again."""
    model = DLRM()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    watcher = watch(model)
    for dense, categories, clicked in clicks(60):
        probability = torch.sigmoid(model(dense, categories))
        loss = functional.binary_cross_entropy_with_logits(probability, clicked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


class ClampedDenoiser(Denoiser):
    """Cannot predict negative noise."""

    def forward(self, x: Tensor, t: Tensor) -> Any:
        return torch.relu(super().forward(x, t))


@planted("relu-on-output", at=("", "out"), family="set-up", on="diffusion")
def noise_cannot_be_negative(watch: Watch) -> None:
    """A ReLU at the end of a network that predicts normal noise."""
    model = ClampedDenoiser()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    watcher = watch(model)
    for clean in ring(60, batch=64):
        t = torch.rand(64)
        noise = torch.randn_like(clean)
        loss = functional.mse_loss(model(clean + 2 * t[:, None] * noise, t), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("loss-broadcast", at=("", "[0-9]"), family="set-up", on="MLP")
def absolute_error_of_a_column_and_a_row(watch: Watch) -> None:
    """`l1_loss` of (N, 1) and (N), in a loop that logs nothing."""
    model = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    unlogged(watch, model, optimizer, table(60), functional.l1_loss)


@planted("inputs-not-normalized", at=("", "0"), family="set-up", on="CNN")
def samples_of_audio_as_integers(watch: Watch) -> None:
    """Audio in the range of int16, ±32768."""
    model = nn.Sequential(
        nn.Conv1d(2, 16, 5, 2), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches = ((20000 * x.transpose(1, 2), y) for x, y in waves(60))
    fit(watch, model, optimizer, batches, functional.mse_loss)


@planted("shared-module", at=("", "cells", "cells.*"), family="set-up", on="GRU")
def stacked_cells_are_one_cell(watch: Watch) -> None:
    """`[nn.GRUCell(16, 16)] * 3` in a ModuleList."""
    model = StackedCells()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    fit(watch, model, optimizer, waves(40, length=8), functional.mse_loss)


class StackedCells(nn.Module):
    """Three recurrent layers."""

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(2, 16)
        self.cells = nn.ModuleList([nn.GRUCell(16, 16)] * 3)
        self.out = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Any:
        states = [torch.zeros(len(x), 16) for _ in self.cells]
        for t in range(x.shape[1]):
            h = self.inp(x[:, t])
            for number, cell in enumerate(self.cells):
                states[number] = h = cell(h, states[number])
        return self.out(h)


class UnusedAttention(GRUTagger):
    """A GRU with an attention layer that was never wired in."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(48, 4, batch_first=True)


@planted(
    "module-never-called",
    "no-gradient",
    at=("attention", "attention.*"),
    family="set-up",
    on="GRU",
)
def attention_is_never_wired_in(watch: Watch) -> None:
    """The attention layer is made and not used."""
    model = UnusedAttention()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    in_epochs(watch, model, optimizer, reviews, functional.cross_entropy, 3, 20)


@planted("loss-plateau", at=("",), family="dynamics", on="GNN")
def classes_of_another_graph(watch: Watch) -> None:
    """Features and labels are loaded in different orders."""
    model = GraphNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    draw = draws(77)
    watcher = watch(model)
    for x, edges, labels in graphs(100, nodes=80):
        order = torch.randperm(len(labels), generator=draw)
        loss = functional.cross_entropy(model(x, edges), labels[order])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("loss-spike", at=("", "enc", "enc.0"), family="dynamics", on="VAE", since=57)
def one_batch_in_another_range(watch: Watch) -> None:
    """One batch of images is forty times as bright."""
    model = ConvVAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    watcher = watch(model)
    for step, (x, _) in enumerate(images(90)):
        bright = x * (40 if step == 57 else 1)
        reconstruction, mu, logvar = model(bright)
        kl = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(-1).mean()
        loss = functional.mse_loss(reconstruction, bright) + 1e-3 * kl
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("loss-diverges", at=("",), family="dynamics", on="residual MLP")
def the_error_is_maximized(watch: Watch) -> None:
    """A sign too many: the negative squared error is minimized, and falls without end."""
    model = ResidualMLP(8, out=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    watcher = watch(model)
    for x, y in curve(80):
        loss = -functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()

"""Healthy gradients that stop or pass straight through on purpose, and precision on purpose."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from benchmarks.diagnosis import data
from benchmarks.diagnosis.cases import Watch, fit, functional, healthy
from benchmarks.diagnosis.models import GAN, Autoencoder, ConvNet, SequenceLSTM, mlp

_FAMILY = "gradients"


class _SimSiam(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16), nn.BatchNorm1d(16)
        )
        self.predictor = mlp(16, 8, 16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        code = self.encoder(x)
        return self.predictor(code), code.detach()


@healthy(family=_FAMILY, on="two-tower")
def stop_gradient_of_a_siamese_network(watch: Watch) -> None:
    """Targets are detached on purpose, which keeps the representation from collapsing."""
    model = _SimSiam()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with watch(model) as watcher:
        for x, _ in data.clusters(80):
            first, target = model(x + 0.1 * torch.randn_like(x))
            second, other = model(x + 0.1 * torch.randn_like(x))
            near = functional.cosine_similarity(first, other).mean()
            loss = -(near + functional.cosine_similarity(second, target).mean()) / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


class _StraightThrough(Autoencoder):
    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Embedding(16, 4)

    def quantise(self, code: Tensor) -> tuple[Tensor, Tensor]:
        """The nearest code with the gradient of its input, and the distance as a loss."""
        nearest = self.codes(torch.cdist(code, self.codes.weight).argmin(-1))
        loss = functional.mse_loss(nearest, code.detach())
        loss = loss + 0.25 * functional.mse_loss(code, nearest.detach())
        return code + (nearest - code).detach(), loss


@healthy(family=_FAMILY, on="autoencoder")
def straight_through_estimator(watch: Watch) -> None:
    """An argmin in the middle, and its gradient copied past it: the encoder learns."""
    model = _StraightThrough()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    watcher = watch(model)
    for x, _ in data.clusters(100):
        code, distance = model.quantise(model.encoder(x))
        loss = functional.mse_loss(model.decoder(code), x) + distance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


class _HardGate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 4)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        choice = functional.gumbel_softmax(self.gate(x), hard=True)
        outputs = torch.stack([expert(x) for expert in self.experts], 1)
        return cast(Tensor, self.head((choice[..., None] * outputs).sum(1)))


@healthy(family=_FAMILY, on="mixture")
def hard_choice_by_gumbel_softmax(watch: Watch) -> None:
    """The choice is one-hot in the forward and soft in the backward."""
    model = _HardGate()
    fit(watch, model, torch.optim.Adam(model.parameters(), lr=1e-2), data.clusters(80))


class _RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * scaled.to(x.dtype)


@healthy(family=_FAMILY, on="transformer")
def norm_computed_in_float32(watch: Watch) -> None:
    """A bfloat16 model whose norm computes in float32 and casts back, as LLaMA's does."""
    model = nn.Sequential(
        nn.Linear(16, 32), _RMSNorm(32), nn.SiLU(), nn.Linear(32, 32), _RMSNorm(32), nn.SiLU(),
        nn.Linear(32, 4),
    ).bfloat16()  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    with watch(model) as watcher:
        for x, y in data.clusters(60):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x.bfloat16()).float(), y)
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family=_FAMILY, on="GAN")
def least_squares_gan(watch: Watch) -> None:
    """Scores of (N, 1) are compared with a single 1 or 0: broadcast on purpose."""
    model = GAN()
    for_g = torch.optim.Adam(model.generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    for_d = torch.optim.Adam(model.discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    one, zero = torch.tensor(1.0), torch.tensor(0.0)
    watcher = watch(model)
    for real in data.ring(80):
        fake = model.fake(32)
        for_d.zero_grad()
        loss = functional.mse_loss(model.discriminator(real), one)
        loss = loss + functional.mse_loss(model.discriminator(fake.detach()), zero)
        loss.backward()
        for_d.step()
        for_g.zero_grad()
        functional.mse_loss(model.discriminator(fake), one).backward()
        for_g.step()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=_FAMILY, on="LSTM")
def loss_with_a_mask(watch: Watch) -> None:
    """Losses of (N, T) are multiplied with weights of (N, 1): broadcast on purpose."""
    model = SequenceLSTM()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with watch(model) as watcher:
        for x, y in data.sentences(80, batch=16):
            each = functional.cross_entropy(model(x).transpose(1, 2), y, reduction="none")
            weights = 0.5 + torch.rand(len(x), 1)
            loss = (each * weights).sum() / (weights.sum() * x.shape[1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family=_FAMILY, on="CNN")
def batch_norm_with_four_images(watch: Watch) -> None:
    """Four images of 8 × 8 give batch norm 256 values for each channel, which is enough."""
    model = ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    fit(watch, model, optimizer, data.images(120, batch=4))


@healthy(family=_FAMILY)
def constant_and_empty_columns(watch: Watch) -> None:
    """One column of the table is always 1, and another always 0; the others carry the labels."""
    model = mlp(16, 32, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    watcher = watch(model)
    for x, y in data.clusters(60):
        x[:, 0], x[:, 1] = 1.0, 0.0
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


class _Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(16, 32, 32)
        self.gate = nn.Parameter(torch.zeros(1))
        self.skip = nn.Linear(16, 32)
        self.head = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.skip(x) + self.gate * self.net(x)))


@healthy(family=_FAMILY)
def gate_that_starts_closed(watch: Watch) -> None:
    """A scalar gate starts at 0 (ReZero): no gradient passes it at the first step."""
    model = _Gated()
    fit(watch, model, torch.optim.Adam(model.parameters(), lr=1e-2), data.clusters(60))

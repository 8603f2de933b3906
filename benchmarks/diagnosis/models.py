"""The small models that are trained, written the way their users write them."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional


def mlp(*sizes: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers with an activation between them: `0`, `2`, `4` … are the Linears."""
    layers: list[nn.Module] = []
    for into, out in pairwise(sizes):
        layers += [nn.Linear(into, out), activation()]
    return nn.Sequential(*layers[:-1])


class Classifier(nn.Module):
    """A backbone and a head."""

    def __init__(self, features: int = 16, width: int = 32, classes: int = 4) -> None:
        super().__init__()
        self.backbone = mlp(features, width, width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.head(functional.relu(self.backbone(x))))


class ConvNet(nn.Module):
    """Convolutions with batch norm."""

    def __init__(self, channels: int = 1, width: int = 8, classes: int = 4) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
        )
        self.head = nn.Linear(8 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.features(x).flatten(1)))


def plain_convnet(channels: int = 1, width: int = 8, classes: int = 4) -> nn.Sequential:
    """Convolutions without batch norm."""
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * width, classes),
    )


class ResidualBlock(nn.Module):
    """Two convolutions with a skip connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        return cast(Tensor, self.relu(x + self.bn2(self.conv2(y))))


class ResNet(nn.Module):
    """A stem, residual blocks and a head."""

    def __init__(self, channels: int = 1, width: int = 8, depth: int = 3, classes: int = 4) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.blocks = nn.Sequential(*(ResidualBlock(width) for _ in range(depth)))
        self.fc = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.fc(self.blocks(self.stem(x)).mean((2, 3))))


class Attention(nn.Module):
    """Causal attention with separate projections and an explicit softmax."""

    mask: Tensor

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.register_buffer("mask", torch.ones(length, length, dtype=torch.bool).tril())

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (
            project(x).view(shape).transpose(1, 2) for project in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(width // self.heads)
        scores = scores.masked_fill(~self.mask[:length, :length], float("-inf"))
        mixed = scores.softmax(-1) @ v
        return cast(Tensor, self.out(mixed.transpose(1, 2).reshape(x.shape)))


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, length)
        self.ln2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.ln1(x))
        return cast(Tensor, x + self.mlp(self.ln2(x)))


class GPT(nn.Module):
    """A small GPT; its head is tied to the embedding if asked."""

    def __init__(
        self,
        vocabulary: int = 16,
        width: int = 32,
        depth: int = 2,
        heads: int = 4,
        length: int = 12,
        *,
        tied: bool = False,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, length) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            nn.init.normal_(self.tokens.weight, std=0.05)
            self.head.weight = self.tokens.weight

    def embed(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1])
        return cast(Tensor, self.tokens(tokens) + self.positions(places))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return cast(Tensor, self.head(self.norm(x)))


class SequenceLSTM(nn.Module):
    """An LSTM over tokens that predicts the next one."""

    def __init__(self, vocabulary: int = 16, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs, _ = self.lstm(self.embedding(tokens))
        return cast(Tensor, self.head(outputs))


class SeriesLSTM(nn.Module):
    """An LSTM over a series of values that predicts one value."""

    def __init__(self, features: int = 2, width: int = 16) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features, width, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.lstm(x)
        return cast(Tensor, self.head(outputs[:, -1]))


class Autoencoder(nn.Module):
    """An encoder and a decoder with a narrow code between them."""

    def __init__(self, features: int = 16, code: int = 4) -> None:
        super().__init__()
        self.encoder = mlp(features, 32, code)
        self.decoder = mlp(code, 32, features)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.decoder(self.encoder(x)))


class VAE(nn.Module):
    """A variational autoencoder that returns the reconstruction, the mean and the log variance."""

    def __init__(self, features: int = 16, code: int = 4) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(features, 32), nn.ReLU())
        self.mean = nn.Linear(32, code)
        self.log_variance = nn.Linear(32, code)
        self.decoder = mlp(code, 32, features)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.encoder(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        code = mean + torch.randn_like(mean) * torch.exp(log_variance / 2)
        return self.decoder(code), mean, log_variance


class GAN(nn.Module):
    """A generator and a discriminator, watched together."""

    def __init__(self, noise: int = 8, features: int = 2) -> None:
        super().__init__()
        self.noise = noise
        self.generator = mlp(noise, 32, 32, features)
        self.discriminator = mlp(features, 32, 32, 1, activation=lambda: nn.LeakyReLU(0.2))

    def fake(self, count: int) -> Tensor:
        return cast(Tensor, self.generator(torch.randn(count, self.noise)))


class Mixture(nn.Module):
    """A mixture of experts in which each sample goes to the best expert, weighted by its gate."""

    def __init__(self, features: int = 16, width: int = 16, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(features, experts)
        self.experts = nn.ModuleList(mlp(features, width, features) for _ in range(experts))
        self.head = nn.Linear(features, 4)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The gates of all experts, and the expert of each sample."""
        gates = self.router(x).softmax(-1)
        return gates, gates.argmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        gates, choice = self.route(x)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            chosen = (choice == number).nonzero().flatten()
            if len(chosen):
                y = y.index_add(0, chosen, gates[chosen, number, None] * expert(x[chosen]))
        return cast(Tensor, self.head(x + y))


class ViT(nn.Module):
    """A vision transformer of torch's own encoder layers."""

    def __init__(self, width: int = 32, depth: int = 2, classes: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, 2)
        self.positions = nn.Parameter(torch.randn(1, 16, width) * 0.02)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width,
                4,
                2 * width,
                dropout=0.0,
                activation="gelu",
                batch_first=True,
                norm_first=True,
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        for layer in self.layers:
            x = layer(x)
        return cast(Tensor, self.head(self.norm(x).mean(1)))


class TwoTower(nn.Module):
    """Two towers whose embeddings of a pair shall agree."""

    def __init__(self, features: int = 16, width: int = 16) -> None:
        super().__init__()
        self.left = mlp(features, 32, width)
        self.right = mlp(features, 32, width)

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        return self.left(left), self.right(right)

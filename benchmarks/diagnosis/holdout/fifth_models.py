"""Models and data of the fifth hold-out: tables, images, texts, graphs, points and pairs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.diagnosis.cases import functional


class Tabular(nn.Module):
    """Two embedded categories beside six numbers."""

    def __init__(self, outputs: int = 1) -> None:
        super().__init__()
        self.shop = nn.Embedding(12, 6)
        self.product = nn.Embedding(20, 6)
        self.body = nn.Sequential(nn.Linear(18, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU())
        self.out = nn.Linear(32, outputs)

    def forward(self, numbers: Tensor, ids: Tensor) -> Any:
        parts = [numbers, self.shop(ids[:, 0]), self.product(ids[:, 1])]
        return self.out(self.body(torch.cat(parts, -1)))


class SmallCNN(nn.Module):
    """Two convolutions with batch norm, average over the image, a classifier."""

    def __init__(self, classes: int = 4, width: int = 12, momentum: float = 0.1) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(width, momentum=momentum)
        self.conv = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.norm2 = nn.BatchNorm2d(2 * width, momentum=momentum)
        self.drop = nn.Dropout(0.1)
        self.fc = nn.Linear(2 * width, classes)

    def features(self, x: Tensor) -> Any:
        x = functional.relu(self.norm1(self.stem(x)))
        return functional.relu(self.norm2(self.conv(x))).mean((2, 3))

    def forward(self, x: Tensor) -> Any:
        return self.fc(self.drop(self.features(x)))


class SelfAttention(nn.Module):
    """Heads written out, as in most small code bases."""

    def __init__(self, width: int, heads: int = 2, causal: bool = True) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.o = nn.Linear(width, width)

    def forward(self, x: Tensor, pad: Tensor | None = None) -> Any:
        batch, length, width = x.shape
        shape = batch, length, self.heads, width // self.heads
        q, k, v = (part(x).view(shape).transpose(1, 2) for part in (self.q, self.k, self.v))
        scores = q @ k.transpose(-2, -1) / math.sqrt(shape[-1])
        if self.causal:
            later = torch.ones(length, length, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, float("-inf"))
        if pad is not None:
            scores = scores.masked_fill(pad[:, None, None, :], float("-inf"))
        mixed = scores.softmax(-1) @ v
        return self.o(mixed.transpose(1, 2).reshape(batch, length, width))


class Layer(nn.Module):
    """A transformer block, norm first."""

    def __init__(self, width: int, causal: bool = True) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = SelfAttention(width, causal=causal)
        self.ff = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor, pad: Tensor | None = None) -> Any:
        x = x + self.attn(self.norm1(x), pad)
        return x + self.ff(self.norm2(x))


class TextModel(nn.Module):
    """A language model of two layers."""

    def __init__(self, vocabulary: int = 16, width: int = 24, tied: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(32, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.lm_head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Any:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


class PatchNet(nn.Module):
    """A ViT of 8×8 images in patches of 4×4."""

    def __init__(self, classes: int = 4, width: int = 24) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 4, stride=4)
        self.places = nn.Parameter(torch.randn(1, 4, width) * 0.02)
        self.layers = nn.ModuleList(Layer(width, causal=False) for _ in range(2))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Any:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


class CharLSTM(nn.Module):
    """Embedding, LSTM and a label of the whole sequence."""

    def __init__(self, vocabulary: int = 16, width: int = 24, classes: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.rnn = nn.LSTM(width, width, batch_first=True)
        self.out = nn.Linear(width, classes)

    def forward(self, ids: Tensor) -> Any:
        states, _ = self.rnn(self.embed(ids))
        return self.out(states.mean(1))


class MessageNet(nn.Module):
    """Two rounds of messages between the nodes of a dense graph."""

    def __init__(self, features: int = 6, width: int = 24, classes: int = 3) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(features, width), nn.Linear(width, width)
        self.out = nn.Linear(width, classes)

    def forward(self, x: Tensor, edges: Tensor) -> Any:
        share = edges / edges.sum(-1, keepdim=True).clamp(min=1)
        x = functional.relu(self.first(share @ x) + 0.0)
        x = functional.relu(self.second(share @ x + x))
        return self.out(x)


class NoiseNet(nn.Module):
    """Predicts the noise that was added to points in the plane."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, width), nn.SiLU())
        self.enter = nn.Linear(2, width)
        self.body = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.leave = nn.Linear(width, 2)

    def forward(self, x: Tensor, t: Tensor) -> Any:
        rates = torch.exp(torch.linspace(0, -4, 8))
        waves = torch.cat([(t * rates).sin(), (t * rates).cos()], -1)
        return self.leave(self.body(self.enter(x) + self.time(waves)))


class Experts(nn.Module):
    """A router that sends each row to one of four experts."""

    def __init__(self, width: int = 16, classes: int = 4, experts: int = 4) -> None:
        super().__init__()
        self.enter = nn.Linear(8, width)
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(experts)
        )
        self.out = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Any:
        x = functional.relu(self.enter(x))
        share = self.router(x).softmax(-1)
        weight, best = share.max(-1)
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = best == number
            mixed[rows] = expert(x[rows]) * weight[rows, None]
        self.share = share
        return self.out(mixed)


class Siamese(nn.Module):
    """An encoder, a projector and a predictor, for learning from pairs of views."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width))
        self.projector = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 16))
        self.predictor = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))

    def forward(self, x: Tensor) -> Any:
        return self.projector(self.encoder(x))


class Adversaries(nn.Module):
    """Generator and discriminator of points in the plane."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 32), nn.LeakyReLU(0.2), nn.Linear(32, 2))
        self.discriminator = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))


def seeded(seed: int) -> torch.Generator:
    """Random numbers that do not depend on those of the model."""
    return torch.Generator().manual_seed(seed)


def _loader(*tensors: Tensor, batch: int, last: bool = False) -> DataLoader[Any]:
    generator = seeded(7)
    data = TensorDataset(*tensors)
    return DataLoader(data, batch, shuffle=True, generator=generator, drop_last=not last)


def house_prices(count: int = 256, batch: int = 32) -> DataLoader[Any]:
    """Six numbers, two categories, and a price around 0 that depends on all of them."""
    draw = seeded(501)
    numbers = torch.randn(count, 6, generator=draw)
    ids = torch.randint(12, (count, 2), generator=draw)
    price = numbers[:, 0] - numbers[:, 1] * 0.5 + 0.2 * (ids[:, 0] - 6)
    return _loader(numbers, ids, price, batch=batch)


def stripes(count: int = 192, batch: int = 24, size: int = 8) -> DataLoader[Any]:
    """Images with stripes in one of four directions."""
    draw = seeded(502)
    labels = torch.randint(4, (count,), generator=draw)
    row, column = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    kinds = torch.stack([row % 2, column % 2, (row + column) % 3 % 2, (row // 2 + column) % 2])
    images = kinds[labels].float()[:, None] * 2 - 1
    images = images + 0.5 * torch.randn(images.shape, generator=draw)
    return _loader(images, labels, batch=batch)


def chains(count: int = 192, batch: int = 24, length: int = 10) -> DataLoader[Any]:
    """Texts in which each token follows from the one before, and a label of the first token."""
    draw = seeded(503)
    ids = torch.randint(16, (count, 1), generator=draw)
    step = torch.randint(1, 4, (count, 1), generator=draw)
    texts = (ids + step * torch.arange(length + 1)) % 16
    return _loader(texts[:, :-1], texts[:, 1:], (step[:, 0] > 1).long(), batch=batch)


def blobs(count: int = 256, batch: int = 32, classes: int = 4) -> DataLoader[Any]:
    """Points of eight numbers around one centre for each class."""
    draw = seeded(504)
    labels = torch.randint(classes, (count,), generator=draw)
    centres = torch.randn(classes, 8, generator=draw) * 1.5
    return _loader(centres[labels] + torch.randn(count, 8, generator=draw), labels, batch=batch)


def friends(steps: int, nodes: int = 24) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Graphs in which nodes of a class are mostly connected with each other."""
    draw = seeded(505)
    for _ in range(steps):
        labels = torch.randint(3, (nodes,), generator=draw)
        same = labels[:, None] == labels
        edges = torch.rand(nodes, nodes, generator=draw) < torch.where(same, 0.5, 0.05)
        x = functional.one_hot(labels, 6) + torch.randn(nodes, 6, generator=draw)
        yield x, (edges | edges.T).float(), labels


def circle(steps: int, batch: int = 64) -> Iterator[Tensor]:
    """Points on a circle."""
    draw = seeded(506)
    for _ in range(steps):
        angle = torch.rand(batch, generator=draw) * 2 * math.pi
        yield torch.stack([angle.cos(), angle.sin()], -1)


def epochs(loader: DataLoader[Any], count: int) -> Iterator[Any]:
    """All batches, the data several times."""
    for _ in range(count):
        yield from loader


def next_token(logits: Tensor, targets: Tensor) -> Any:
    """Cross entropy of every place."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def deep(depth: int, width: int, activation: type[nn.Module], outputs: int = 4) -> nn.Sequential:
    """A plain stack without norms or skip connections."""
    layers: list[nn.Module] = [nn.Linear(8, width), activation()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), activation()]
    return nn.Sequential(*layers, nn.Linear(width, outputs))


def ema_into(target: nn.Module, source: nn.Module, keep: float) -> None:
    """Move the weights of one model towards those of another."""
    for old, new in zip(target.parameters(), source.parameters(), strict=True):
        old.data.mul_(keep).add_(new.data, alpha=1 - keep)


def module_of(parts: dict[str, nn.Module]) -> nn.ModuleDict:
    """Several models as one, to be watched together."""
    return nn.ModuleDict(parts)

"""Models and data of the fourth hold-out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.diagnosis.models import mlp


class UNet(nn.Module):
    """Down, up, and a skip connection by concatenation; a map of classes comes out."""

    def __init__(self, classes: int = 3, width: int = 8) -> None:
        super().__init__()
        self.down1 = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU())
        self.down2 = nn.Sequential(nn.Conv2d(width, 2 * width, 3, 2, 1), nn.ReLU())
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.out = nn.Sequential(
            nn.Conv2d(2 * width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, classes, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        up = self.up(self.down2(first))
        return cast(Tensor, self.out(torch.cat([first, up], 1)))


class GraphConv(nn.Module):
    """The mean of the neighbours, then a linear map."""

    def __init__(self, into: int, out: int, *, safe: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(into, out)
        self.own = nn.Linear(into, out)
        self.safe = safe

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        degree = adjacency.sum(-1, keepdim=True)
        if self.safe:
            degree = degree.clamp(min=1)
        return cast(Tensor, self.own(x) + self.linear(adjacency @ x / degree))


class GraphNet(nn.Module):
    """Two graph convolutions that give each node a class."""

    def __init__(self, features: int = 8, classes: int = 3, *, safe: bool = True) -> None:
        super().__init__()
        self.conv1 = GraphConv(features, 24, safe=safe)
        self.conv2 = GraphConv(24, classes, safe=safe)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        return cast(Tensor, self.conv2(functional.relu(self.conv1(x, adjacency)), adjacency))


class Denoiser(nn.Module):
    """Predicts the noise in a point from the noisy point and the time."""

    def __init__(self, features: int = 2, width: int = 48) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, width), nn.SiLU(), nn.Linear(width, width))
        self.into = nn.Linear(features, width)
        self.body = mlp(width, width, width, activation=nn.SiLU)
        self.out = nn.Linear(width, features)

    def embed(self, t: Tensor) -> Tensor:
        rates = torch.exp(-torch.arange(8) / 2)
        angles = 30 * t[:, None] * rates
        return torch.cat([angles.sin(), angles.cos()], -1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        hidden = self.into(x) + self.time(self.embed(t))
        return cast(Tensor, self.out(functional.silu(self.body(functional.silu(hidden)))))


class ActorCritic(nn.Module):
    """A shared body, a policy over actions, and a value."""

    def __init__(self, features: int = 4, actions: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, 32), nn.Tanh())
        self.policy = nn.Linear(32, actions)
        self.value = nn.Linear(32, 1)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(state)
        return self.policy(hidden), self.value(hidden)


class Seq2Seq(nn.Module):
    """A GRU reads a sentence, another one writes it, looking back with attention."""

    def __init__(self, vocabulary: int = 12, width: int = 24) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.attention = LookBack(width)
        self.head = nn.Linear(2 * width, vocabulary)

    def forward(self, source: Tensor, target: Tensor, mask: Tensor) -> Tensor:
        memory, state = self.encoder(self.embedding(source))
        hidden, _ = self.decoder(self.embedding(target), state)
        seen = self.attention(hidden, memory, mask)
        return cast(Tensor, self.head(torch.cat([hidden, seen], -1)))


class LookBack(nn.Module):
    """Attention of the decoder to the tokens of the source that are not padding."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width)

    def forward(self, hidden: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        scores = self.query(hidden) @ memory.transpose(1, 2) / math.sqrt(hidden.shape[-1])
        scores = scores.masked_fill(~mask[:, None, :], float("-inf"))
        return cast(Tensor, scores.softmax(-1) @ memory)


class LoRA(nn.Module):
    """A frozen linear layer with a trained low-rank part."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.base(x) + self.up(self.down(x)))


class SimSiam(nn.Module):
    """Two views, an encoder, a predictor."""

    def __init__(self, features: int = 16, width: int = 16) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(features, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, width)
        )
        self.predictor = nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, width))


class SpeechNet(nn.Module):
    """Frames to log-probabilities of symbols, for CTC."""

    def __init__(self, features: int = 6, symbols: int = 5) -> None:
        super().__init__()
        self.conv = nn.Conv1d(features, 24, 3, padding=1)
        self.rnn = nn.GRU(24, 24, batch_first=True, bidirectional=True)
        self.head = nn.Linear(48, symbols)

    def forward(self, frames: Tensor) -> Tensor:
        hidden = functional.relu(self.conv(frames.transpose(1, 2))).transpose(1, 2)
        return cast(Tensor, self.head(self.rnn(hidden)[0]).log_softmax(-1))


def draw(seed: int) -> torch.Generator:
    """Random numbers of the data; another seed of the training gives other data as well."""
    return torch.Generator().manual_seed(seed + 10_000 * torch.initial_seed())


def squares(steps: int, batch: int = 8) -> Iterator[tuple[Tensor, Tensor]]:
    """Noisy pictures with a bright and a dark square, and the class of every pixel."""
    chance = draw(41)
    for _ in range(steps):
        y = torch.zeros(batch, 12, 12, dtype=torch.long)
        for number in range(batch):
            for label in (1, 2):
                row, column = torch.randint(8, (2,), generator=chance).tolist()
                y[number, row : row + 4, column : column + 4] = label
        shade = torch.tensor([0.0, 1.5, -1.5])[y]
        yield (shade + 0.4 * torch.randn(y.shape, generator=chance))[:, None], y


def graphs(steps: int, nodes: int = 24, isolated_at: int = -1) -> Iterator[tuple[Tensor, ...]]:
    """Nodes of three groups, linked inside of their group; and the group of each node."""
    chance = draw(42)
    centres = torch.randn(3, 8, generator=chance)
    for step in range(steps):
        y = torch.randint(3, (nodes,), generator=chance)
        x = centres[y] + torch.randn(nodes, 8, generator=chance)
        same = (y[:, None] == y[None]).float()
        links = (torch.rand(nodes, nodes, generator=chance) < 0.1 + 0.4 * same).float()
        if step >= isolated_at >= 0:
            links[0] = 0
        yield x, links, y


def reversals(
    steps: int, batch: int = 12, length: int = 6, empty_at: int = -1
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Source, decoder input, mask of the source, and the reversed source that shall come out."""
    chance = draw(43)
    for step in range(steps):
        source = torch.randint(2, 12, (batch, length), generator=chance)
        mask = torch.ones(batch, length, dtype=torch.bool)
        if step == empty_at:
            mask[0] = False
        target = source.flip(1)
        start = torch.ones(batch, 1, dtype=torch.long)
        yield source, torch.cat([start, target[:, :-1]], 1), mask, target


def speech(
    steps: int, batch: int = 8, frames: int = 12, said: int = 3
) -> Iterator[tuple[Tensor, ...]]:
    """Frames of symbols that last some frames each, and the symbols."""
    chance = draw(44)
    sounds = torch.randn(5, 6, generator=chance)
    for _ in range(steps):
        y = torch.randint(1, 5, (batch, said), generator=chance)
        for place in range(1, said):
            same = y[:, place] == y[:, place - 1]
            y[:, place] = torch.where(same, y[:, place] % 4 + 1, y[:, place])
        x = sounds[y].repeat_interleave(math.ceil(frames / said), 1)[:, :frames]
        yield x + 0.3 * torch.randn(x.shape, generator=chance), y


def moons(steps: int, batch: int = 64) -> Iterator[Tensor]:
    """Points on two arcs, of zero mean and unit scale."""
    chance = draw(45)
    for _ in range(steps):
        angle = 3.14 * torch.rand(batch, generator=chance)
        side = torch.randint(2, (batch,), generator=chance) * 2.0 - 1
        x = torch.stack([angle.cos() - 0.5 * side, side * (angle.sin() - 0.3)], -1)
        yield 1.4 * x + 0.05 * torch.randn(batch, 2, generator=chance)


def noised(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A noisy copy, its time, and the noise."""
    t = torch.rand(len(x))
    noise = torch.randn_like(x)
    keep = torch.cos(1.57 * t)[:, None]
    return keep * x + (1 - keep**2).sqrt() * noise, t, noise


def episodes(model: ActorCritic, batch: int = 64) -> tuple[Tensor, Tensor, Tensor]:
    """States, the actions of the policy, and rewards: the best action follows from the state."""
    state = torch.randn(batch, 4)
    with torch.no_grad():
        action = model(state)[0].softmax(-1).multinomial(1).squeeze(1)
    reward = (action == state[:, :3].argmax(-1)).float()
    return state, action, reward


def follow(slow: nn.Module, fast: nn.Module, share: float) -> None:
    """Bring a moving average nearer to what it follows; called without gradients."""
    for mine, other in zip(slow.parameters(), fast.parameters(), strict=True):
        mine.lerp_(other, share)

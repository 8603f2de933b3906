"""A GRU with attention over its states, against gates spelled out step by step."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.divergence.cases import Edit

WIDTH, LENGTH = 24, 6


def inputs() -> tuple[Any, ...]:
    return (torch.randn(3, LENGTH, 10, generator=torch.Generator().manual_seed(9)),)


class Reference(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(10, WIDTH)
        self.score = nn.Linear(WIDTH, 1)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x.new_zeros(len(x), WIDTH)
        states = []
        for step in range(LENGTH):
            state = self.cell(x[:, step], state)
            states.append(state)
        every = torch.stack(states, 1)
        weights = self.score(torch.tanh(every)).softmax(1)
        return self.head((weights * every).sum(1))


class Port(nn.Module):
    def __init__(self, reference: Any) -> None:
        super().__init__()
        self.rnn = reference.cell
        self.attend, self.out = reference.score, reference.head

    def step(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        inner = F.linear(x, self.rnn.weight_ih, self.rnn.bias_ih)
        outer = F.linear(h, self.rnn.weight_hh, self.rnn.bias_hh)
        xr, xz, xn = inner.chunk(3, 1)
        hr, hz, hn = outer.chunk(3, 1)
        r = torch.sigmoid(xr + hr)
        z = torch.sigmoid(xz + hz)
        n = torch.tanh(xn + r * hn)
        return (1 - z) * n + z * h

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(x.shape[0], WIDTH, dtype=x.dtype)
        every = []
        for number in range(LENGTH):
            h = self.step(x[:, number], h)
            every.append(h)
        states = torch.stack(every, dim=1)
        scores = self.attend(torch.tanh(states)).squeeze(-1)
        weights = F.softmax(scores, dim=-1)
        context = torch.einsum("bt,btd->bd", weights, states)
        return self.out(context)


EDITS = (
    Edit(
        name="bmm",
        old='torch.einsum("bt,btd->bd", weights, states)',
        new="torch.bmm(weights.unsqueeze(1), states).squeeze(1)",
        is_same=True,
    ),
    Edit(
        name="update by lerp",
        old="return (1 - z) * n + z * h",
        new="return n + z * (h - n)",
        is_same=True,
    ),
    Edit(
        name="no tanh in the score",
        old="self.attend(torch.tanh(states))",
        new="self.attend(states)",
        at=("self.attend(states)",),
        missing="self.score(torch.tanh",
    ),
    Edit(
        name="softmax over the batch",
        old="F.softmax(scores, dim=-1)",
        new="F.softmax(scores, dim=0)",
        at=("F.softmax",),
    ),
    Edit(
        name="sum without weights",
        old='torch.einsum("bt,btd->bd", weights, states)',
        new="states.mean(1)",
        at=("states.mean(1)",),
    ),
    Edit(
        name="last state read",
        old="return self.out(context)",
        new="return self.out(context + h)",
        at=("context + h",),
    ),
    Edit(
        name="sigmoid for tanh in the score",
        old="self.attend(torch.tanh(states))",
        new="self.attend(torch.sigmoid(states))",
        at=("torch.sigmoid(states)",),
    ),
    Edit(
        name="states in reverse",
        old="states = torch.stack(every, dim=1)",
        new="states = torch.stack(every[::-1], dim=1)",
        is_same=True,
    ),
)

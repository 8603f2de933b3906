"""The model of the demo: a small transformer that learns to sort digits."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

DIGITS = 10
LENGTH = 6
"""How many digits are to be sorted."""


class Attention(nn.Module):
    """Each place looks at those before it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From and to (batch, length, width)."""
        split = self.query_key_value(x).unflatten(-1, (3, self.heads, -1))
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        result: torch.Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return result


class Block(nn.Module):
    """Attention, then a small network at each place, both added to what was there."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.network_norm = nn.LayerNorm(width)
        self.network = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From and to (batch, length, width)."""
        x = x + self.attention(self.attention_norm(x))
        result: torch.Tensor = x + self.network(self.network_norm(x))
        return result


class Sorter(nn.Module):
    """Reads digits and goes on with the same digits in order; its head is its embedding."""

    def __init__(self, width: int = 48, heads: int = 4, depth: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(DIGITS, width)
        self.position = nn.Embedding(2 * LENGTH - 1, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, DIGITS, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.1)
        nn.init.normal_(self.position.weight, std=0.1)
        self.head.weight = self.embedding.weight

    def forward(self, digits: torch.Tensor) -> torch.Tensor:
        """Scores for the digit that follows each place: (batch, length) to (batch, length, 10)."""
        places = torch.arange(digits.shape[1], device=digits.device)
        x = self.embedding(digits) + self.position(places)
        for block in self.blocks:
            x = block(x)
        scores: torch.Tensor = self.head(self.norm(x))
        return scores

    @torch.no_grad()
    def sort(self, digits: torch.Tensor) -> torch.Tensor:
        """The digits in the order in which the model says them, the likeliest one each time."""
        said = digits
        for _ in range(LENGTH):
            said = torch.cat([said, self(said)[:, -1:].argmax(-1)], dim=1)
        return said[:, LENGTH:]


def make_batch(size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Random digits followed by themselves in order, and what the last places should say."""
    digits = torch.randint(DIGITS, (size, LENGTH), generator=generator)
    ordered = digits.sort(dim=1).values
    return torch.cat([digits, ordered[:, :-1]], dim=1), ordered

"""A T5: relative position bias, cross attention, no scale; the port computes the bias in one go."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.divergence.cases import Edit

WIDTH, HEADS, SOURCE, TARGET, WORDS, BUCKETS, FAR = 40, 4, 12, 7, 30, 8, 10


def inputs() -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(6)
    source = torch.randint(1, WORDS, (2, SOURCE), generator=generator)
    source[1, -3:] = 0
    return source, torch.randint(1, WORDS, (2, TARGET), generator=generator)


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * self.weight


def bucket(distance: torch.Tensor, both: bool) -> torch.Tensor:
    count = BUCKETS
    found = torch.zeros_like(distance)
    if both:
        count //= 2
        found = found + (distance > 0).long() * count
        distance = distance.abs()
    else:
        distance = (-distance).clamp(min=0)
    exact = count // 2
    large = torch.log(distance.clamp(min=1).float() / exact) / math.log(FAR / exact)
    large = (exact + (large * (count - exact)).long()).clamp(max=count - 1)
    return found + torch.where(distance < exact, distance, large)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor, memory: torch.Tensor, bias: Any) -> torch.Tensor:
        q, k, v = (
            layer(of).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for layer, of in ((self.q, x), (self.k, memory), (self.v, memory))
        )
        scores = q @ k.transpose(2, 3) + bias
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, crosses: bool) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = Norm(), Norm(), Norm()
        self.attention = Attention()
        self.cross = Attention() if crosses else None
        self.wi0, self.wi1 = (nn.Linear(WIDTH, 96, bias=False) for _ in range(2))
        self.wo = nn.Linear(96, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, bias: Any, memory: Any = None, hidden: Any = None) -> Any:
        y = self.norm1(x)
        x = x + self.attention(y, y, bias)
        if self.cross is not None:
            x = x + self.cross(self.norm2(x), memory, hidden)
        y = self.norm3(x)
        return x + self.wo(F.gelu(self.wi0(y), approximate="tanh") * self.wi1(y))


class Reference(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.bias_in, self.bias_out = (nn.Embedding(BUCKETS, HEADS) for _ in range(2))
        self.encoder = nn.ModuleList(Layer(False) for _ in range(2))
        self.decoder = nn.ModuleList(Layer(True) for _ in range(2))
        self.end_in, self.end_out = Norm(), Norm()

    def bias(self, table: Any, length: int, both: bool) -> torch.Tensor:
        places = torch.arange(length)
        buckets = bucket(places[None, :] - places[:, None], both)
        return table(buckets).permute(2, 0, 1)[None]

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.words(source)
        padding = torch.zeros(source.shape, dtype=x.dtype).masked_fill(source == 0, -1e9)
        padding = padding[:, None, None, :]
        bias = self.bias(self.bias_in, SOURCE, True) + padding
        for layer in self.encoder:
            x = layer(x, bias)
        memory = self.end_in(x)
        x = self.words(target)
        future = torch.full((TARGET, TARGET), -1e9, dtype=x.dtype).triu(1)
        bias = self.bias(self.bias_out, TARGET, False) + future
        for layer in self.decoder:
            x = layer(x, bias, memory, padding)
        return F.linear(self.end_out(x) * WIDTH**-0.5, self.words.weight)


class Port(nn.Module):
    def __init__(self, reference: Any) -> None:
        super().__init__()
        self.shared = reference.words
        self.left, self.right = reference.encoder, reference.decoder
        self.tables = nn.ModuleList([reference.bias_in, reference.bias_out])
        self.final = nn.ModuleList([reference.end_in, reference.end_out])

    def norm(self, layer: Any, x: torch.Tensor) -> torch.Tensor:
        size = torch.sqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-6)
        return layer.weight * (x / size)

    def buckets(self, length: int, both: bool) -> torch.Tensor:
        offsets = torch.arange(1 - length, length)
        half = BUCKETS // 2 if both else BUCKETS
        near = half // 2
        far = offsets.abs() if both else torch.relu(-offsets)
        steps = (far.clamp(min=1) / near).log() / math.log(FAR / near) * (half - near)
        chosen = torch.where(far < near, far, torch.clamp(near + steps.long(), max=half - 1))
        if both:
            chosen = chosen + half * (offsets > 0)
        rows = torch.arange(length)
        return chosen[rows[None, :] - rows[:, None] + length - 1]

    def attend(self, part: Any, x: torch.Tensor, memory: torch.Tensor, mask: Any) -> torch.Tensor:
        batch = len(x)
        q = part.q(x).view(batch, -1, HEADS, WIDTH // HEADS).permute(0, 2, 1, 3)
        k = part.k(memory).view(batch, -1, HEADS, WIDTH // HEADS).permute(0, 2, 1, 3)
        v = part.v(memory).view(batch, -1, HEADS, WIDTH // HEADS).permute(0, 2, 1, 3)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)
        y = y.permute(0, 2, 1, 3).reshape(batch, -1, WIDTH)
        return part.o(y)

    def feed(self, layer: Any, x: torch.Tensor) -> torch.Tensor:
        gate = layer.wi0(x)
        gate = F.gelu(gate, approximate="tanh")
        value = layer.wi1(x)
        return layer.wo(gate * value)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.shared(source)
        keep = (source != 0)[:, None, None, :]
        lowest = torch.finfo(x.dtype).min
        hidden = torch.where(keep, 0.0, lowest).to(x.dtype)
        bias = self.tables[0](self.buckets(SOURCE, True)).movedim(-1, 0)
        mask = bias + hidden
        for layer in self.left:
            y = self.norm(layer.norm1, x)
            x = x + self.attend(layer.attention, y, y, mask)
            x = x + self.feed(layer, self.norm(layer.norm3, x))
        memory = self.norm(self.final[0], x)
        x = self.shared(target)
        bias = self.tables[1](self.buckets(TARGET, False)).movedim(-1, 0)
        ahead = torch.ones(TARGET, TARGET, dtype=torch.bool).triu(diagonal=1)
        mask = bias.masked_fill(ahead, lowest).unsqueeze(0)
        for layer in self.right:
            y = self.norm(layer.norm1, x)
            x = x + self.attend(layer.attention, y, y, mask)
            y = self.norm(layer.norm2, x)
            x = x + self.attend(layer.cross, y, memory, hidden)
            x = x + self.feed(layer, self.norm(layer.norm3, x))
        x = self.norm(self.final[1], x)
        x = x / math.sqrt(WIDTH)
        return x @ self.shared.weight.t()


EDITS = (
    Edit(
        name="attention spelled out",
        old="y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)",
        new='weights = torch.einsum("bhid,bhjd->bhij", q, k) + mask\n'
        '        y = torch.einsum("bhij,bhjd->bhid", torch.softmax(weights, dim=3), v)',
        is_same=True,
    ),
    Edit(
        name="norm by torch",
        old="size = torch.sqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-6)\n"
        "        return layer.weight * (x / size)",
        new="return F.rms_norm(x, (WIDTH,), layer.weight, eps=1e-6)",
        is_same=True,
    ),
    Edit(
        name="scaled as usual",
        old="attn_mask=mask, scale=1.0)",
        new="attn_mask=mask)",
        at=("F.scaled_dot",),
    ),
    Edit(
        name="buckets of one direction",
        old="chosen = chosen + half * (offsets > 0)",
        new="chosen = chosen + half * (offsets < 0)",
        at=("half * (offsets < 0)",),
    ),
    Edit(
        name="padding not hidden in the cross attention",
        old="x = x + self.attend(layer.cross, y, memory, hidden)",
        new="x = x + self.attend(layer.cross, y, memory, None)",
        at=("F.scaled_dot", "layer.cross, y, memory, None"),
    ),
    Edit(
        name="memory before its norm",
        old="memory = self.norm(self.final[0], x)",
        new="memory = x",
        at=("part.k(memory)", "part.v(memory)"),
        missing="rsqrt((x * x).mean",
    ),
    Edit(
        name="offsets the other way round",
        old="chosen[rows[None, :] - rows[:, None] + length - 1]",
        new="chosen[rows[:, None] - rows[None, :] + length - 1]",
        at=("chosen[rows",),
    ),
    Edit(
        name="farthest distance",
        old="math.log(FAR / near)",
        new="math.log(4 * FAR / near)",
        at=("steps =", "chosen ="),
    ),
    Edit(
        name="exact gelu",
        old='gate = F.gelu(gate, approximate="tanh")',
        new="gate = F.gelu(gate)",
    ),
    Edit(
        name="logits not scaled",
        old="        x = x / math.sqrt(WIDTH)\n",
        new="",
        at=("self.shared.weight.t()",),
        missing="WIDTH**-0.5",
    ),
    Edit(
        name="queries from the memory",
        old="q = part.q(x).view(batch",
        new="q = part.q(memory)[:, : x.shape[1]].reshape(batch",
        at=("part.q(memory)",),
    ),
    Edit(
        name="norm centered",
        old="size = torch.sqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-6)",
        new="size = torch.sqrt(x.var(dim=-1, keepdim=True) + 1e-6)",
        at=("x.var(",),
    ),
    Edit(
        name="biases of encoder and decoder swapped",
        old="bias = self.tables[0](self.buckets(SOURCE, True))",
        new="bias = self.tables[1](self.buckets(SOURCE, True))",
        at=("self.tables[1](self.buckets(SOURCE", "mask = bias + hidden"),
    ),
)

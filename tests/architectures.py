"""Architectures of several kinds, small enough to run: what diagrams, plans and experiments try."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Bottleneck(nn.Module):
    """Three convolutions and a skip connection, as in ResNet-50."""

    def __init__(self, inputs: int, width: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride > 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Any:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)


class ResNet(nn.Module):
    """ResNet-50 with 64 channels and blocks (3, 4, 6, 3); smaller ones have the same form."""

    def __init__(
        self, blocks: Sequence[int] = (3, 4, 6, 3), width: int = 64, groups: int = 1
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inputs = width
        for stage, count in enumerate(blocks):
            inner = width << stage
            first = Bottleneck(inputs, inner, 2 if stage else 1, groups)
            inputs = 4 * inner
            rest = [Bottleneck(inputs, inner, groups=groups) for _ in range(count - 1)]
            self.add_module(f"layer{stage + 1}", nn.Sequential(first, *rest))
        self.stages = len(blocks)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, 10)

    def forward(self, x: Tensor) -> Any:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in range(self.stages):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


class DoubleConv(nn.Sequential):
    """Two convolutions with norms."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        )


class Up(nn.Module):
    """Doubles the resolution and adds the channels of the way down."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(inputs, inputs // 2, 2, 2)
        self.conv = DoubleConv(inputs, outputs)

    def forward(self, x: Tensor, skip: Tensor) -> Any:
        return self.conv(torch.cat([skip, self.up(x)], 1))


class UNet(nn.Module):
    """A U-Net with a skip connection at each level."""

    def __init__(self, width: int = 16, levels: int = 4) -> None:
        super().__init__()
        self.inc = DoubleConv(3, width)
        self.down = nn.ModuleList(
            nn.Sequential(nn.MaxPool2d(2), DoubleConv(width << level, width << level + 1))
            for level in range(levels)
        )
        self.up = nn.ModuleList(
            Up(width << level + 1, width << level) for level in reversed(range(levels))
        )
        self.outc = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Any:
        kept = [self.inc(x)]
        for down in self.down:
            kept.append(down(kept[-1]))
        x = kept.pop()
        for up in self.up:
            x = up(x, kept.pop())
        return self.outc(x)


class CausalAttention(nn.Module):
    """Self-attention by torch's fused function."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Any:
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(x).split(width, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(batch, length, width))


class FeedForward(nn.Module):
    """The hidden layer of a transformer block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc = nn.Linear(width, 4 * width)
        self.act = nn.GELU()
        self.proj = nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Any:
        return self.drop(self.proj(self.act(self.fc(x))))


class MixtureOfExperts(nn.Module):
    """All experts, weighted by a gate."""

    def __init__(self, width: int, experts: int = 8) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Any:
        weights = self.gate(x).softmax(-1)
        output = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            output = output + weights[..., number : number + 1] * expert(x)
        return output


class DecoderBlock(nn.Module):
    """A transformer block before whose layers the norms are."""

    def __init__(self, width: int, heads: int, mlp: nn.Module) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = CausalAttention(width, heads)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = mlp

    def forward(self, x: Tensor) -> Any:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class LanguageModel(nn.Module):
    """A GPT, or with experts a mixture model; head and embedding share their weight."""

    def __init__(self, blocks: int = 12, width: int = 96, heads: int = 4, experts: int = 0) -> None:
        super().__init__()
        self.wte = nn.Embedding(1000, width)
        self.wpe = nn.Embedding(64, width)
        self.drop = nn.Dropout(0.1)
        self.h = nn.ModuleList(
            DecoderBlock(
                width,
                heads,
                MixtureOfExperts(width, experts) if experts else FeedForward(width),
            )
            for _ in range(blocks)
        )
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, 1000, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx: Tensor) -> Any:
        positions = torch.arange(idx.shape[1], device=idx.device)
        x = self.drop(self.wte(idx) + self.wpe(positions))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))

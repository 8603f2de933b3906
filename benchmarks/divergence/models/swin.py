"""A Swin: shifted windows, merged patches and a depthwise stem; the port has channels last."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.divergence.cases import Edit

WIDTH, HEADS, SIDE, WINDOW, CLASSES = 24, 3, 8, 4, 6


def inputs() -> tuple[Any, ...]:
    return (torch.randn(2, 3, 2 * SIDE, 2 * SIDE, generator=torch.Generator().manual_seed(8)),)


def windows(x: torch.Tensor) -> torch.Tensor:
    batch, height, width, channels = x.shape
    x = x.view(batch, height // WINDOW, WINDOW, width // WINDOW, WINDOW, channels)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, WINDOW * WINDOW, channels)


def together(x: torch.Tensor, side: int) -> torch.Tensor:
    many = side // WINDOW
    x = x.view(-1, many, many, WINDOW, WINDOW, x.shape[-1])
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, side, side, x.shape[-1])


def shift_mask(side: int, shift: int) -> torch.Tensor:
    area = torch.zeros(1, side, side, 1)
    parts = (slice(0, -WINDOW), slice(-WINDOW, -shift), slice(-shift, None))
    for row, rows in enumerate(parts):
        for column, columns in enumerate(parts):
            area[:, rows, columns] = 3 * row + column
    flat = windows(area).squeeze(-1)
    return (flat[:, None, :] - flat[:, :, None]) != 0


class Block(nn.Module):
    def __init__(self, width: int, shift: int) -> None:
        super().__init__()
        self.shift = shift
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Parameter(torch.zeros(HEADS, WINDOW**2, WINDOW**2))
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        side, short = x.shape[1], x
        x = self.norm1(x)
        if self.shift:
            x = torch.roll(x, (-self.shift, -self.shift), (1, 2))
        y = windows(x)
        q, k, v = self.qkv(y).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1) + self.bias
        if self.shift:
            hidden = shift_mask(side, self.shift)
            scores = scores.unflatten(0, (-1, len(hidden)))
            scores = scores.masked_fill(hidden[:, None], -100.0).flatten(0, 1)
        y = self.proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        y = together(y, side)
        if self.shift:
            y = torch.roll(y, (self.shift, self.shift), (1, 2))
        x = short + y
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Reference(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 2, stride=2)
        self.depth = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, groups=WIDTH)
        self.start = nn.LayerNorm(WIDTH)
        self.first = nn.ModuleList([Block(WIDTH, 0), Block(WIDTH, 2)])
        self.merge_norm = nn.LayerNorm(4 * WIDTH)
        self.merge = nn.Linear(4 * WIDTH, 2 * WIDTH, bias=False)
        self.second = nn.ModuleList([Block(2 * WIDTH, 0)])
        self.norm, self.head = nn.LayerNorm(2 * WIDTH), nn.Linear(2 * WIDTH, CLASSES)
        self.scale = nn.Parameter(torch.full((WIDTH,), 0.5))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.stem(images)
        x = x + self.scale[:, None, None] * self.depth(x)
        x = self.start(x.permute(0, 2, 3, 1))
        for block in self.first:
            x = block(x)
        parts = [x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]]
        x = self.merge(self.merge_norm(torch.cat(parts, -1)))
        for block in self.second:
            x = block(x)
        return self.head(self.norm(x).mean((1, 2)))


class Port(nn.Module):
    def __init__(self, reference: Any) -> None:
        super().__init__()
        self.source = reference

    def cut(self, x: torch.Tensor) -> torch.Tensor:
        x = x.unflatten(1, (-1, WINDOW)).unflatten(3, (-1, WINDOW))
        return x.transpose(2, 3).flatten(3, 4).flatten(0, 2)

    def mask(self, side: int, shift: int) -> torch.Tensor:
        marks = torch.arange(side)
        marks = (marks >= side - WINDOW).int() + (marks >= side - shift).int()
        area = marks[:, None] * 3 + marks[None, :]
        flat = self.cut(area[None, :, :, None])
        flat = flat.flatten(1)
        return flat.unsqueeze(1) == flat.unsqueeze(2)

    def attention(self, block: Any, x: torch.Tensor, side: int) -> torch.Tensor:
        y = self.cut(x)
        count, length, width = y.shape
        qkv = block.qkv(y).reshape(count, length, 3, HEADS, width // HEADS)
        q, k, v = (one.transpose(1, 2) for one in qkv.unbind(2))
        bias = block.bias
        if block.shift:
            keep = self.mask(side, block.shift)
            low = torch.zeros(keep.shape, dtype=x.dtype).masked_fill(~keep, -100.0)
            bias = bias[None] + low.repeat(len(x), 1, 1)[:, None]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        y = block.proj(y.transpose(1, 2).reshape(count, length, width))
        many = side // WINDOW
        y = y.reshape(-1, many, many, WINDOW, WINDOW, width).transpose(2, 3)
        return y.reshape(-1, side, side, width)

    def block(self, block: Any, x: torch.Tensor) -> torch.Tensor:
        side = x.shape[2]
        y = block.norm1(x)
        if block.shift:
            y = y.roll((-block.shift, -block.shift), dims=(1, 2))
        y = self.attention(block, y, side)
        if block.shift:
            y = y.roll((block.shift, block.shift), dims=(1, 2))
        x = y + x
        y = block.fc1(block.norm2(x))
        y = F.gelu(y)
        return block.fc2(y) + x

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        own = self.source
        x = own.stem(images)
        deep = F.conv2d(x, own.depth.weight, own.depth.bias, padding=1, groups=WIDTH)
        x = x + deep * own.scale.view(1, -1, 1, 1)
        x = x.movedim(1, -1)
        x = own.start(x)
        for block in own.first:
            x = self.block(block, x)
        x = x.unflatten(1, (-1, 2)).unflatten(3, (-1, 2))
        x = x.permute(0, 1, 3, 4, 2, 5).flatten(3)
        x = own.merge_norm(x)
        x = own.merge(x)
        for block in own.second:
            x = self.block(block, x)
        x = own.norm(x)
        x = x.flatten(1, 2).mean(1)
        return own.head(x)


EDITS = (
    Edit(
        name="stem as a matrix product",
        old="x = own.stem(images)",
        new="x = F.unfold(images, 2, stride=2).transpose(1, 2)\n"
        "        x = x @ own.stem.weight.flatten(1).T + own.stem.bias\n"
        "        x = x.transpose(1, 2).unflatten(2, (SIDE, SIDE))",
        is_same=True,
    ),
    Edit(
        name="scale inside of the convolution",
        old="deep = F.conv2d(x, own.depth.weight, own.depth.bias, padding=1, groups=WIDTH)\n"
        "        x = x + deep * own.scale.view(1, -1, 1, 1)",
        new="kernel = own.depth.weight * own.scale.view(-1, 1, 1, 1)\n"
        "        x = x + F.conv2d(x, kernel, own.depth.bias * own.scale, 1, 1, 1, WIDTH)",
        is_same=True,
    ),
    Edit(
        name="shifted the other way",
        old="y = y.roll((-block.shift, -block.shift), dims=(1, 2))",
        new="y = y.roll((block.shift, -block.shift), dims=(1, 2))",
        at=("(block.shift, -block.shift)",),
    ),
    Edit(
        name="not shifted back",
        old="            y = y.roll((block.shift, block.shift), dims=(1, 2))\n",
        new="            y = y + 0\n",
        at=("x = y + x", "y = y + 0"),
        missing="(self.shift, self.shift)",
    ),
    Edit(
        name="mask of the wrong side",
        old="(marks >= side - shift).int()",
        new="(marks >= shift).int()",
        at=("(marks >= shift)",),
    ),
    Edit(
        name="bias transposed",
        old="bias = block.bias\n",
        new="bias = block.bias.transpose(1, 2)\n",
        at=("block.bias.transpose", "F.scaled_dot", "bias = bias[None]"),
    ),
    Edit(
        name="windows by columns",
        old="y = y.reshape(-1, many, many, WINDOW, WINDOW, width).transpose(2, 3)",
        new="y = y.reshape(-1, many, many, WINDOW, WINDOW, width).transpose(1, 3)",
        at=("transpose(1, 3)", "y.reshape(-1, side"),
    ),
    Edit(
        name="patches merged in another order",
        old="x = x.permute(0, 1, 3, 4, 2, 5).flatten(3)",
        new="x = x.permute(0, 1, 3, 2, 4, 5).flatten(3)",
        at=("permute(0, 1, 3, 2, 4, 5)",),
    ),
    Edit(
        name="scale forgotten",
        old="x = x + deep * own.scale.view(1, -1, 1, 1)",
        new="x = x + deep",
        at=("x = x + deep",),
        missing="self.scale[:, None, None]",
    ),
    Edit(
        name="padding reflected",
        old="deep = F.conv2d(x, own.depth.weight, own.depth.bias, padding=1, groups=WIDTH)",
        new='deep = F.pad(x, (1, 1, 1, 1), mode="reflect")\n'
        "        deep = F.conv2d(deep, own.depth.weight, own.depth.bias, groups=WIDTH)",
        at=("F.pad(x", "F.conv2d(deep"),
    ),
    Edit(
        name="mean before the norm",
        old="x = own.norm(x)\n        x = x.flatten(1, 2).mean(1)",
        new="x = x.flatten(1, 2).mean(1)\n        x = own.norm(x)",
        at=("x.flatten(1, 2).mean(1)", "own.norm(x)"),
    ),
    Edit(
        name="scaled by the width",
        old="F.scaled_dot_product_attention(q, k, v, attn_mask=bias)",
        new="F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=width**-0.5)",
        at=("F.scaled_dot",),
    ),
)

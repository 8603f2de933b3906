"""A U-Net with group norms: skip connections by channels, upsampling, a residual of the input."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.divergence.cases import Edit


def inputs() -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(8)
    return torch.randn(2, 4, 16, 16, generator=generator), torch.rand(2, generator=generator)


class Conv(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, before)
        self.conv = nn.Conv2d(before, after, 3, padding=1)
        self.time = nn.Linear(16, after)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y = self.conv(F.silu(self.norm(x)))
        return y + self.time(time)[:, :, None, None]


class Reference(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Conv2d(4, 16, 3, padding=1)
        self.down, self.middle, self.up = Conv(16, 24), Conv(24, 24), Conv(40, 16)
        self.outside = nn.Conv2d(16, 4, 1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        steps = torch.exp(-torch.arange(8) / 8 * 4.0).to(x.dtype)
        angles = time[:, None] * steps
        time = torch.cat([angles.sin(), angles.cos()], -1)
        first = self.inside(x)
        y = self.down(F.avg_pool2d(first, 2), time)
        y = y + self.middle(y, time)
        y = F.interpolate(y, scale_factor=2, mode="nearest")
        y = self.up(torch.cat([y, first], 1), time)
        return x + self.outside(y)


class Port(nn.Module):
    def __init__(self, reference: Any) -> None:
        super().__init__()
        self.conv_in, self.conv_out = reference.inside, reference.outside
        self.enc, self.mid, self.dec = reference.down, reference.middle, reference.up

    def embed(self, time: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(8, dtype=torch.float32)
        steps = torch.exp(-(4.0 * steps / 8)).to(time.dtype)
        angles = torch.outer(time, steps)
        return torch.cat((torch.sin(angles), torch.cos(angles)), dim=1)

    def norm(self, layer: Any, x: torch.Tensor) -> torch.Tensor:
        batch, channels, height, width = x.shape
        groups = x.reshape(batch, 4, -1)
        mean = groups.mean(-1, keepdim=True)
        variance = groups.var(-1, unbiased=False, keepdim=True)
        groups = (groups - mean) / torch.sqrt(variance + 1e-5)
        x = groups.reshape(batch, channels, height, width)
        return x * layer.weight[:, None, None] + layer.bias[:, None, None]

    def block(self, layer: Any, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        x = self.norm(layer.norm, x)
        x = x * torch.sigmoid(x)
        x = layer.conv(x)
        time = layer.time(time)
        return x + time.unsqueeze(-1).unsqueeze(-1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        time = self.embed(time)
        skip = self.conv_in(x)
        y = F.avg_pool2d(skip, kernel_size=2, stride=2)
        y = self.block(self.enc, y, time)
        y = self.block(self.mid, y, time) + y
        y = y.repeat_interleave(2, -1).repeat_interleave(2, -2)
        y = torch.cat((y, skip), dim=1)
        y = self.block(self.dec, y, time)
        return self.conv_out(y) + x


EDITS = (
    Edit(
        name="upsampling by torch",
        old="y.repeat_interleave(2, -1).repeat_interleave(2, -2)",
        new="F.interpolate(y, scale_factor=2)",
        is_same=True,
    ),
    Edit(name="silu by torch", old="x = x * torch.sigmoid(x)", new="x = F.silu(x)", is_same=True),
    Edit(
        name="skip connection first",
        old="torch.cat((y, skip), dim=1)",
        new="torch.cat((skip, y), dim=1)",
        at=("torch.cat((skip, y)",),
    ),
    Edit(
        name="bilinear upsampling",
        old="y.repeat_interleave(2, -1).repeat_interleave(2, -2)",
        new='F.interpolate(y, scale_factor=2, mode="bilinear")',
        at=("bilinear",),
    ),
    Edit(
        name="sample variance",
        old="groups.var(-1, unbiased=False, keepdim=True)",
        new="groups[..., :8].var(-1, unbiased=True, keepdim=True)",
        at=("variance = groups",),
    ),
    Edit(
        name="norm over other groups",
        old="groups = x.reshape(batch, 4, -1)",
        new="groups = x.reshape(batch, 8, -1)",
        at=("x.reshape(batch, 8", "mean = groups", "variance = groups", "(groups - mean)"),
    ),
    Edit(
        name="time added twice",
        old="return x + time.unsqueeze(-1).unsqueeze(-1)",
        new="return x + 2 * time.unsqueeze(-1).unsqueeze(-1)",
        at=("2 * time",),
    ),
    Edit(
        name="time along the width",
        old="return x + time.unsqueeze(-1).unsqueeze(-1)",
        new="return x + time.mean(1)[:, None, None, None]",
        at=("time.mean(1)",),
    ),
    Edit(
        name="sine and cosine swapped",
        old="(torch.sin(angles), torch.cos(angles))",
        new="(torch.cos(angles), torch.sin(angles))",
        at=("torch.cat((torch.cos",),
    ),
    Edit(
        name="another period",
        old="-(4.0 * steps / 8)",
        new="-(3.0 * steps / 8)",
        at=("3.0 * steps",),
    ),
    Edit(
        name="maximum pooling",
        old="F.avg_pool2d(skip, kernel_size=2, stride=2)",
        new="F.max_pool2d(skip, kernel_size=2, stride=2)",
        at=("F.max_pool2d",),
    ),
    Edit(
        name="residual of the input missing",
        old="return self.conv_out(y) + x",
        new="return self.conv_out(y)",
        at=("self.conv_out(y)",),
        missing="x + self.outside",
    ),
    Edit(
        name="activation before the norm",
        old="        x = self.norm(layer.norm, x)\n        x = x * torch.sigmoid(x)",
        new="        x = x * torch.sigmoid(x)\n        x = self.norm(layer.norm, x)",
        at=("torch.sigmoid(x)",),
    ),
)

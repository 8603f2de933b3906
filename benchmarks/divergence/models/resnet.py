"""A small ResNet, against a port by functions with its batch norms spelled out."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.divergence.cases import Edit


def inputs() -> tuple[Any, ...]:
    return (torch.randn(2, 3, 33, 33, generator=torch.Generator().manual_seed(7)),)


class Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.down = nn.Sequential(
            nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + self.down(x))


class Reference(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 5, 2, 2, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )
        self.blocks = nn.Sequential(Block(8, 16, 2), Block(16, 24, 1), Block(24, 32, 2))
        self.head = nn.Linear(32, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.stem(x))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Port(nn.Module):
    def __init__(self, reference: Any) -> None:
        super().__init__()
        self.first, self.first_bn = reference.stem[0], reference.stem[1]
        self.stages = reference.blocks
        self.out = reference.head

    def bn(self, layer: Any, x: torch.Tensor) -> torch.Tensor:
        scale = layer.weight / torch.sqrt(layer.running_var + 1e-5)
        shift = layer.bias - layer.running_mean * scale
        return x * scale[None, :, None, None] + shift[None, :, None, None]

    def stage(self, block: Any, x: torch.Tensor, stride: int) -> torch.Tensor:
        skip = self.bn(block.down[1], F.conv2d(x, block.down[0].weight, stride=stride))
        y = F.conv2d(x, block.conv1.weight, stride=stride, padding=1)
        y = self.bn(block.bn1, y)
        y = torch.clamp(y, min=0)
        y = F.conv2d(y, block.conv2.weight, padding=1)
        y = self.bn(block.bn2, y)
        y = skip + y
        return torch.clamp(y, min=0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.conv2d(x, self.first.weight, stride=2, padding=2)
        x = F.relu(self.bn(self.first_bn, x))
        x = F.max_pool2d(x, 3, 2, 1)
        x = self.stage(self.stages[0], x, 2)
        x = self.stage(self.stages[1], x, 1)
        x = self.stage(self.stages[2], x, 2)
        x = x.mean(dim=(2, 3))
        return self.out(x)


EDITS = (
    Edit(
        name="convolution as a matrix product",
        old="y = F.conv2d(y, block.conv2.weight, padding=1)",
        new="z = F.unfold(y, 3, padding=1)\n"
        "        y = (block.conv2.weight.flatten(1) @ z).view(len(y), -1, *y.shape[2:])",
        is_same=True,
    ),
    Edit(
        name="channels last",
        old="        x = x.mean(dim=(2, 3))\n        return self.out(x)",
        new="        x = x.permute(0, 2, 3, 1)\n        return self.out(x.mean(1).mean(1))",
        is_same=True,
    ),
    Edit(
        name="batch norm by torch",
        old="        return x * scale[None, :, None, None] + shift[None, :, None, None]",
        new="        return F.batch_norm(\n            x, layer.running_mean, layer.running_var, "
        "layer.weight, layer.bias\n        )",
        is_same=True,
    ),
    Edit(
        name="wrong padding",
        old="stride=2, padding=2)",
        new="stride=2, padding=1)",
        at=("F.conv2d(x, self.first",),
    ),
    Edit(
        name="pooling rounds up",
        old="x = F.max_pool2d(x, 3, 2, 1)",
        new="x = F.max_pool2d(x, 3, 2, 0, ceil_mode=True)",
    ),
    Edit(
        name="average for maximum",
        old="x = F.max_pool2d(x, 3, 2, 1)",
        new="x = F.avg_pool2d(x, 3, 2, 1)",
    ),
    Edit(
        name="relu after the sum missing",
        old="        return torch.clamp(y, min=0)",
        new="        return y",
        at=("F.conv2d(x, block", "x.mean("),
        missing="F.relu(y + self.down",
    ),
    Edit(
        name="leaky relu",
        old="        y = torch.clamp(y, min=0)\n        y = F.conv2d",
        new="        y = F.leaky_relu(y, 0.01)\n        y = F.conv2d",
        at=("F.leaky_relu",),
    ),
    Edit(
        name="stride on the second convolution",
        old="y = F.conv2d(x, block.conv1.weight, stride=stride, padding=1)",
        new="y = F.conv2d(x, block.conv1.weight, padding=1)[:, :, :: stride, :: stride].roll(1, 2)",
        at=("roll(1, 2)",),
    ),
    Edit(
        name="norms swapped",
        old="y = self.bn(block.bn2, y)",
        new="y = self.bn(block.bn1, y)",
        at=("return x * scale", "scale = layer.weight", "shift = layer.bias"),
    ),
    Edit(
        name="square root forgotten",
        old="layer.weight / torch.sqrt(layer.running_var + 1e-5)",
        new="layer.weight / (layer.running_var + 1e-5)",
        at=("scale = layer.weight",),
    ),
    Edit(
        name="mean not scaled",
        old="shift = layer.bias - layer.running_mean * scale",
        new="shift = layer.bias - layer.running_mean",
    ),
    Edit(
        name="skip connection missing",
        old="y = skip + y",
        new="y = y + 0 * skip",
        at=("0 * skip", "return torch.clamp(y"),
        missing="y + self.down(x)",
    ),
    Edit(
        name="mean over one axis and channels",
        old="x = x.mean(dim=(2, 3))",
        new="x = x.amax(dim=(2, 3))",
    ),
    Edit(
        name="kernel flipped",
        old="y = F.conv2d(y, block.conv2.weight, padding=1)",
        new="y = F.conv2d(y, block.conv2.weight.flip(-1), padding=1)",
    ),
)

"""Models to trace, and the tracing of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from torchglass.capture.model.structure import read_model
from torchglass.capture.trace.assemble import assemble
from torchglass.capture.trace.pass_recorder import tracing
from torchglass.results.trace import Trace


class AlexNet(nn.Module):
    """Krizhevsky's second AlexNet, layer by layer as torchvision has it."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, kernel_size=11, stride=4, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2),
            nn.Conv2d(64, 192, kernel_size=5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2),
            nn.Conv2d(192, 384, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(384, 256, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(256, 256, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2),
        )
        self.avgpool = nn.AdaptiveAvgPool2d((6, 6))
        self.classifier = nn.Sequential(
            nn.Dropout(),
            nn.Linear(256 * 6 * 6, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Linear(4096, 1000),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.avgpool(self.features(x))
        x = torch.flatten(x, 1)
        logits: torch.Tensor = self.classifier(x)
        return logits


class Recurrent(nn.Module):
    """A layer that runs four times, with a residual, and returns a nest."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 5)
        self.norm = nn.BatchNorm1d(5)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        for _ in range(4):
            x = torch.relu(self.fc(x)) + x
        return {"a": self.norm(x), "b": [x, x * 2]}


def traced(model: nn.Module, *args: Any, random_seed: int | None = None, **kwargs: Any) -> Trace:
    """The trace of one forward pass."""
    with tracing(model) as recorder:
        output = model(*args, **kwargs)
    return Trace(
        lambda: assemble(recorder),
        lambda: read_model(model),
        output=output,
        random_seed=random_seed,
    )

"""Runs for the browser tests: a small transformer with all that a page has to show."""

from __future__ import annotations

import math

from tests import make
from torchglass.records.flow import Sink
from torchglass.records.model import Model
from torchglass.records.run import Run
from torchglass.records.series import Frame, Point, SeriesId
from torchglass.records.tensors import Stats

RUN = Run(name="tiny-gpt", created_ns=0, command="python train.py")


def transformer(blocks: int = 4) -> Model:
    """An embedding that the head is tied to, and blocks of attention and mlp."""
    linear = "torch.nn.modules.linear.Linear"
    block = {
        "class": "shop.Block",
        "children": {
            "attention": {"class": linear, "weight": (24, 8), "bias": (24,), "extra": "8, 24"},
            "mlp": {
                "children": {
                    "0": {"class": linear, "weight": (32, 8)},
                    "1": {"class": "torch.nn.modules.activation.GELU"},
                }
            },
        },
    }
    return make.model(
        {
            "children": {
                "embed": {"class": "torch.nn.modules.sparse.Embedding", "weight": (100, 8)},
                "blocks": {"children": {str(at): block for at in range(blocks)}},
                "head": {
                    "class": linear,
                    "weight": (100, 8),
                    "tied": {"weight": "embed.weight"},
                    "problem": "extra_repr: ValueError: no",
                },
            }
        },
        name="Gpt",
    )


def put_steps(sink: Sink, steps: range) -> None:
    """A falling loss, and the statistics of the embedding's weight."""
    loss = sink.series("", "loss")
    weight = sink.series("embed", "weight", "stats")
    for step in steps:
        stats = Stats(count=800, min=-1.0 - step, max=1.0 + step, mean=0.25, std=0.5)
        points: dict[SeriesId, Point] = {loss: math.exp(-step / 20), weight: stats}
        sink.put_frame(Frame(step=step, time_ns=step, points=points))

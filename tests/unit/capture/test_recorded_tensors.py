"""The tensors of a traced pass, by module."""

from __future__ import annotations

import torch
from torch import nn

import torchglass as tg
from torchglass.capture.live_object import recorded_tensors


class Twice(nn.Module):
    """A layer that runs twice, and a part that returns two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.split = Split()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low, high = self.split(self.layer(self.layer(x)))
        return torch.as_tensor(low + high)


class Split(nn.Module):
    """Two halves."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x[:1], x[1:]


def test_each_module_has_inputs_and_outputs_of_its_last_call() -> None:
    model, x = Twice(), torch.randn(2, 3)
    trace = tg.trace(model, x)

    found = recorded_tensors(trace.record, trace.saved_tensors)

    once = model.layer(x)
    assert set(found) == {"", "layer", "split"}
    assert torch.equal(found["layer"]["input.0"], once)
    assert torch.equal(found["layer"]["output"], model.layer(once))
    assert list(found["split"]) == ["input.0", "output.0", "output.1"]
    assert torch.equal(found["split"]["output.1"], model.layer(once)[1:])
    assert torch.equal(found[""]["input.0"], x)


def test_unsaved_tensors_are_missing() -> None:
    trace = tg.trace(Twice(), torch.randn(2, 3))

    assert recorded_tensors(trace.record, {}) == {}

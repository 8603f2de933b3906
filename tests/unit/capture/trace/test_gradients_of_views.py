"""The gradient of what an op wrote into a view, by all the ways on which it is used."""

from __future__ import annotations

import torch
from torch import nn

import torchglass as tg


class Writes(nn.Module):
    """Writes into all of a tensor through a view, then into a column, and uses both."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        flat = y.view(-1)
        flat.add_(1)
        y[:, 1].mul_(4)
        return y * 3 + flat.view(2, 3) * 5


def test_a_value_written_to_a_view_includes_the_gradient_through_the_base() -> None:
    x = torch.randn(2, 3, requires_grad=True)
    trace = tg.trace(Writes(), x, gradients=True)

    trace.output.sum().backward()

    added, column = trace["add_1"].gradient, trace["mul_2"].gradient
    assert added is not None
    assert added.tolist() == [8, 32, 8, 8, 32, 8]
    assert column is not None
    assert column.tolist() == [8, 8]
    assert torch.equal(torch.as_tensor(x.grad), 2 * added.view(2, 3))

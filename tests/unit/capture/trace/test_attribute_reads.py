"""What reading an attribute of a tensor leaves in a trace: nothing, unless it makes a tensor."""

from __future__ import annotations

import torch
from torch import nn

import torchglass as tg
from torchglass.results.trace import Trace


class _Reading(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.is_leaf
        assert x.grad is None
        assert x[:1]._base is x
        return x.mT.reshape(x.shape).to(x.dtype) + x.ndim


class _Views(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turned = torch.complex(x.T, x.mT).H
        return turned.real + turned.imag + self.weight.data


def _computed(trace: Trace) -> list[str]:
    return [op.record.function for op in trace.ops if op.record.kind == "op"]


def test_reading_grad_in_a_training_step_is_not_an_op() -> None:
    model, x = nn.Linear(2, 2), torch.ones(1, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)

    with tg.tracing(model) as trace:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    assert _computed(trace) == ["linear", "sum", "add_", "add_"]


def test_an_op_on_a_gradient_has_the_gradient_op_as_parent() -> None:
    model = nn.Linear(2, 2)

    with tg.tracing(model) as trace:
        model.weight.grad = torch.ones(2, 2) * 3
        model.weight.grad.mul_(2)
        norm = model.weight.grad.norm()

    assert norm.item() == 12
    assert [parent.label for parent in trace["norm"].parents] == ["mul_2_2"]
    assert [parent.label for parent in trace["mul_2"].parents] == ["mul_1_1"]


def test_attribute_reads_without_a_new_tensor_are_not_ops() -> None:
    trace = tg.trace(_Reading(), torch.ones(2, 2))

    assert _computed(trace) == ["__getitem__", "mT", "reshape", "to", "add"]


def test_attribute_reads_that_return_views_are_ops_and_are_replayed() -> None:
    trace = tg.trace(_Views(), torch.ones(2, 2))

    assert _computed(trace) == ["T", "mT", "complex", "H", "real", "imag", "add", "data", "add"]
    assert [parent.record.function for parent in trace["imag"].parents] == ["H"]
    assert trace.validate()

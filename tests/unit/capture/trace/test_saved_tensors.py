"""What was saved stays as it was, also where autograd writes out of sight."""

from __future__ import annotations

import torch
from torch import nn

import torchglass as tg
from tests.versions import needs_torch


def test_a_gradient_is_saved_before_a_later_backward_adds_to_it() -> None:
    model, x = nn.Linear(2, 1), torch.ones(1, 2)
    model(x).sum().backward()

    with tg.tracing(model) as trace:
        model.zero_grad(set_to_none=False)
        model(x).sum().backward()

    assert torch.equal(torch.as_tensor(model.weight.grad), torch.ones(1, 2))
    assert torch.equal(torch.as_tensor(trace["zero_1:1"].tensor), torch.zeros(1, 2))
    assert trace.validate()


def test_gradients_accumulate_in_a_traced_block_as_without_tracing() -> None:
    model, x = nn.Linear(2, 1), torch.ones(1, 2)

    with tg.tracing(model) as trace:
        for _ in range(3):
            model(x).sum().backward()
            norm = torch.as_tensor(model.weight.grad).sum()

    assert norm.item() == 6
    read = [op.tensor for op in trace if op.function == "sum" and not op.grad_fn]
    assert [torch.as_tensor(tensor).item() for tensor in read] == [2, 4, 6]
    assert trace.validate()


@needs_torch(2, 10, "torch.autograd.backward hands itself to function modes")
def test_torch_autograd_backward_is_recorded_like_loss_backward() -> None:
    model, x = nn.Linear(2, 1), torch.ones(1, 2)
    model(x).sum().backward()

    with tg.tracing(model) as trace:
        model.zero_grad(set_to_none=False)
        torch.autograd.backward(model(x).sum())

    assert torch.equal(torch.as_tensor(trace["zero_1:1"].tensor), torch.zeros(1, 2))

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

from torchglass.capture.autograd import nodes_behind
from torchglass.capture.measure.memory_recorder import MemoryRecorder, tensors_saved_by


class Cube(Function):
    """A function of the user's own, which saves its input."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradients[0] * 3 * torch.as_tensor(x) ** 2


def savers(run: Callable[[torch.Tensor], torch.Tensor]) -> list[tuple[str, tuple[int, ...]]]:
    """Who saves what, by the shapes of what is saved."""
    recorder = MemoryRecorder([])
    x = torch.randn(2, 3, requires_grad=True)
    with recorder.watching("forward"):
        output = run(x)
    found = tensors_saved_by(nodes_behind([output]), recorder._creators)
    return [(saver.node, tuple(tensor.shape)) for tensor, saver in found]


def test_saved_tensors_are_listed_in_forward_order() -> None:
    assert savers(lambda x: x.exp().relu().sum()) == [
        ("ExpBackward0", (2, 3)),
        ("ReluBackward0", (2, 3)),
    ]


def test_saved_tensors_of_a_custom_function_are_listed() -> None:
    found = savers(lambda x: Cube.apply(x).sum())  # type: ignore[no-untyped-call]

    assert found == [("CubeBackward", (2, 3))]


def test_tensors_packed_by_a_checkpoint_are_not_unpacked() -> None:
    runs: list[int] = []

    def part(x: torch.Tensor) -> torch.Tensor:
        runs.append(1)
        return x.exp().sigmoid()

    found = savers(lambda x: checkpoint(part, x, use_reentrant=False).relu().sum())

    assert found == [("ReluBackward0", (2, 3))]
    assert len(runs) == 1


def test_an_overwritten_saved_tensor_is_skipped() -> None:
    def spoiled(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        total = y.sum()
        y.mul_(2)
        return total

    assert savers(spoiled) == []


def test_a_saver_has_its_module() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Sigmoid())
    recorder = MemoryRecorder(list(model.named_modules()))
    with recorder.watching("forward"):
        output = model(torch.randn(2, 3))

    found = tensors_saved_by(nodes_behind([output]), recorder._creators)

    paths = {(saver.path, saver.node) for _, saver in found}
    assert paths == {("0", "AddmmBackward0"), ("1", "SigmoidBackward0")}

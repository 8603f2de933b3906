"""What an in-place op overwrites stays in the trace as it was."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import torchglass as tg
from torchglass.capture.trace.assemble import CapturedPass, assemble
from torchglass.capture.trace.pass_recorder import PassRecorder, tracing

X = torch.randn(4, 8, 64, 64, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    """A residual block, whose ReLUs and sum write in place unless it is told otherwise."""

    def __init__(self, *, in_place: bool = True) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))
        self.norm1, self.norm2 = (nn.BatchNorm2d(8) for _ in range(2))
        self.relu = nn.ReLU(inplace=in_place)
        self.in_place = in_place

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        if self.in_place:
            y += x
        else:
            y = y + x
        made: torch.Tensor = self.relu(y)
        return made


@pytest.fixture
def block() -> Block:
    torch.manual_seed(0)
    block = Block()
    for norm in (block.norm1, block.norm2):
        torch.as_tensor(norm.running_mean).normal_()
        torch.as_tensor(norm.running_var).uniform_(0.5, 2)
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    return block.eval()


def out_of_place(block: Block, x: torch.Tensor) -> list[torch.Tensor]:
    """What each op of a block makes if none of them writes over another."""
    plain = Block(in_place=False).eval()
    plain.load_state_dict(block.state_dict())
    return [torch.as_tensor(op.tensor) for op in tg.trace(plain, x)]


def recorded(run: Callable[[torch.Tensor], object], x: torch.Tensor = X) -> PassRecorder:
    with tracing(nn.Identity()) as recorder:
        run(x)
    return recorder


def values(captured: CapturedPass) -> list[torch.Tensor]:
    return [captured.tensors[op.id, 0] for op in captured.trace.ops if op.kind == "op"]


def test_results_of_in_place_ops_match_an_out_of_place_block(block: Block) -> None:
    trace = tg.trace(block, X)

    made = [torch.as_tensor(op.tensor) for op in trace]

    for one, other in zip(made, out_of_place(block, X), strict=True):
        assert torch.equal(one, other)


def test_an_overwritten_result_is_the_same_tensor_on_every_access(block: Block) -> None:
    op = tg.trace(block, X)["norm1"]

    assert op.tensor is op.tensor
    assert op.tensor is not None
    assert not op.tensor.requires_grad


def test_parameters_may_change_after_the_pass(block: Block) -> None:
    expected = out_of_place(block, X)
    trace = tg.trace(block, X)

    block.train()(X)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.zero_()

    for op, other in zip(trace, expected, strict=True):
        assert torch.equal(torch.as_tensor(op.tensor), other)


def test_a_tensor_and_its_result_may_both_be_overwritten(block: Block) -> None:
    def run(x: torch.Tensor) -> None:
        convolved = block.conv1(x)
        normal = block.norm1(convolved)
        torch.relu_(normal)
        convolved.add_(1)
        convolved.mul_(2)

    saved = values(assemble(recorded(run)))

    convolved = block.conv1(X)
    normal = block.norm1(convolved)
    expected = [convolved, normal, normal.relu(), convolved + 1, (convolved + 1) * 2]
    for value, other in zip(saved, expected, strict=True):
        assert torch.equal(value, other)


def test_every_partial_result_of_a_chain_of_adds_is_saved() -> None:
    def run(x: torch.Tensor) -> None:
        total = x * 1
        for _ in range(6):
            total += 1

    expected = X
    for value in values(assemble(recorded(run))):
        assert torch.equal(value, expected)
        expected = expected + 1


def test_a_tensor_may_be_added_to_itself() -> None:
    def run(x: torch.Tensor) -> None:
        total = x * 1
        total += 1
        total += total
        total.zero_()

    saved = values(assemble(recorded(run)))

    for value, expected in zip(saved, [X, X + 1, 2 * (X + 1), 0 * X], strict=True):
        assert torch.equal(value, expected)


def test_an_edited_pass_is_copied(block: Block) -> None:
    trace = tg.trace(block, X, edit={"norm1": lambda value: value * 0 - 1})

    assert torch.equal(torch.as_tensor(trace["norm1"].tensor), torch.full_like(X, -1))


def test_only_requested_overwritten_results_are_saved(block: Block) -> None:
    trace = tg.trace(block, X, save=["norm1"])

    assert torch.equal(torch.as_tensor(trace["norm1"].tensor), out_of_place(block, X)[3])
    assert trace["conv1"].tensor is None


def test_a_copied_trace_has_the_overwritten_results(block: Block) -> None:
    trace = copy.deepcopy(tg.trace(block, X))

    assert torch.equal(torch.as_tensor(trace["norm1"].tensor), out_of_place(block, X)[3])


@pytest.mark.parametrize("look", [lambda x: x, lambda x: x.view(x.shape)], ids=["itself", "view"])
def test_external_tensors_may_be_overwritten_after_the_pass(
    look: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    class Adds(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu_(x * 2 + look(x))

    x = X.clone()
    trace = tg.trace(Adds(), x)
    x.zero_()

    assert torch.equal(torch.as_tensor(trace["add_1"].tensor), X * 2 + X)


def test_writing_to_an_argument_after_the_pass_keeps_overwritten_results() -> None:
    class Gives(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            convolved: torch.Tensor = self.conv1(x)
            self.relu(self.norm1(convolved))
            return convolved

    model = Gives().eval()
    with torch.no_grad():
        expected = model.norm1(model.conv1(X))
        trace = tg.trace(model, X)
        trace.output.zero_()

    assert torch.equal(torch.as_tensor(trace["norm1"].tensor), expected)

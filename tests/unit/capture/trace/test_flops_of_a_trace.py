"""FLOPs read off a trace are those that torch counts itself, or that the formula gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import torchglass as tg
from benchmarks.models import ResNet18
from tests.models import Written
from torchglass.analyse.flop_formulas import flops_of_op
from torchglass.api import measure as counting
from torchglass.capture.trace.pass_recorder import Level

OPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "linear": nn.Linear(8, 5),
    "matmul": lambda x: x @ x.mT,
    "bmm": lambda x: torch.bmm(x, x.mT),
    "addmm": lambda x: torch.addmm(torch.zeros(4), x[0], x[0].T),
    "conv": nn.Conv1d(4, 6, 3, stride=2),
    "grouped conv": nn.Conv1d(4, 8, 3, groups=2),
    "transposed conv": nn.ConvTranspose1d(4, 6, 3),
    "einsum": lambda x: torch.einsum("bij,bkj->bik", x, x),
}


def total(model: nn.Module, *args: torch.Tensor) -> int:
    return sum(op.flops or 0 for op in tg.trace(model, *args))


@pytest.mark.parametrize("name", OPS)
def test_the_flops_of_an_op_match_torch(name: str) -> None:
    model = Written(lambda self, x: OPS[name](x), {})
    x = torch.randn(2, 4, 8)
    with FlopCounterMode(display=False) as counter:
        model(x)

    assert total(model, x) == counter.get_total_flops()


def test_a_resnet_has_the_expected_flops() -> None:
    with torch.no_grad():
        assert total(ResNet18().eval(), torch.randn(1, 3, 224, 224)) == 3_628_146_688


def test_attention_counts_both_matmuls() -> None:
    model = Written(lambda self, q: F.scaled_dot_product_attention(q, q, q), {})

    assert total(model, torch.randn(2, 3, 5, 7)) == 2 * (2 * 2 * 3 * 5 * 5 * 7)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor:UserWarning")
def test_the_fused_encoder_layer_in_a_trace_has_the_flops_of_its_parts() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    x = torch.randn(2, 5, 8)

    parts = total(layer.train(), x)

    with torch.no_grad():
        assert total(layer.eval(), x) == parts


def test_an_lstm_counts_each_weight_once_per_step() -> None:
    lstm = nn.LSTM(3, 4, num_layers=2)

    weights = sum(p.numel() for p in lstm.parameters() if p.dim() == 2)
    assert total(lstm, torch.randn(7, 2, 3)) == 2 * 7 * 2 * weights


def test_unknown_flops_are_none_and_not_zero() -> None:
    trace = tg.trace(
        Written(lambda self, x: torch.einsum("ij,jk,kl->il", x, x, x), {}), torch.randn(4, 4)
    )

    assert trace["einsum"].flops is None
    assert flops_of_op(trace["input_1"].record) == 0


FUNCTIONS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "matmul of many": (torch.matmul, [(2, 1, 3, 4), (6, 4, 5)]),
    "reflected matmul": (torch.Tensor.__rmatmul__, [(4, 5), (3, 4)]),
    "tensordot": (lambda a, b: torch.tensordot(a, b, 2), [(2, 3, 4), (3, 4, 5)]),
    "einsum with an ellipsis": (
        lambda a, b: torch.einsum("...ij,jk->...ik", a, b),
        [(2, 6, 3, 4), (4, 5)],
    ),
    "einsum without an arrow": (lambda a, b: torch.einsum("ij,jk", a, b), [(3, 4), (4, 5)]),
    "einsum that sums first": (
        lambda a, b: torch.einsum("bijz,bkj->bik", a, b),
        [(2, 3, 4, 7), (2, 5, 4)],
    ),
    "einsum of an outer product": (lambda a, b: torch.einsum("i,j->ij", a, b), [(3,), (4,)]),
    "linear by name": (lambda a, w: F.linear(input=a, weight=w), [(2, 3, 4), (5, 4)]),
    "bilinear": (F.bilinear, [(3, 4), (3, 5), (6, 4, 5)]),
    "attention": (
        lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True),
        [(2, 3, 5, 8), (2, 3, 7, 8)],
    ),
    "convolution": (
        lambda x, w: torch.conv2d(x, w, None, 2, 1, 1, 2),
        [(2, 4, 6, 6), (6, 2, 3, 3)],
    ),
}


@pytest.mark.parametrize("level", ["torch", "aten"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_flops_of_a_trace_match_a_flop_count(name: str, level: Level) -> None:
    function, shapes = FUNCTIONS[name]
    inputs = [torch.randn(shape) for shape in shapes]
    model = Written(lambda self, *args: function(*args), {})

    traced = sum(op.flops or 0 for op in tg.trace(model, *inputs, level=level))

    assert traced == counting.flops(model, *inputs).total_flops


CELLS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "lstm cell": (lambda: nn.LSTMCell(3, 4), 2 * 5 * (16 * 3 + 16 * 4)),
    "gru cell": (lambda: nn.GRUCell(3, 4), 2 * 5 * (12 * 3 + 12 * 4)),
    "rnn cell": (lambda: nn.RNNCell(3, 4), 2 * 5 * (4 * 3 + 4 * 4)),
}


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_uses_its_two_weights_once(name: str) -> None:
    make, expected = CELLS[name]
    cell, x = make(), torch.randn(5, 3)

    assert total(cell, x) == counting.flops(cell, x).total_flops == expected


def test_backward_kernels_have_flops() -> None:
    model, x = nn.Conv2d(4, 6, 3, groups=2), torch.randn(2, 4, 5, 5)
    with tg.tracing(model, level="aten") as tape:
        torch.autograd.backward(model(x).sum())

    traced = sum(op.flops or 0 for op in tape)

    assert traced == counting.flops(model, x, backward=True).total_flops

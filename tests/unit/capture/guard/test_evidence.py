"""Functions that are never looked at make nothing that is not finite out of what is."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from torchglass.capture.guard.evidence import ResultKind, op_name, result_kind

LARGEST = torch.finfo(torch.float32).max
EXTREMES = torch.tensor([[-LARGEST, LARGEST], [0.0, -0.0], [1e-45, -1e-45], [1.0, -1.0]])

MOVING = [
    torch.relu,
    torch.tanh,
    torch.sigmoid,
    torch.erf,
    torch.abs,
    torch.neg,
    torch.round,
    torch.sign,
    functional.relu6,
    functional.hardtanh,
    functional.hardsigmoid,
    torch.nan_to_num,
    torch.cummax,
    torch.clone,
    torch.tril,
]


@pytest.mark.parametrize("function", MOVING, ids=op_name)
def test_functions_classified_as_moving_values_create_no_nan_or_inf(function: object) -> None:
    assert result_kind(function) is ResultKind.MOVED
    assert callable(function)

    made = function(EXTREMES, 0) if op_name(function) == "cummax" else function(EXTREMES)

    result = made[0] if isinstance(made, tuple) else made
    assert torch.isfinite(result).all()


def test_functions_are_classified_in_all_their_forms() -> None:
    assert result_kind(torch.Tensor.masked_fill_) is ResultKind.GIVEN
    assert result_kind(torch.Tensor.__setitem__) is ResultKind.GIVEN
    assert result_kind(torch.ops.aten.empty_like.default) is ResultKind.UNDEFINED
    assert result_kind(torch.Tensor.__truediv__) is ResultKind.COMPUTED
    assert result_kind(torch.nn.functional.softmax) is ResultKind.COMPUTED

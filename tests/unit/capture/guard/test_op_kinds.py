"""Functions that are never looked at make nothing that is not finite out of what is."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from torchglass.capture.guard.op_kinds import Nature, nature_of, op_name

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
def test_what_is_said_to_move_numbers_makes_no_nan_and_no_inf(function: object) -> None:
    assert nature_of(function) is Nature.MOVED
    assert callable(function)

    made = function(EXTREMES, 0) if op_name(function) == "cummax" else function(EXTREMES)

    result = made[0] if isinstance(made, tuple) else made
    assert torch.isfinite(result).all()


def test_functions_are_known_in_all_their_forms() -> None:
    assert nature_of(torch.Tensor.masked_fill_) is Nature.GIVEN
    assert nature_of(torch.Tensor.__setitem__) is Nature.GIVEN
    assert nature_of(torch.ops.aten.empty_like.default) is Nature.UNDEFINED
    assert nature_of(torch.Tensor.__truediv__) is Nature.COMPUTED
    assert nature_of(torch.nn.functional.softmax) is Nature.COMPUTED

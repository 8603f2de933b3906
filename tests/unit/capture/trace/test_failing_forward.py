"""What the exception of a forward tells."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

from torchglass.capture.trace.failing_forward import attempt


class Inner(nn.Module):
    """Fails in a way that it is told to."""

    def __init__(self, fail: Any) -> None:
        super().__init__()
        self.fail = fail

    def forward(self, x: torch.Tensor) -> Any:
        return self.fail(x)


def test_a_forward_that_returns_has_no_error() -> None:
    tried = attempt(nn.Linear(2, 3), (torch.ones(1, 2),), {})

    assert tried.error is None
    assert tried.output.shape == (1, 3)


def test_the_reported_line_is_user_code_even_if_a_library_raised() -> None:
    model = nn.Sequential(nn.Identity(), Inner(lambda x: json.loads("{")))

    tried = attempt(model, (torch.ones(2),), {})

    assert isinstance(tried.error, json.JSONDecodeError)
    assert tried.clues.source is not None
    assert tried.clues.source.file == __file__
    assert tried.clues.torch_source is None
    assert tried.clues.depth == 2


def test_a_check_in_torch_is_distinguished_from_user_code() -> None:
    tried = attempt(Inner(nn.LSTM(8, 4)), (torch.ones(2, 3, 4),), {})

    assert tried.clues.torch_source is not None
    assert tried.clues.torch_source.file.endswith("rnn.py")
    assert tried.clues.source is not None
    assert tried.clues.source.function == "forward"


def test_operand_values_are_kept_by_position() -> None:
    tried = attempt(nn.Embedding(4, 2), (torch.tensor([1, 9]),), {})

    assert (tried.clues.stats["0"].min, tried.clues.stats["0"].max) == (1, 9)


def test_buffers_keep_their_names_and_values() -> None:
    model = nn.BatchNorm1d(3)

    tried = attempt(model, (torch.ones(2, 4),), {})

    assert tried.captured.trace.failed is not None
    named = [operand.buffer for operand in tried.captured.trace.failed.operands]
    assert "running_mean" in named
    assert model.num_batches_tracked == 0


def test_a_keyboard_interrupt_propagates() -> None:
    def interrupt(x: torch.Tensor) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attempt(Inner(interrupt), (torch.ones(1),), {})


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
def test_a_lazy_model_is_initialized_even_if_the_forward_fails() -> None:
    model = nn.Sequential(nn.LazyLinear(5), nn.BatchNorm1d(5), nn.Linear(9, 1))

    tried = attempt(model, (torch.ones(4, 3),), {})

    assert isinstance(tried.error, RuntimeError)
    assert model[0].weight.shape == (5, 3)
    assert model[1].num_batches_tracked == 1

"""What of a pass is the same layer again, and what only looks like it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import torchglass as tg


class _Steps(nn.Module):
    """A recurrent net that walks along its input."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(3)
        for step in range(len(x)):
            state = torch.tanh(self.cell(state) + x[step])
        return state


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.mlp, self.norm = nn.Linear(4, 12), nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.view(1, -1, 2, 2).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + attended.transpose(1, 2).reshape(x.shape)
        return x + self.mlp(self.norm(x))  # type: ignore[no-any-return]


class _Twins(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Linear(3, 2)

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return (self.look(one) - self.look(other)).square()  # type: ignore[no-any-return]


def test_processing_a_sequence_step_by_step_is_one_layer() -> None:
    trace = tg.trace(_Steps(), torch.randn(4, 3))

    assert [op.pass_number for op in trace.layer("getitem_1")] == [1, 2, 3, 4]
    assert len(trace.layer("linear_1")) == len(trace.layer("tanh_1")) == 4
    assert "recurrent (at most 4 loops)" in str(trace)


def test_a_gpt_is_feedforward_and_each_residual_is_a_separate_layer() -> None:
    trace = tg.trace(nn.Sequential(*(_Block() for _ in range(3))), torch.randn(1, 5, 4))

    adds = [op for op in trace if op.function == "add"]
    assert [op.label.rpartition("_")[0] for op in adds] == [f"add_{nth}" for nth in range(1, 7)]
    assert "purely feedforward, with branching" in str(trace)


def test_one_module_for_two_inputs_is_one_layer_and_not_a_loop() -> None:
    trace = tg.trace(_Twins(), torch.ones(3), torch.zeros(3))

    assert len(trace.layer("linear_1")) == 2
    assert "purely feedforward" in str(trace)


@pytest.mark.parametrize("save", ["linear_1:2", "cell:2", ["cell:2"]])
def test_one_pass_of_a_layer_can_be_kept(save: str | list[str]) -> None:
    trace = tg.trace(_Steps(), torch.randn(4, 3), save=save)

    (kept,) = (op for op in trace if op.tensor is not None)
    assert (kept.layer_label, kept.pass_number) == (trace["cell:2"].layer_label, 2)

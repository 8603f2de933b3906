"""A trace of tensors that are not plain numbers in memory, and of what comes in containers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import torchglass as tg
from torchglass import Trace


class _Doing(nn.Module):
    def __init__(self, forward: Callable[..., Any]) -> None:
        super().__init__()
        self._forward = forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._forward(*args, **kwargs)


@dataclass
class _Batch:
    words: torch.Tensor
    masks: dict[str, list[torch.Tensor]]


class _Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


def _written_out(trace: Trace) -> list[str]:
    """The labels of a trace all of whose ops can be printed, and are in its table."""
    assert str(trace)
    assert all(str(op) for op in trace)
    assert len(trace.to_dicts()) == len(trace)
    return trace.layer_labels


def test_nested_tensors_flow_through_ops() -> None:
    rows = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)

    trace = tg.trace(_Doing(lambda x: (x * 2).to_padded_tensor(0.0)), rows)

    assert _written_out(trace) == ["input_1_0", "mul_1_1", "topaddedtensor_1_2", "output_1_3"]
    assert trace["topaddedtensor"].shape == (2, 4, 3)
    assert trace.validate()


# torch says of each quantized tensor that it will be gone one day.
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_quantized_tensors_flow_through_ops() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.quantize_per_tensor(x, 0.5, 0, torch.quint8).dequantize() + 1

    trace = tg.trace(_Doing(forward), torch.tensor([0.6, 1.1]))

    labels = ["input_1_0", "quantizepertensor_1_1", "dequantize_1_2", "add_1_3", "output_1_4"]
    assert _written_out(trace) == labels
    assert trace["quantizepertensor"].dtype == "quint8"
    assert trace.output.tolist() == [1.5, 2.0]
    assert trace.validate()


def test_a_meta_model_is_traced_without_values() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).to("meta")

    trace = tg.trace(model, torch.ones(2, 4, device="meta"))

    assert _written_out(trace) == ["input_1_0", "linear_1_1", "relu_1_2", "output_1_3"]
    assert (trace["relu"].shape, trace["relu"].device) == ((2, 3), "meta")


def test_a_fake_tensor_model_is_traced_without_values() -> None:
    with FakeTensorMode():
        trace = tg.trace(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), torch.ones(2, 4))

    assert _written_out(trace) == ["input_1_0", "linear_1_1", "relu_1_2", "output_1_3"]
    assert trace["relu"].shape == (2, 3)


def test_a_custom_library_op_is_listed_by_its_name() -> None:
    with torch.library._scoped_library("torchglass_odd", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CPU")

        trace = tg.trace(_Doing(lambda x: torch.ops.torchglass_odd.twice(x) + 1), torch.ones(2))

        assert _written_out(trace) == ["input_1_0", "twice_1_1", "add_1_2", "output_1_3"]
        assert trace["add"].parents == (trace["twice"],)
        assert trace.validate()


def test_inputs_and_outputs_in_containers_are_named_by_position() -> None:
    def forward(batch: _Batch, *, pair: _Pair) -> dict[str, Any]:
        return {"sum": batch.words + batch.masks["left"][0], "pair": _Pair(pair.second, pair.first)}

    batch = _Batch(torch.ones(2), {"left": [torch.zeros(2)]})
    trace = tg.trace(_Doing(forward), batch, pair=_Pair(torch.ones(1), torch.zeros(1)))

    assert trace["input.args.0.words"] is trace["input_1"] is trace["input_1_0"]
    assert trace["input.args.0.masks.left.0"] is trace["input_2"]
    assert trace["input.kwargs.pair.second"].tensor is not None
    assert trace["output.pair.first"].parents == (trace["input.kwargs.pair.second"],)
    assert trace["output.sum"] is trace["output_1"] is trace["output_1_5"]

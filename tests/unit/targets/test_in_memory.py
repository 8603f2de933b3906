"""What any verb gave back can be looked at, in the terminal and on the page alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torchglass as tg
from torchglass.records.calls import Statistics
from torchglass.records.measures import Footprint, Measures
from torchglass.records.run import Document
from torchglass.records.trace import TraceRecord
from torchglass.targets.result_readers import reader_of_result

VERBS: dict[str, tuple[Callable[..., Any], type[Document] | None]] = {
    "summary": (tg.summary, None),
    "trace": (tg.trace, TraceRecord),
    "memory": (tg.memory, Footprint),
    "flops": (tg.flops, Measures),
    "profile": (lambda *given: tg.profile(*given, warmup=0, repeats=1), Measures),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_result_provides_its_model_and_findings(verb: str) -> None:
    run, kind = VERBS[verb]
    result = run(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), torch.ones(1, 2))

    reader = reader_of_result(result)

    assert reader is not None
    assert [module.path for module in reader.model().modules] == ["", "0", "1"]
    assert reader.finished()
    assert kind is None or reader.document(kind) is not None  # type: ignore[type-var]


@pytest.mark.parametrize("verb", VERBS)
def test_a_result_can_be_summarized(verb: str) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())

    summary = tg.summary(VERBS[verb][0](model, torch.ones(1, 2)))

    assert summary.total_params == tg.summary(model).total_params


def test_a_trace_with_tensors_brings_the_values_of_modules_and_ops() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    result = tg.trace(model, torch.ones(1, 2))

    reader = reader_of_result(result)

    assert reader is not None
    found = reader.document(Statistics)
    assert found is not None
    by_path = {module.path: module for module in found.modules}
    output = by_path["1"][0].outputs[0].stats
    assert output is not None
    assert output.max == pytest.approx(model(torch.ones(1, 2)).max().item())
    assert by_path["op:2"].class_name == "relu"
    assert by_path["op:2"][0].outputs[0].stats == output


def test_a_trace_without_tensors_brings_no_values() -> None:
    reader = reader_of_result(tg.trace(nn.ReLU(), torch.ones(1, 2), save=None))

    assert reader is not None
    assert reader.document(Statistics) is None


def test_a_model_is_not_a_result() -> None:
    assert reader_of_result(nn.Linear(2, 2)) is None

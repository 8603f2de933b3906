"""What the explorer is given to show of a target."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.explorer import shown
from tests.models import NamedLikeOptions
from torchglass.api.explore import make_source
from torchglass.records.calls import Statistics
from torchglass.records.measures import Measures
from torchglass.records.trace import TraceRecord


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def test_a_forward_stores_statistics_trace_and_measures() -> None:
    reader = make_source(net(), (torch.ones(3, 4),)).reader

    assert reader.document(Statistics) is not None
    assert reader.document(TraceRecord) is not None
    assert reader.document(Measures) is not None


def test_forward_arguments_may_share_names_with_options() -> None:
    x = torch.ones(2)

    reader = make_source(
        NamedLikeOptions(), (x,), {"target": x, "backward": x, "loss": x, "against": x}
    ).reader
    measured = reader.document(Measures)

    assert measured is not None
    assert measured.rows[0].total_forward_flops is not None


def test_a_very_large_model_is_checked_only_on_demand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torchglass.views.tui.run_follower._CHECKED_BYTES", 8)
    model = net()
    model.get_parameter("3.bias").data[0] = torch.nan

    assert "Not checked. Press r" in shown(model, press=("exclamation_mark",))
    text = shown(model, press=("exclamation_mark", "tab", "r"))
    assert "1 of 2 values of `3.bias` is NaN" in text
    assert "3 ✗" in text

"""What `tg.memory` gives back."""

from __future__ import annotations

import json

import torch
from torch import nn

import torchglass as tg
from torchglass.records.json_data import from_json_data
from torchglass.records.measures import Footprint


def test_the_footprint_is_read_back_from_the_json() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))

    taken = tg.memory(model, torch.randn(3, 4), optimizer="adamw")

    plain = json.loads(taken.to_json())["footprint"]
    assert from_json_data(Footprint, plain) == taken.footprint

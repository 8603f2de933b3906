"""Tensors of a model that is not here itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from torchglass.capture.attributes.stored import StoredObject
from torchglass.capture.checkpoint.reading import read_checkpoint
from torchglass.capture.checkpoint.tensors import StoredTensors
from torchglass.errors import LookupFailedError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "net.safetensors"
    state = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).state_dict()
    save_file(state, path)
    return path


def test_the_tensors_of_a_checkpoint_can_be_looked_at(file: Path) -> None:
    live = StoredObject(read_checkpoint(file), StoredTensors(file))

    page = live.open(live.module("1").id)

    assert {one.name: one.role for one in page.attributes} == {
        "bias": "parameter",
        "num_batches_tracked": "buffer",
        "running_mean": "buffer",
        "running_var": "buffer",
        "weight": "parameter",
    }
    ones = next(one for one in page.attributes if one.name == "running_var")
    assert live.values(ones.id, (None,), range(1), range(3)).tolist() == [[1.0, 1.0, 1.0]]


def test_what_a_pass_left_behind_comes_first(file: Path) -> None:
    recorded = {"0": {"output": torch.zeros(4, 3)}}
    live = StoredObject(read_checkpoint(file), {}, recorded)

    page = live.open(live.module("0").id)

    assert [(one.name, one.role) for one in page.attributes] == [("output", "recorded")]


def test_a_module_that_is_not_in_the_record_is_named(file: Path) -> None:
    with pytest.raises(LookupFailedError, match="no module 'gone'"):
        StoredObject(read_checkpoint(file), {}).module("gone")

"""Tensors of a model that is not here itself."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tests import make
from torchglass.capture.live_object import StoredObject
from torchglass.capture.model.checkpoints import StoredTensors, read_checkpoint
from torchglass.errors import LookupFailedError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "net.safetensors"
    state = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).state_dict()
    save_file(state, path)
    return path


def test_the_tensors_of_a_checkpoint_can_be_opened(file: Path) -> None:
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


def test_the_modules_of_a_checkpoint_can_be_navigated(file: Path) -> None:
    live = StoredObject(read_checkpoint(file), StoredTensors(file))

    first, second = live.open(live.module("").id).attributes
    inner = live.open(first.id).attributes

    assert [(one.name, one.role, one.opens) for one in (first, second)] == [
        ("0", "module", True),
        ("1", "module", True),
    ]
    assert {one.name for one in inner} == {"weight", "bias"}
    weight = next(one for one in inner if one.name == "weight")
    assert live.values(weight.id, (None, None), range(3), range(2)).shape == (3, 2)


def test_only_the_tensors_of_a_page_are_loaded() -> None:
    loaded: list[str] = []

    def load(name: str) -> torch.Tensor:
        loaded.append(name)
        return torch.zeros(1)

    names = [f"t{at}" for at in range(5)]
    model = make.model(dict.fromkeys(names, (1,)))
    live = StoredObject(model, {name: partial(load, name) for name in names})

    page = live.open(live.module("").id, start=1, most=2)

    assert (page.total, [one.name for one in page.attributes]) == (5, ["t1", "t2"])
    assert loaded == ["t1", "t2"]


def test_recorded_tensors_of_an_inner_module_can_be_reached(file: Path) -> None:
    recorded = {"0": {"output": torch.zeros(4, 3)}}
    live = StoredObject(read_checkpoint(file), {}, recorded)

    first = live.open(live.module("").id).attributes[0]

    assert [one.role for one in live.open(first.id).attributes] == ["recorded"]


def test_recorded_tensors_of_a_checkpoint_come_first(file: Path) -> None:
    recorded = {"0": {"output": torch.zeros(4, 3)}}
    live = StoredObject(read_checkpoint(file), {}, recorded)

    page = live.open(live.module("0").id)

    assert [(one.name, one.role) for one in page.attributes] == [("output", "recorded")]


def test_a_module_that_is_not_in_the_record_is_named(file: Path) -> None:
    with pytest.raises(LookupFailedError, match="no module 'gone'"):
        StoredObject(read_checkpoint(file), {}).module("gone")

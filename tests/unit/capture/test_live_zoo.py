"""Odd models looked into all over, and left as they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests import models
from torchglass.capture.live_object import LiveObject
from torchglass.capture.model.structure import read_model
from torchglass.records.model import Attribute, Index

DEPTH = 3


def scripted() -> Any:
    return torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))


def look(live: LiveObject, attribute: Attribute, depth: int = 0) -> int:
    """Open an attribute, what is in it and what is in that; how much there was."""
    seen = 1
    if attribute.spec is not None:
        facts = live.facts(attribute.id)
        if not facts.unreadable:
            dimensions = len(facts.spec.shape or ())
            index: Index = (*(0,) * (dimensions - 2), *(None,) * min(dimensions, 2))
            assert live.values(attribute.id, index, range(1), range(1)).size <= 1
    elif attribute.opens and not attribute.encloses and depth < DEPTH:
        for part in live.open(attribute.id, most=30, everything=True).attributes:
            seen += look(live, part, depth + 1)
    return seen


@pytest.mark.parametrize(
    "make",
    [
        models.TiedLanguageModel,
        models.SharedBlock,
        models.ContainsItself,
        models.Branching,
        models.hostile_names,
        lambda: nn.LazyLinear(3),
        lambda: nn.Linear(3, 3, device="meta"),
        lambda: nn.MultiheadAttention(4, 2),
        lambda: nn.ParameterDict({"a": nn.Parameter(torch.ones(2))}),
        lambda: nn.ParameterList([torch.ones(2)]),
    ],
)
def test_every_attribute_of_an_odd_model_can_be_opened(make: Callable[[], nn.Module]) -> None:
    model = make()
    before = models.state_of(model)
    live = LiveObject(model)

    seen = sum(look(live, live.module(module.path)) for module in read_model(model).modules)

    assert seen > len(before)
    assert models.state_of(model) == before


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_a_scripted_model_can_be_opened() -> None:
    model = scripted()
    live = LiveObject(model)

    found = {one.name: one for one in live.open(live.module("0").id).attributes}

    assert found["weight"].spec is not None
    assert found["weight"].spec.shape == (2, 2)

"""A guarded training step is a plain one: the same numbers, nothing left behind, no false alarm."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.hard import forwards, steps
from tests.hard.steps import anatomy, assert_same, left_by_step
from torchglass import guard

pytestmark = steps.KNOWN_WARNINGS


@pytest.mark.parametrize("name", forwards.NAMES)
@pytest.mark.parametrize("mode", ["full", "cheap", "dump"])
def test_guarding_a_training_step_does_not_change_it(name: str, mode: str, tmp_path: Path) -> None:
    plain = left_by_step(forwards.make(name))
    model = forwards.make(name)
    dump = tmp_path if mode == "dump" else None

    guarded = left_by_step(model, guard(model, on="raise", cheap=mode == "cheap", dump=dump))

    assert_same(plain, guarded)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", forwards.NAMES)
def test_a_guard_leaves_nothing_on_the_model(name: str) -> None:
    model = forwards.make(name)
    model(torch.randn(4, 4))
    before = anatomy(model)

    with guard(model):
        model(torch.randn(4, 4))

    assert anatomy(model) == before


@pytest.mark.parametrize("name", [name for name in forwards.NAMES if name != "nothing"])
def test_a_nan_in_a_parameter_is_reported_by_name(name: str) -> None:
    model = forwards.make(name)
    model(torch.randn(4, 4))
    weight, parameter = next(
        (path, parameter)
        for path, parameter in model.named_parameters()
        if parameter.dim() == 2 and "norm" not in path
    )
    with torch.no_grad():
        parameter[0, 0] = float("nan")

    with (
        guard(model, on="record", backward=False) as guarded,
        torch.set_grad_enabled(name in forwards.TAKES_GRADIENTS),
    ):
        model(torch.randn(4, 4))

    assert guarded.first is not None
    assert guarded.first.kind == "nan"
    assert f"parameter {weight} contains 1 NaN" in guarded.first.message

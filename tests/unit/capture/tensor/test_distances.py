"""How far the tensors of two models lie apart."""

from __future__ import annotations

import math

import pytest
import torch

from torchglass.capture.tensor.moments import distances


def apart(before: torch.Tensor, after: torch.Tensor) -> float | None:
    return distances({"x": lambda: before}, {"x": lambda: after}).get("x")


def test_the_distance_of_equal_tensors_is_zero() -> None:
    tensor = torch.randn(3, 4)

    assert apart(tensor, tensor.clone()) == 0.0
    assert apart(tensor, tensor) == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.complex64])
def test_the_distance_is_relative_to_the_old_norm(dtype: torch.dtype) -> None:
    old = torch.full((4,), 2).to(dtype)

    assert apart(old, torch.full((4,), 3).to(dtype)) == pytest.approx(0.5)


def test_tensors_of_different_dtypes_can_be_compared() -> None:
    assert apart(torch.ones(3), torch.ones(3, dtype=torch.float16)) == 0.0


def test_the_distance_from_a_zero_tensor_is_infinite() -> None:
    assert apart(torch.zeros(2), torch.ones(2)) == math.inf


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (torch.ones(2), torch.ones(3)),
        (torch.ones(2, device="meta"), torch.ones(2)),
    ],
    ids=["shapes", "meta"],
)
def test_incomparable_tensors_are_skipped(before: torch.Tensor, after: torch.Tensor) -> None:
    assert apart(before, after) is None


def test_only_names_that_both_have_are_compared() -> None:
    one = {"a": lambda: torch.ones(1), "b": lambda: torch.ones(1)}
    other = {"b": lambda: torch.ones(1), "c": lambda: torch.ones(1)}

    assert distances(one, other) == {"b": 0.0}


def test_views_sparse_and_empty_tensors_are_compared() -> None:
    base = torch.arange(6.0).reshape(2, 3)

    assert apart(base.T, base.T.contiguous()) == 0.0
    assert apart(base.to_sparse(), base) == 0.0
    assert apart(torch.empty(0), torch.empty(0)) == 0.0


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_equal_non_finite_values_are_unchanged(value: float) -> None:
    old = torch.tensor([1.0, value, 3.0])

    assert apart(old, old.clone()) == 0
    assert apart(old, torch.tensor([2.0, value, 3.0])) == pytest.approx(1 / 10**0.5)


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_a_non_finite_value_on_one_side_has_no_distance(value: float) -> None:
    finite, spoiled = torch.tensor([1.0, 2.0]), torch.tensor([1.0, value])

    assert math.isnan(apart(finite, spoiled) or 0.0)
    assert math.isnan(apart(spoiled, finite) or 0.0)

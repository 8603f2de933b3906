"""One read tells whether a tensor is finite, whatever kind of tensor it is."""

from __future__ import annotations

import math

import pytest
import torch

from torchglass.capture.guard.tensor_health import Health, is_surely_finite, look, look_again

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_and_inf_are_found_in_every_float_dtype(dtype: torch.dtype) -> None:
    fine = torch.linspace(-3, 3, 1000).to(dtype)
    for place in (0, 499, 999):
        for bad, health in (
            (math.nan, Health.NAN),
            (math.inf, Health.INF),
            (-math.inf, Health.INF),
        ):
            spoiled = fine.clone()
            spoiled[place] = bad

            assert look(spoiled) is health
            assert not is_surely_finite(spoiled)
    assert look(fine) is Health.FINE


def test_an_overflowing_sum_of_finite_values_is_not_inf() -> None:
    large = torch.full((1000,), 3e38)

    assert not is_surely_finite(large)
    assert look(large) is Health.FINE


def test_infinities_that_cancel_in_a_sum_are_found() -> None:
    assert look(torch.tensor([math.inf, -math.inf])) is Health.INF
    assert look(torch.tensor([math.inf, math.nan])) is Health.NAN


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_above_half_of_the_maximum_is_near_overflow(dtype: torch.dtype) -> None:
    most = torch.finfo(dtype).max

    assert look(torch.tensor([-0.51 * most], dtype=dtype)) is Health.NEAR
    assert look(torch.tensor([0.49 * most], dtype=dtype)) is Health.FINE


@pytest.mark.parametrize(
    ("tensor", "health"),
    [
        (torch.tensor([1, 2]), Health.FINE),
        (torch.tensor([True]), Health.FINE),
        (torch.empty(0), Health.FINE),
        (torch.tensor(math.nan), Health.NAN),
        (torch.tensor([complex(1, math.nan)]), Health.NAN),
        (torch.tensor([1.0, math.inf]).to_sparse(), Health.INF),
        (torch.tensor([1.0, math.nan]).to(torch.float8_e5m2), Health.NAN),
        (torch.empty(3, device="meta"), Health.FINE),
    ],
    ids=lambda value: str(getattr(value, "dtype", value)),
)
def test_tensors_of_all_kinds_can_be_checked(tensor: torch.Tensor, health: Health) -> None:
    assert look(tensor) is health
    assert look_again(tensor) is health


def test_an_expanded_tensor_is_not_read_ten_billion_times() -> None:
    assert look_again(torch.tensor([1.0]).expand(10**5, 10**5)) is Health.FINE
    assert look_again(torch.tensor([math.nan]).expand(10**5, 10**5)) is Health.NAN


def test_freed_memory_is_not_read() -> None:
    tensor = torch.ones(1000)
    tensor.untyped_storage().resize_(0)

    assert look_again(tensor) is Health.FINE

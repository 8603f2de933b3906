"""Small tensors are measured together, with the numbers that each would have alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torchglass.capture.observe.tensor_batch import PENDING, Batch, Pending, can_wait
from torchglass.capture.tensor.description import describe, measure
from torchglass.records.tensors import Stats, TensorSpec


class Awaiting:
    def __init__(self, spec: TensorSpec) -> None:
        self.spec = spec
        self.stats: Stats | Pending | None = None


def measured(*tensors: torch.Tensor) -> list[Stats | Pending | None]:
    batch = Batch()
    waiting = []
    for tensor in tensors:
        waiting.append(Awaiting(describe(tensor)))
        batch.put(tensor, waiting[-1])
    batch.finish()
    return [one.stats for one in waiting]


def expected(tensor: torch.Tensor) -> list[float]:
    values = tensor.abs() if tensor.is_complex() else tensor
    numbers = values.double().numpy().ravel()
    spread = numbers.std(ddof=1) if numbers.size > 1 else 0.0
    return [numbers.min(), numbers.max(), numbers.mean(), spread]


def numbers(stats: Stats | Pending | None) -> list[float]:
    assert isinstance(stats, Stats)
    return [stats.min, stats.max, stats.mean, stats.std]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 64),
        torch.randn(1 << 15),
        torch.randn(5, 7).double(),
        torch.randn(1000).half(),
        torch.randn(1000).bfloat16() + 3,
        torch.randint(-(2**40), 2**40, (100,)),
        torch.randint(0, 255, (100,), dtype=torch.uint8),
        torch.rand(100) > 0.3,
        torch.randn(50, dtype=torch.complex64),
        torch.zeros(8),
        torch.tensor(2.5),
        torch.randn(1 << 14) + 1e5,
        torch.randn(100) * 1e-20,
        torch.randn(100) * 1e25,
    ],
    ids=lambda tensor: f"{str(tensor.dtype)[6:]} {tuple(tensor.shape)}",
)
def test_the_numbers_are_those_of_numpy(tensor: torch.Tensor) -> None:
    one, other = measured(tensor, tensor.flip(0) if tensor.dim() else tensor)

    # A mean near zero is known as exactly as the numbers that cancel out in it.
    exactness = 1e-7 * max(map(abs, expected(tensor)))
    for stats in (one, other):
        np.testing.assert_allclose(numbers(stats), expected(tensor), rtol=2e-6, atol=exactness)


def test_a_mean_far_from_zero_is_exact_to_a_fraction_of_the_spread() -> None:
    tensors = torch.randn(8, 5000) + 1e5

    found = [numbers(stats) for stats in measured(*tensors)]

    for (_, _, mean, spread), tensor in zip(found, tensors, strict=True):
        _, _, exact_mean, exact_spread = expected(tensor)
        assert mean == pytest.approx(exact_mean, abs=1e-6 * exact_spread)
        assert spread == pytest.approx(exact_spread, rel=1e-4)


def test_what_is_not_finite_is_counted_and_spoils_no_other_row() -> None:
    spoilt = torch.tensor([1.0, float("nan"), float("inf"), 3.0])
    fine = torch.arange(4.0)

    stats = measured(spoilt, fine, torch.full((4,), float("-inf")))

    assert stats[0] == measure(spoilt)
    np.testing.assert_allclose(numbers(stats[1]), expected(fine), rtol=1e-6)
    assert isinstance(stats[0], Stats)
    assert (stats[0].nan, stats[0].inf, stats[0].mean) == (1, 1, 2.0)
    assert isinstance(stats[2], Stats)
    assert stats[2].inf == 4


@pytest.mark.parametrize(("shapes", "most_bytes"), [(1, 2 << 20), (2000, 16 << 20)])
def test_copies_do_not_pile_up(shapes: int, most_bytes: int) -> None:
    batch = Batch()
    tensors = [torch.ones((1 << 12) + number % shapes) for number in range(3000)]
    waiting = [Awaiting(describe(tensor)) for tensor in tensors]

    most = 0
    for number, (tensor, one) in enumerate(zip(tensors, waiting, strict=True)):
        batch.put(tensor, one)
        if number % 10 == 0:
            most = max(most, sum(other.stats is PENDING for other in waiting))

    assert most * 4 * (1 << 12) <= most_bytes


def test_a_batch_takes_tensors_of_all_modes_one_after_the_other() -> None:
    batch = Batch()
    spec = describe(torch.ones(3))
    waiting = [Awaiting(spec) for _ in range(6)]

    with torch.inference_mode():
        for one in waiting[:2]:
            batch.put(torch.ones(3), one)
    for one in waiting[2:4]:
        batch.put(torch.ones(3, requires_grad=True) * 2, one)
    with torch.no_grad():
        for one in waiting[4:]:
            batch.put(torch.ones(3), one)
    batch.finish()

    assert [numbers(one.stats)[2] for one in waiting] == [1, 1, 2, 2, 1, 1]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(0, 3),
        torch.zeros(3, device="meta"),
        torch.ones(3).expand(4, 3),
        torch.eye(3).to_sparse(),
        torch.ones(3).to(torch.float8_e4m3fn),
    ],
    ids=["empty", "meta", "expanded", "sparse", "float8"],
)
def test_what_cannot_be_a_row_does_not_wait(tensor: torch.Tensor) -> None:
    assert not can_wait(tensor)


def test_a_tensor_whose_memory_was_given_back_does_not_wait() -> None:
    tensor = torch.ones(3)
    tensor.untyped_storage().resize_(0)

    assert not can_wait(tensor)

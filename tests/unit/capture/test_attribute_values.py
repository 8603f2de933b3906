"""The numbers of tensors of all kinds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from torchglass.capture import attributes
from torchglass.records.model import Stats


def go_on(share: float) -> bool:
    return True


def test_facts_show_the_memory_layout_of_a_view() -> None:
    view = torch.zeros(6, 8)[2:, ::2].t()

    facts = attributes.tensor_facts(view)

    assert facts.stride == (2, 8)
    assert (facts.offset, facts.storage_bytes) == (16, 192)
    assert not facts.contiguous
    assert facts.unreadable == ""


def test_facts_show_the_autograd_properties_of_a_tensor() -> None:
    leaf = torch.ones(2, requires_grad=True)
    made = leaf * 2
    made.sum().backward()  # type: ignore[no-untyped-call]

    assert attributes.tensor_facts(leaf).has_grad
    assert attributes.tensor_facts(made).grad_fn == "MulBackward0"
    assert not attributes.tensor_facts(made).has_grad


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (torch.zeros(2, device="meta"), "the tensor is on the meta device"),
        (torch.zeros(0, 3), "the tensor is empty"),
        (torch.eye(2).to_sparse(), "the tensor is sparse or nested"),
        (torch.nn.UninitializedParameter(), "not initialized"),
    ],
)
def test_a_tensor_without_values_says_why(tensor: torch.Tensor, reason: str) -> None:
    assert attributes.tensor_facts(tensor).unreadable.startswith(reason)


def test_values_are_sliced_from_any_two_dimensions() -> None:
    tensor = torch.arange(24).reshape(2, 3, 4)

    assert attributes.cut(tensor, (1, None, None), range(1, 3), range(2)).tolist() == [
        [16, 17],
        [20, 21],
    ]
    assert attributes.cut(tensor, (None, 2, None), range(2), range(4)).shape == (2, 4)
    assert attributes.cut(
        tensor, (0, range(1, 3), range(0, 4, 2)), range(2), range(2)
    ).tolist() == [
        [4, 6],
        [8, 10],
    ]
    assert attributes.cut(tensor, (1, 2, None), range(1), range(4)).tolist() == [[20, 21, 22, 23]]
    assert attributes.cut(torch.tensor(3.0), (), range(1), range(1)).tolist() == [[3.0]]


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float16, torch.bool, torch.complex64]
)
def test_values_of_every_dtype_are_shown(dtype: torch.dtype) -> None:
    tensor = torch.ones(2, 2).to(dtype)

    assert attributes.cut(tensor, (None, None), range(2), range(2)).astype(complex).sum() == 4


def test_a_slice_of_values_is_a_copy() -> None:
    tensor = torch.zeros(2, 2)

    attributes.cut(tensor, (None, None), range(2), range(2))[:] = 7

    assert tensor.sum() == 0


def test_a_downscaled_image_is_made_of_means() -> None:
    tensor = torch.tensor([[0.0, 2.0], [4.0, 6.0]]).repeat_interleave(10, 1)

    image = attributes.image(tensor, (None, None), 2, 2)

    assert image.tolist() == [[0, 2], [4, 6]]


def test_a_small_tensor_is_not_enlarged() -> None:
    assert attributes.image(torch.zeros(3, 4), (None, None), 50, 80).shape == (3, 4)


def test_a_huge_matrix_is_sampled() -> None:
    image = attributes.image(torch.ones(1).expand(1_000_000, 100_000), (None, None), 20, 30)

    assert image.shape == (20, 30)
    assert np.all(image == 1)


def test_measuring_in_slabs_equals_measuring_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attributes, "_SLAB", 16)
    tensor = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(0))
    tensor[0, 0, 0] = math.nan
    shares: list[float] = []

    def note(share: float) -> bool:
        shares.append(share)
        return True

    stats = attributes.measure_all(tensor, note)

    assert stats is not None
    finite = tensor[torch.isfinite(tensor)]
    assert (stats.count, stats.nan) == (105, 1)
    assert stats.mean == pytest.approx(float(finite.mean()), abs=1e-6)
    assert stats.std == pytest.approx(float(finite.std()), rel=1e-6)
    assert shares == sorted(shares)
    assert len(shares) > 4


def test_measuring_stops_when_canceled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attributes, "_SLAB", 16)
    tensor = torch.ones(100)
    stats = Stats(count=100, min=0.0, max=1.0, mean=1.0, std=0.0)

    assert attributes.measure_all(tensor, lambda share: share < 0.5) is None
    assert attributes.spread(tensor, stats, 4, lambda share: share < 0.5) is None


def test_a_value_histogram_counts_every_finite_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attributes, "_SLAB", 3)
    tensor = torch.tensor([0.0, 1.0, 1.0, 2.0, 4.0, math.nan, math.inf])
    stats = attributes.measure_all(tensor, go_on)
    assert stats is not None

    found = attributes.spread(tensor, stats, 4, go_on)

    assert found is not None
    assert (found.low, found.high, found.counts) == (0.0, 4.0, (1, 2, 1, 1))


def test_a_constant_tensor_has_one_bin() -> None:
    stats = attributes.measure_all(torch.ones(5), go_on)
    assert stats is not None

    found = attributes.spread(torch.ones(5), stats, 4, go_on)

    assert found is not None
    assert found.counts == (5,)


def test_a_sparse_tensor_is_measured_by_its_stored_values() -> None:
    stats = attributes.measure_all(torch.eye(3).to_sparse(), go_on)

    assert stats is not None
    assert stats.count == 3

from __future__ import annotations

import pytest
import torch

from torchglass.capture.tensor.description import corner, histogram
from torchglass.capture.trace.pass_recorder import tracing


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (torch.tensor(2.5), "tensor(2.5000)"),
        (torch.arange(3), "tensor([0, 1, 2])"),
        (torch.arange(9), "tensor([0, 1, 2, 3, 4])..."),
        (torch.zeros(2, 2, 1, 6), "tensor([[0., 0., 0., 0., 0.]])..."),
        (torch.zeros(0, 3), "tensor([], size=(0, 3))"),
        (torch.ones(1, requires_grad=True) * 2, "tensor([2.])"),
    ],
)
def test_a_corner_shows_the_first_values_of_the_last_dimensions(
    tensor: torch.Tensor, text: str
) -> None:
    assert corner(tensor) == text


@pytest.mark.parametrize(
    "tensor",
    [
        torch.eye(3).to_sparse(),
        torch.empty(3, 3, device="meta"),
        torch.empty(0, 4, 5),
        torch.empty(1, 0, 5, 5)[0],
    ],
    ids=["sparse", "meta", "no first item", "no numbers"],
)
def test_a_tensor_without_values_has_no_corner(tensor: torch.Tensor) -> None:
    assert corner(tensor) == ""


def test_a_histogram_counts_the_finite_values() -> None:
    values = torch.tensor([0.0, 1.0, 1.0, 4.0, float("nan"), float("inf")])

    assert histogram(values, bins=4) == (1, 2, 0, 1)


@pytest.mark.parametrize(
    "tensor",
    [torch.zeros(4), torch.empty(0), torch.empty(3, device="meta"), torch.full((2,), torch.nan)],
    ids=["all equal", "empty", "meta", "not finite"],
)
def test_a_tensor_without_distinct_values_has_no_histogram(tensor: torch.Tensor) -> None:
    assert histogram(tensor) == ()


def test_a_large_tensor_is_sampled() -> None:
    counts = histogram(torch.arange(3_000_000).reshape(3, 1000, 1000), bins=3)

    assert 0 < sum(counts) <= 65_536
    assert max(counts) < 1.1 * min(counts)


def test_a_histogram_is_computed_without_materializing_an_expanded_view() -> None:
    huge = torch.tensor([0.0, 1.0]).expand(1 << 20, 1 << 20, 2)

    assert len(histogram(huge)) == 16


def test_complex_values_are_counted_by_magnitude() -> None:
    assert histogram(torch.tensor([0j, 3 + 4j]), bins=2) == (1, 1)


def test_previewing_a_tensor_is_not_recorded_by_a_trace() -> None:
    tensor = torch.randn(6, 6)

    with tracing(torch.nn.Identity()) as recorder:
        corner(tensor)
        histogram(tensor)

    assert recorder.events == []

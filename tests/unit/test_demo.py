"""The model that the demo trains, and its task."""

from __future__ import annotations

import torch

from torchglass.demo import LENGTH, Sorter, make_batch


def test_the_demo_task_is_sorting() -> None:
    digits, ordered = make_batch(5, torch.Generator().manual_seed(1))

    assert digits.shape == (5, 2 * LENGTH - 1)
    assert torch.equal(ordered, digits[:, :LENGTH].sort(dim=1).values)
    assert torch.equal(digits[:, LENGTH:], ordered[:, :-1])
    assert Sorter().sort(digits[:, :LENGTH]).shape == (5, LENGTH)

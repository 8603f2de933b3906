"""A measured step is a plain step, a predicted one is the measured one, and nothing is left."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
import torch

from tests.hard import forwards, steps
from tests.hard.steps import anatomy, ready
from torchglass import errors, memory

pytestmark = steps.KNOWN_WARNINGS


_HANGS_ON_NUMBERS = {"data_dependent": "its control flow", "jagged": "a shape"}
_TORCH_DOES_NOT_TELL = {"lstm": "workspace", "sparse": "sparse"}
_FREED_IN_ANY_ORDER = {"autocast"}
"""Autocast lets go of its copies of weights in the order of their addresses."""
_KERNELS_TAKE_MORE = {
    *("lstm", "sparse", "checkpointed", "checkpointed_reentrant", "encoder in eval"),
}
"""Where most is taken inside of kernels, or by what is no kernel, as a copied random state."""
_SLACK = 80
"""What small kernels take inside of themselves: a copy of a 4×4 operand, some scalars."""


def sizes(footprint: Any) -> list[tuple[int, str]]:
    return [(change.bytes, change.phase) for change in footprint.changes]


def timeless(block: Any) -> tuple[object, ...]:
    return block.kind, block.bytes, block.phase, block.path, block.op, block.name, block.saved_by


@pytest.mark.parametrize("name", forwards.NAMES)
def test_training_after_measuring_memory_is_unchanged(name: str) -> None:
    steps.assert_training_goes_on_after(
        name, lambda model: memory(model, torch.zeros(4, 4), optimizer="adam")
    )


@pytest.mark.parametrize("name", forwards.NAMES)
def test_memory_of_all_parts_adds_up_to_the_total_and_the_allocator(name: str) -> None:
    model = ready(name)
    before = anatomy(model)

    taken = memory(model, torch.randn(4, 4))

    every = [*taken.rows.values(), taken.unattributed]
    assert sum(row.own.peak_bytes for row in every) == taken.peak_bytes
    assert sum(holder.bytes for holder in taken.peak_holders) == taken.peak_bytes
    assert sum(row.own.activation_bytes for row in every) == taken.activations_bytes
    assert taken.rows[""].total.peak_bytes == taken.peak_bytes
    live = accumulate((one.bytes for one in taken.timeline), initial=taken.before_bytes)
    assert min(live) >= 0
    assert taken.allocator_peak_bytes is not None
    assert taken.allocator_peak_bytes >= taken.peak_bytes
    if name not in _KERNELS_TAKE_MORE:
        assert taken.allocator_peak_bytes - taken.peak_bytes <= _SLACK
    assert str(taken)
    assert anatomy(model) == before
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("name", forwards.NAMES)
def test_predicted_and_measured_memory_of_hard_models_are_equal(name: str) -> None:
    model = ready(name)
    x = torch.randn(4, 4)
    measured = memory(model, x, optimizer="adam")
    if name in _HANGS_ON_NUMBERS:
        reason = f"does not run with fake=True: {_HANGS_ON_NUMBERS[name]} depends on tensor values"
        with pytest.raises(errors.CaptureError, match=reason):
            memory(model, x, optimizer="adam", fake=True)
        return

    predicted = memory(model, x, optimizer="adam", fake=True)

    if name in _TORCH_DOES_NOT_TELL:
        assert any(_TORCH_DOES_NOT_TELL[name] in note for note in predicted.footprint.notes)
        return
    ordered = sorted if name in _FREED_IN_ANY_ORDER else list
    assert ordered(sizes(measured.footprint)) == ordered(sizes(predicted.footprint))
    assert list(map(timeless, measured.footprint.blocks)) == list(
        map(timeless, predicted.footprint.blocks)
    )
    assert measured.peak_bytes == predicted.peak_bytes
    assert predicted.allocator_peak_bytes is None

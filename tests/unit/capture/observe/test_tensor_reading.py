"""Each state of a tensor is read once, and no tensor is held."""

from __future__ import annotations

import weakref

import pytest
import torch

from torchglass.capture.observe.tensor_reading import Reader, Reading
from torchglass.records.calls import Level
from torchglass.records.tensors import Stats


def stats(reading: Reading) -> Stats:
    found = reading.record("").stats
    assert found is not None
    return found


def test_a_tensor_met_again_unchanged_has_the_same_reading() -> None:
    reader = Reader("full")
    tensor = torch.ones(3)

    assert reader.read(tensor) is reader.read(tensor)


def test_a_tensor_that_was_written_to_is_read_again() -> None:
    reader = Reader("full")
    tensor = torch.ones(3)
    before = reader.read(tensor)

    tensor.view(-1)[0] = 7.0
    after = reader.read(tensor)
    reader.finish()

    assert [stats(before).max, stats(before).mean, stats(before).std] == [1.0, 1.0, 0.0]
    assert [stats(after).max, stats(after).mean] == [7.0, 3.0]
    assert stats(after).std == pytest.approx(12**0.5)


def test_a_tensor_that_does_not_tell_of_writes_is_always_read_again() -> None:
    reader = Reader("full")

    with torch.inference_mode():
        tensor = torch.ones(3)
        reader.read(tensor)
        tensor.zero_()
        after = reader.read(tensor)
    reader.finish()

    assert stats(after).max == 0.0


def test_whether_gradients_are_wanted_is_read_again() -> None:
    reader = Reader("shapes")
    tensor = torch.ones(3)

    assert not reader.read(tensor).requires_grad
    assert reader.read(tensor.requires_grad_()).requires_grad


def test_a_gradient_is_seen_and_asking_for_one_warns_of_nothing() -> None:
    reader = Reader("shapes")
    leaf = torch.ones(3, requires_grad=True)
    torch.autograd.backward(leaf.sum())
    result = leaf * 2

    assert reader.read(leaf).has_grad
    assert not reader.read(result).has_grad


@pytest.mark.parametrize("level", ["full", "cheap", "shapes"])
def test_no_tensor_is_held(level: Level) -> None:
    reader = Reader(level)
    tensor = torch.ones(1 << 20)
    gone = weakref.ref(tensor)

    reader.read(tensor)
    del tensor

    assert gone() is None


def test_a_sample_comes_from_all_columns_of_a_tensor() -> None:
    reader = Reader("cheap")
    columns = torch.arange(64.0).expand(8192, 64).contiguous()

    reading = reader.read(columns)
    reader.finish()

    assert stats(reading).count <= 4096
    assert (stats(reading).min, stats(reading).max) == (0.0, 63.0)
    assert stats(reading).mean == pytest.approx(31.5, abs=0.5)


def test_the_oldest_copies_give_way_when_the_budget_is_spent() -> None:
    reader = Reader("shapes", budget_bytes=1000)
    tensors = [torch.full((100,), float(number)) for number in range(5)]

    readings = [reader.read(tensor) for tensor in tensors]
    reader.read(torch.zeros(1000))

    kept = [reading.copy for reading in readings if reading.copy is not None]
    assert [float(copy[0]) for copy in kept] == [3.0, 4.0]
    assert reader.left_out == 4


def test_a_copy_stays_what_the_tensor_was() -> None:
    reader = Reader("full", budget_bytes=1000)
    tensor = torch.ones(3)

    reading = reader.read(tensor)
    tensor.zero_()

    assert reading.copy is not None
    assert reading.copy.tolist() == [1.0, 1.0, 1.0]

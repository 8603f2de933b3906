"""Which tensors share memory, against sets of the bytes that they are made of."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchglass.capture.tensor.memory_extent import ByMemory, Extent, extent_of

STORAGE = torch.zeros(64)
MATRIX = torch.zeros(1000, 1000)


@st.composite
def views(draw: st.DrawFn) -> torch.Tensor:
    """Any view of the storage: rows, columns, chunks, windows that overlap, expanded ones."""
    dims = draw(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 12)), max_size=3))
    room = len(STORAGE) - 1 - sum((size - 1) * step for size, step in dims)
    if room < 0:
        dims, room = [], len(STORAGE) - 1
    shape, strides = [size for size, _ in dims], [step for _, step in dims]
    return STORAGE.as_strided(shape, strides, draw(st.integers(0, room)))


def extent(view: torch.Tensor) -> Extent:
    found = extent_of(view)
    assert found is not None
    return found


def elements(view: torch.Tensor) -> set[int]:
    steps = [range(0, size * step, step) if step else [0] for size, step in _dims(view)]
    return {int(view.storage_offset()) + sum(places) for places in product(*steps)}


def _dims(view: torch.Tensor) -> list[tuple[int, int]]:
    return list(zip(view.shape, view.stride(), strict=True))


@settings(max_examples=500, deadline=None)
@given(views(), views())
def test_two_views_overlap_if_they_share_an_element(one: torch.Tensor, other: torch.Tensor) -> None:
    assert extent(one).meets(extent(other)) == bool(elements(one) & elements(other))


@settings(max_examples=500, deadline=None)
@given(views(), views())
def test_a_view_covers_only_views_inside_it(one: torch.Tensor, other: torch.Tensor) -> None:
    assert not extent(one).covers(extent(other)) or elements(other) <= elements(one)


@settings(max_examples=300, deadline=None)
@given(st.lists(views(), max_size=12), views())
def test_all_overlapping_views_are_found(kept: list[torch.Tensor], view: torch.Tensor) -> None:
    memory: ByMemory[int] = ByMemory()
    for number, one in enumerate(kept):
        memory.add(extent(one), number)

    found = memory.meeting(extent(view))

    assert sorted(found) == [n for n, one in enumerate(kept) if elements(one) & elements(view)]


@settings(max_examples=300, deadline=None)
@given(st.lists(views(), max_size=12), views())
def test_removed_views_are_not_found_again(kept: list[torch.Tensor], view: torch.Tensor) -> None:
    memory: ByMemory[int] = ByMemory()
    for number, one in enumerate(kept):
        memory.add(extent(one), number)
    whole = extent(STORAGE)

    taken = memory.take(extent(view), extent(view).meets)

    assert sorted(taken) == [n for n, one in enumerate(kept) if elements(one) & elements(view)]
    assert sorted(taken + memory.meeting(whole)) == list(range(len(kept)))


@pytest.mark.parametrize("lines", [MATRIX, MATRIX.T], ids=["rows", "columns"])
def test_only_nearby_views_are_compared(lines: torch.Tensor) -> None:
    memory: ByMemory[int] = ByMemory()
    for number, line in enumerate(lines):
        memory.add(extent(line), number)
    looked_at: list[Extent] = []

    def look(there: Extent) -> bool:
        looked_at.append(there)
        return False

    memory.take(extent(lines[500]), look)

    assert extent(lines[500]) in looked_at
    assert len(looked_at) < 8


def test_views_of_different_dtypes_overlap_by_bytes() -> None:
    halves = STORAGE.view(torch.float16)

    assert extent(STORAGE[:1]).meets(extent(halves[1:2]))
    assert not extent(STORAGE[:1]).meets(extent(halves[2:4]))


def test_equal_views_of_two_storages_do_not_overlap() -> None:
    other = torch.zeros(64)

    assert not extent(STORAGE).meets(extent(other))
    assert not extent(STORAGE).covers(extent(other))


def test_an_empty_tensor_or_one_without_storage_has_no_extent() -> None:
    assert extent_of(torch.zeros(0, 3)) is None
    assert extent_of(torch.eye(3).to_sparse()) is None

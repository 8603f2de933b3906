"""What was measured of modules, as lines of a table."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests import make
from torchglass.errors import ViewError
from torchglass.results.report import check_order, paths_of, ranked, tree


@dataclass
class Size:
    """How large a module is."""

    path: str | None
    size: int


MODEL = make.model({"children": {"encoder": {"children": {"0": {}, "1": {}}}, "head": {}}})
SIZES = [
    Size("", 9),
    Size("encoder", 4),
    Size("encoder.0", 1),
    Size("encoder.1", 3),
    Size("head", 5),
    Size(None, 2),
]


def test_unattributed_costs_are_the_last_row_below_the_model() -> None:
    lines = [(row.name, row.depth, row.last) for row in tree(SIZES, MODEL, None, None)]

    assert lines == [
        (MODEL.name, 0, True),
        ("encoder", 1, False),
        ("0", 2, False),
        ("1", 2, True),
        ("head", 1, False),
        ("unattributed", 1, True),
    ]


def test_siblings_are_sorted_by_size_and_the_last_is_marked() -> None:
    lines = [(row.name, row.last) for row in tree(SIZES, MODEL, lambda one: one.size, None)]

    assert lines == [
        (MODEL.name, True),
        ("head", False),
        ("encoder", False),
        ("1", False),
        ("0", True),
        ("unattributed", True),
    ]


def test_a_flat_list_has_full_paths_down_to_a_depth() -> None:
    names = [row.name for row in ranked(SIZES, MODEL, lambda one: one.size, depth=1)]

    assert names == [MODEL.name, "head", "encoder", "unattributed"]


def test_modules_created_in_the_forward_come_after_those_of_the_model() -> None:
    paths = list(paths_of(MODEL, ["head", "head.<Linear>"]))

    assert paths == ["", "encoder", "encoder.0", "encoder.1", "head", "head.<Linear>"]


@pytest.mark.parametrize(
    ("sort", "depth", "message"),
    [
        ("size", None, "sort must be one of total"),
        (None, -1, "depth must be 0 or more, not -1"),
    ],
)
def test_an_invalid_order_or_depth_is_refused(
    sort: str | None, depth: int | None, message: str
) -> None:
    with pytest.raises(ViewError, match=message):
        check_order(sort, depth)

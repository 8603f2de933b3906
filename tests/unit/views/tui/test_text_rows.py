"""Text and lines that fit the cells of a terminal."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from torchglass.analyse.pixels import squeeze
from torchglass.views.tui.text_rows import bar, fit, fit_path


@pytest.mark.parametrize("text", ["", "abc", "層が広い", "mixed 層 text", "🙂🙂🙂"])
@pytest.mark.parametrize("width", [0, 1, 2, 5, 20])
def test_a_fitted_text_takes_exactly_its_cells(text: str, width: int) -> None:
    assert cell_len(fit(text, width)) == width


def test_what_is_cut_says_so() -> None:
    assert fit("attention", 5) == "atte…"


def test_numbers_stand_at_the_right() -> None:
    assert fit("12", 4, right=True) == "  12"


def test_a_bar_and_the_rest_of_its_way_fill_the_width() -> None:
    assert [len("".join(bar(share, 6))) for share in (0.0, 0.1, 0.5, 0.99, 1.0)] == [6] * 5


def test_a_small_share_still_shows() -> None:
    assert bar(0.0001, 6) == ("╸", "─────")


def test_a_whole_fills_the_bar() -> None:
    assert bar(1.0, 6) == ("━━━━━━", "")


def test_few_values_stay_as_they_are() -> None:
    assert squeeze(np.array([1.0, 2.0]), 8) == [1.0, 2.0]


def test_many_values_become_means_of_equal_stretches() -> None:
    assert squeeze(np.arange(8.0), 4) == [0.5, 2.5, 4.5, 6.5]


def test_a_nan_spoils_its_own_stretch_only() -> None:
    values = np.arange(8.0)
    values[2] = math.nan

    squeezed = squeeze(values, 4)

    assert math.isnan(squeezed[1])
    assert squeezed[2:] == [4.5, 6.5]


@pytest.mark.parametrize(
    ("path", "width", "short"),
    [
        ("blocks.0.attn.proj", 18, "blocks.0.attn.proj"),
        ("blocks.0.attn.proj", 15, "b.0.attn.proj"),
        ("blocks.10.attention.proj", 11, "b.10.a.proj"),
        ("encoder", 4, "e…er"),
        ("a.b", 5, "a.b"),
    ],
)
def test_a_long_path_gives_up_the_letters_of_its_first_names(
    path: str, width: int, short: str
) -> None:
    assert fit_path(path, width) == short.ljust(width)


@given(st.text(), st.integers(0, 40))
def test_a_path_has_exactly_the_cells_it_is_given(path: str, width: int) -> None:
    assert cell_len(fit_path(path, width)) == width

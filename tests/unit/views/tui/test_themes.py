"""Which theme the explorer begins with."""

from __future__ import annotations

import pytest
from textual.theme import BUILTIN_THEMES

from torchglass.views.tui.themes import DARK, LIGHT, column_colours, theme_for


@pytest.mark.parametrize(
    ("environment", "theme"),
    [
        ({}, "glass-dark"),
        ({"COLORFGBG": "15;0"}, "glass-dark"),
        ({"COLORFGBG": "0;15"}, "glass-light"),
        ({"COLORFGBG": "0;default;7"}, "glass-light"),
        ({"COLORFGBG": "0;15", "TEXTUAL_THEME": "nord"}, "nord"),
    ],
)
def test_the_theme_is_the_users_or_fits_the_terminal(
    environment: dict[str, str], theme: str
) -> None:
    assert theme_for(environment) == theme


def test_every_theme_has_all_colours_of_the_columns() -> None:
    names = set(column_colours(DARK))

    assert all(set(column_colours(theme)) == names for theme in (LIGHT, *BUILTIN_THEMES.values()))

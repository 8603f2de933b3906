"""The two themes of the explorer, and the colours of its columns in any other."""

from __future__ import annotations

from collections.abc import Mapping

from textual.theme import Theme

DARK = Theme(
    name="glass-dark",
    primary="#7aa8ff",
    secondary="#5f87d7",
    accent="#ffb454",
    warning="#ffb454",
    error="#ff7a85",
    success="#7fd88f",
    foreground="#d7dce5",
    background="#12151b",
    surface="#171b23",
    panel="#1e2430",
)
LIGHT = Theme(
    name="glass-light",
    primary="#1c5fc4",
    secondary="#3b78d8",
    accent="#a85b00",
    warning="#a85b00",
    error="#b3243b",
    success="#1f7a3a",
    foreground="#1f2430",
    background="#fbfcfe",
    surface="#f2f4f8",
    panel="#e6eaf1",
    dark=False,
)

_ON_DARK = {
    "glass-class": "#6cb6ff",
    "glass-count": "#ffb454",
    "glass-bar": "#c88a3a",
    "glass-bytes": "#56c596",
    "glass-shape": "#9bd65c",
    "glass-device": "#b39dff",
    "glass-dtype": "#5cc8dc",
    "glass-spark": "#f78fb3",
    "glass-gutter": "#22c04a",
    "glass-same": "#183026",
    "glass-cursor": "#2b3a55",
    "glass-resting": "#232a38",
}
_ON_LIGHT = {
    "glass-class": "#0a5fb4",
    "glass-count": "#a85b00",
    "glass-bar": "#d08c34",
    "glass-bytes": "#0d7a50",
    "glass-shape": "#4a7a12",
    "glass-device": "#6242c7",
    "glass-dtype": "#0b7285",
    "glass-spark": "#b8336a",
    "glass-gutter": "#1a8f3c",
    "glass-same": "#dcf3e3",
    "glass-cursor": "#cfe0fb",
    "glass-resting": "#e3e8f0",
}


def column_colours(theme: Theme) -> Mapping[str, str]:
    """The colours that the style sheet names `$glass-…`."""
    return _ON_DARK if theme.dark else _ON_LIGHT


def theme_for(environment: Mapping[str, str]) -> str:
    """The theme to begin with: what the user asked for, else what the terminal says of itself."""
    if asked := environment.get("TEXTUAL_THEME"):
        return asked
    # Some terminals say "foreground;background" here; 7 and 15 are the whites.
    light = environment.get("COLORFGBG", "").rpartition(";")[2] in {"7", "15"}
    return LIGHT.name if light else DARK.name

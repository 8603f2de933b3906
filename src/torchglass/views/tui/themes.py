"""The themes of the explorer, and its column colours in other themes."""

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
SIXTEEN = Theme(
    name="glass-16",
    primary="#0000ff",
    secondary="#00ffff",
    accent="#ffff00",
    warning="#ffff00",
    error="#ff0000",
    success="#00ff00",
    foreground="#c0c0c0",
    background="#000000",
    surface="#000000",
    panel="#000000",
)
"""Only uses the colours of a 16-colour terminal, so that none is rounded to another."""
THEMES = (DARK, LIGHT, SIXTEEN)

_ON_DARK = {
    "glass-name": "#ff8fc0",
    "glass-class": "#6cb6ff",
    "glass-args": "#4f9bd6",
    "glass-count": "#ffb454",
    "glass-own": "#e09a4a",
    "glass-bar": "#c88a3a",
    "glass-bytes": "#56c596",
    "glass-time": "#ff8a65",
    "glass-flops": "#d4a5ff",
    "glass-in": "#e8cf5a",
    "glass-out": "#d9bd3c",
    "glass-calls": "#ffb454",
    "glass-shape": "#9bd65c",
    "glass-device": "#b39dff",
    "glass-dtype": "#5cc8dc",
    "glass-spark": "#f78fb3",
    "glass-gutter": "#22c04a",
    "glass-same": "#183026",
    "glass-cursor": "#2b3a55",
    "glass-resting": "#232a38",
    "glass-heat0": "#4a6b8a",
    "glass-heat1": "#5c9e8f",
    "glass-heat2": "#c9b458",
    "glass-heat3": "#e8964a",
    "glass-heat4": "#f2616b",
}
_ON_LIGHT = {
    "glass-name": "#a8205f",
    "glass-class": "#0a5fb4",
    "glass-args": "#2b6ca3",
    "glass-count": "#a85b00",
    "glass-own": "#8f5a14",
    "glass-bar": "#d08c34",
    "glass-bytes": "#0d7a50",
    "glass-time": "#b3401e",
    "glass-flops": "#7a3fb0",
    "glass-in": "#7d6608",
    "glass-out": "#6b5a00",
    "glass-calls": "#a85b00",
    "glass-shape": "#4a7a12",
    "glass-device": "#6242c7",
    "glass-dtype": "#0b7285",
    "glass-spark": "#b8336a",
    "glass-gutter": "#1a8f3c",
    "glass-same": "#dcf3e3",
    "glass-cursor": "#cfe0fb",
    "glass-resting": "#e3e8f0",
    "glass-heat0": "#7f9bb5",
    "glass-heat1": "#3f8f7d",
    "glass-heat2": "#b3941f",
    "glass-heat3": "#d0701a",
    "glass-heat4": "#c42f3d",
}
_OF_SIXTEEN = {
    **_ON_DARK,
    "glass-name": "#ff00ff",
    "glass-class": "#00ffff",
    "glass-args": "#008080",
    "glass-count": "#ffff00",
    "glass-own": "#808000",
    "glass-bar": "#808000",
    "glass-bytes": "#00ff00",
    "glass-time": "#ff0000",
    "glass-flops": "#ff00ff",
    "glass-in": "#ffff00",
    "glass-out": "#808000",
    "glass-calls": "#ffff00",
    "glass-shape": "#00ff00",
    "glass-device": "#ff00ff",
    "glass-dtype": "#00ffff",
    "glass-spark": "#ff00ff",
    "glass-gutter": "#00ff00",
    "glass-same": "#008000",
    "glass-cursor": "#000080",
    "glass-resting": "#808080",
    "glass-heat0": "#808080",
    "glass-heat1": "#00ff00",
    "glass-heat2": "#ffff00",
    "glass-heat3": "#ffff00",
    "glass-heat4": "#ff0000",
}


def column_colours(theme: Theme) -> Mapping[str, str]:
    """The colours that the style sheet calls `$glass-…`."""
    if theme.name == SIXTEEN.name:
        return _OF_SIXTEEN
    return _ON_DARK if theme.dark else _ON_LIGHT


def theme_for(environment: Mapping[str, str], colours: str | None = "truecolor") -> str:
    """The theme to start with: the user's choice, else one that fits the terminal.

    `colours` is rich's name of the colour system: "standard" has sixteen.
    """
    if asked := environment.get("TEXTUAL_THEME"):
        return asked
    if colours == "standard":
        return SIXTEEN.name
    # Some terminals set "foreground;background" here; 7 and 15 are white.
    light = environment.get("COLORFGBG", "").rpartition(";")[2] in {"7", "15"}
    return LIGHT.name if light else DARK.name

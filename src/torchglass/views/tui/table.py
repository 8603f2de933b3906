"""The whole table of keys: the tree's, those that open panels, and those inside of panels."""

from __future__ import annotations

from torchglass.views.tui.keys import KEYS, Key
from torchglass.views.tui.panels import PANELS
from torchglass.views.tui.panels.keys import PANEL_KEYS


def panel_toggles() -> tuple[Key, ...]:
    """The key of each panel."""
    return tuple(
        Key(
            keys=(panel.key,),
            action=f"toggle_panel('{panel.key}')",
            does=panel.title,
            section="Open or close a panel",
            place="anywhere",
            hint=panel.title.lower(),
        )
        for panel in PANELS
    )


def all_keys() -> tuple[Key, ...]:
    """Every key there is."""
    return (*KEYS, *panel_toggles(), *PANEL_KEYS)

"""Renders the explorer to a picture without a terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from textual.pilot import Pilot

from torchglass.records.reader import Reader
from torchglass.views.tui.app import Exhibit, ExplorerApp
from torchglass.views.tui.themes import DARK
from torchglass.views.tui.windows import screenshot

# What was read arrives as a message, and showing it may ask for more.
_ROUNDS = 3


def draw_explorer(
    exhibit: Reader | Exhibit,
    *,
    press: Sequence[str] = (),
    columns: int = 120,
    lines: int = 36,
    theme: str = DARK.name,
) -> str:
    """The explorer's screen as SVG, after some keys were pressed.

    `draw_explorer(reader, press=["Z", "j", "t"])` unfolds all, goes down and shows shapes.
    """
    return asyncio.run(_draw(ExplorerApp(exhibit, theme=theme), press, (columns, lines)))


async def settle(app: ExplorerApp, pilot: Pilot[None]) -> None:
    """Wait until the explorer shows all that there was to count and to read."""
    quiet = 0
    while quiet < _ROUNDS:
        await pilot.pause()
        quiet = quiet + 1 if app.explorer.settled else 0


async def _draw(app: ExplorerApp, press: Sequence[str], size: tuple[int, int]) -> str:
    async with app.run_test(size=size) as pilot:
        await settle(app, pilot)
        await pilot.press(*press)
        await settle(app, pilot)
        return screenshot(app, simplify=True)

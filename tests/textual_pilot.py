"""Textual's pilot waits for the event loop instead of the clock: sooner, and for no fixed time."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from textual import app, pilot
from textual._context import active_app
from textual.app import ScreenStackError

_QUIET_TURNS = 3


async def wait_for_idle(*_: Any, **__: Any) -> None:
    """Wait until no task of the event loop has anything left to do, and the screen is drawn.

    Textual's own function sleeps until the process has hardly used its processor for 20 ms, in
    which the screen's timer has drawn what changed.
    """
    await _wait_for_quiet()
    with contextlib.suppress(LookupError, ScreenStackError):
        active_app.get().screen._on_timer_update()
    await _wait_for_quiet()
    # Threads that read for the screen get their turn.
    await asyncio.sleep(0.001)


async def _wait_for_quiet() -> None:
    loop: Any = asyncio.get_running_loop()
    quiet = 0
    while quiet < _QUIET_TURNS:
        await asyncio.sleep(0)
        quiet = 0 if loop._ready else quiet + 1


def install() -> None:
    """Replace the function in all of Textual that tests run through."""
    app.wait_for_idle = pilot.wait_for_idle = wait_for_idle  # type: ignore[attr-defined]

"""Textual for tests: its pilot waits for the event loop instead of the clock, for no fixed time.

All apps of a process share their parsed styles, a sixth of what it takes to run one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from textual import app, pilot
from textual._context import active_app
from textual.app import App, ScreenStackError
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.pilot import Pilot

A = TypeVar("A", bound=App[Any])

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


def screen_text(app: App[Any]) -> str:
    """What is on the screen of an app, line by line."""
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


async def settle_when(is_settled: Callable[[], bool], pilot: Pilot[Any]) -> None:
    """Wait until an app stays settled: what was read arrives as a message, and may ask for more."""
    quiet = 0
    while quiet < _QUIET_TURNS:
        await pilot.pause()
        quiet = quiet + 1 if is_settled() else 0


def run_app(
    app: A,
    settle: Callable[[A, Pilot[None]], Awaitable[None]],
    story: Callable[[Pilot[None]], Awaitable[None]],
    size: tuple[int, int],
) -> None:
    """Run an app without a terminal, and a story with it once it is settled."""

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await settle(app, pilot)
            await story(pilot)

    asyncio.run(run())


def install() -> None:
    """Replace the function in all of Textual that tests run through."""
    app.wait_for_idle = pilot.wait_for_idle = wait_for_idle  # type: ignore[attr-defined]
    Stylesheet._parse_rules = _parse_once  # type: ignore[assignment, method-assign]


_parse_rules = Stylesheet._parse_rules
_parsed: dict[Any, list[RuleSet]] = {}


def _parse_once(styles: Stylesheet, *source: Any, **options: Any) -> list[RuleSet]:
    """The rules of a text, with the colors and other variables of an app."""
    key = source, *options.items(), *styles._variables.items()
    if key not in _parsed:
        _parsed[key] = _parse_rules(styles, *source, **options)
    return _parsed[key]

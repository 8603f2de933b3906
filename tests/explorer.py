"""The terminal explorer, as `tg.explore` opens it, driven by a test instead of a keyboard."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.app import App
from textual.pilot import Pilot

import torchglass as tg
from tests.textual_pilot import screen_text, settle_when

Story = Callable[["Explorer"], Awaitable[None]]


class Explorer:
    """An explorer on the screen: press keys, read the text."""

    def __init__(self, app: App[Any], pilot: Pilot[Any]) -> None:
        self.app: Any = app
        self.pilot = pilot

    def is_open(self) -> bool:
        """Whether the model has been read: until then the screen says that it is loading."""
        return self.app.screen_stack[-1] is getattr(self.app, "explorer", None)

    async def settle(self) -> None:
        """Wait until everything is shown that there is to read and to count, or the app is left."""
        await settle_when(self._is_settled, self.pilot)

    def _is_settled(self) -> bool:
        opened = getattr(self.app, "explorer", None)
        return bool(self.app._exit or (opened is not None and opened.settled))

    async def press(self, *keys: str) -> None:
        """Press keys and wait until their effect is shown."""
        await self.pilot.press(*keys)
        await self.settle()

    @property
    def text(self) -> str:
        """What is on the screen, line by line."""
        return screen_text(self.app)

    @property
    def selected(self) -> str:
        """The path of the module under the cursor."""
        path: str = self.app.explorer.tree_panel.selected.path
        return path


@contextlib.contextmanager
def terminal(
    story: Story | None = None, *, size: tuple[int, int] = (120, 40), home: Path | None = None
) -> Iterator[list[App[Any]]]:
    """A terminal for `tg.explore`: each app that opens in the block runs the story, and is closed.

    Settings are remembered in `home`; without one, nothing is remembered. Yields the apps.
    """
    apps: list[App[Any]] = []

    def run(app: App[Any]) -> Any:
        apps.append(app)

        async def drive() -> None:
            async with app.run_test(size=size) as pilot:
                if story is not None:
                    await story(Explorer(app, pilot))

        asyncio.run(drive())
        return app.return_value

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(home or folder))
        patch.setattr(sys.stdin, "isatty", lambda: True)
        patch.setattr(sys.stdout, "isatty", lambda: True)
        patch.setattr(App, "run", run)
        yield apps


def drive(
    story: Story,
    target: Any,
    /,
    *inputs: Any,
    size: tuple[int, int] = (120, 40),
    home: Path | None = None,
    **options: Any,
) -> None:
    """Explore a target, and run the story once everything is shown."""

    async def settled(explorer: Explorer) -> None:
        await explorer.settle()
        await story(explorer)

    with terminal(settled, size=size, home=home):
        tg.explore(target, *inputs, **options)


def shown(
    target: Any,
    /,
    *inputs: Any,
    press: tuple[str, ...] = (),
    size: tuple[int, int] = (180, 30),
    home: Path | None = None,
    **options: Any,
) -> str:
    """What `tg.explore(target, *inputs)` shows after some keys."""
    text: list[str] = []

    async def story(explorer: Explorer) -> None:
        await explorer.press(*press)
        text.append(explorer.text)

    drive(story, target, *inputs, size=size, home=home, **options)
    return text[0]

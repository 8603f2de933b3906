"""Someone explores a model that does what models should not do: one bad module is one row."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import pytest
import torch
from textual.pilot import Pilot
from torch import nn

from tests import models
from tests.unit.views.tui.runs import drive, screen_text
from torchglass.api.exhibits import exhibit
from torchglass.errors import TargetError
from torchglass.views.tui.app import Exhibit, ExplorerApp
from torchglass.views.tui.picture import settle
from torchglass.views.tui.windows.opening import Opening

KEYS = ("Z", "Z", "j", "t", "d", "c", "a", "L", "A", "B", "3", "o", "S", "z", "J", "end", "i", "n")


class Empty(nn.Module):
    def __len__(self) -> int:
        return 0


class Lists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = list(range(100_000))
        self.mixed = {1: "a", "b": 2, None: 3, (1, 2): 4}
        self.inner = nn.Linear(2, 2)

    @property
    def bad(self) -> int:
        raise RuntimeError("[/red] no")

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def bracketed() -> nn.Module:
    model = nn.Module()
    for name in ("[red]", "[/x]", "emoji 🙂", "עברית", "new\nline", "\x1b[31m", "a b"):
        model.add_module(name, nn.Linear(1, 1))
    return model


ODD: dict[str, Callable[[], Any]] = {
    "broken extra_repr": models.BrokenExtra,
    "hostile properties": models.Hostile,
    "hostile names": models.hostile_names,
    "brackets": bracketed,
    "contains itself": models.ContainsItself,
    "shared": models.SharedBlock,
    "tied": models.TiedLanguageModel,
    "pipeline": models.Pipeline,
    "not initialised": models.Uninitialised,
    "deep": lambda: models.deep(60),
    "lists": Lists,
    "empty": Empty,
    "empty sequential": nn.Sequential,
    "lazy": lambda: nn.Sequential(nn.LazyLinear(3)),
    "meta": lambda: nn.Linear(3, 3, device="meta"),
    "parameter list": lambda: nn.ParameterList([torch.ones(2)]),
}


@pytest.mark.parametrize(
    ("name", "size"),
    [*((name, (120, 30)) for name in ODD), ("hostile names", (40, 10)), ("deep", (12, 4))],
    ids=lambda value: value if isinstance(value, str) else f"{value[0]}x{value[1]}",
)
def test_keys_work_on_an_odd_model(name: str, size: tuple[int, int]) -> None:
    app = ExplorerApp(exhibit(ODD[name]()))

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press(*KEYS)
        await settle(app, pilot)

        assert app.is_running
        assert "\x1b" not in screen_text(app)

    drive(app, story, size=size)


@pytest.mark.parametrize(
    "name", ["hostile properties", "contains itself", "not initialised", "lists", "lazy", "meta"]
)
def test_everything_an_odd_model_holds_can_be_opened(name: str) -> None:
    app = ExplorerApp(exhibit(ODD[name]()))

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("a", "tab")
        await settle(app, pilot)
        panel = app.explorer.dock.front
        assert panel is not None
        for row in range(min(len(panel.rows), 12)):
            panel.focus()
            panel.go(row)
            await pilot.press("enter")
            await settle(app, pilot)
            await pilot.press("s", "escape", "enter", "escape")

        await settle(app, pilot)
        assert app.is_running
        assert "\x1b" not in screen_text(app)

    drive(app, story, size=(120, 30))


def test_one_bad_module_is_one_row_that_says_so() -> None:
    app = ExplorerApp(exhibit(nn.Sequential(nn.ReLU(), models.BrokenExtra(), nn.Tanh())))

    async def story(pilot: Pilot[None]) -> None:
        lines = screen_text(app).splitlines()
        assert any("!" in line and "BrokenExtra" in line for line in lines)
        assert any("Tanh" in line for line in lines)

    drive(app, story)


def test_keys_are_alive_while_a_model_is_read() -> None:
    going_on = threading.Event()

    def read() -> Exhibit:
        going_on.wait(30)
        return exhibit(nn.Sequential(nn.Linear(2, 2)))

    app = ExplorerApp(read)

    async def story() -> None:
        async with app.run_test() as pilot:
            await pilot.pause()
            assert isinstance(app.screen, Opening)
            assert "Loading…" in screen_text(app)

            going_on.set()
            while app.screen is not getattr(app, "explorer", None):
                await pilot.pause()
            await settle(app, pilot)
            assert "Linear" in screen_text(app)
            (below, _) = app.screen_stack
            assert not list(below.query("*"))

    asyncio.run(story())


@pytest.mark.parametrize("key", ["q", "escape"])
def test_reading_can_be_given_up(key: str) -> None:
    going_on = threading.Event()

    def read() -> Exhibit:
        going_on.wait(30)
        return exhibit(nn.ReLU())

    app = ExplorerApp(read)

    async def story() -> None:
        async with app.run_test() as pilot:
            await pilot.press(key)
            await pilot.pause()

        assert app._exit
        going_on.set()

    asyncio.run(story())


def test_a_huge_model_can_be_left_while_it_is_read() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.ReLU(), nn.ReLU()) for _ in range(10_000)))
    app = ExplorerApp(lambda: exhibit(model))

    async def story() -> None:
        async with app.run_test() as pilot:
            assert "(q to cancel)" in screen_text(app)
            await pilot.press("q")

        assert app._exit
        assert app.error is None

    asyncio.run(story())


def test_a_huge_model_can_be_left_while_it_is_searched() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.ReLU(), nn.ReLU()) for _ in range(10_000)))
    app = ExplorerApp(exhibit(model))

    async def story() -> None:
        async with app.run_test() as pilot:
            app.explorer.searching.clock = partial(next, count())
            app.explorer.action_search()
            app.explorer.searching.find(r"re:(\d)\.\1")
            assert app.explorer.searching.at_work
            await pilot.press("escape", "q")

        assert app._exit

    asyncio.run(story())


def test_what_reading_raises_comes_out_of_the_explorer() -> None:
    def read() -> Exhibit:
        raise TargetError("there is no such file")

    app = ExplorerApp(read)

    async def story() -> None:
        async with app.run_test() as pilot:
            while not app._exit:
                await pilot.pause()

    asyncio.run(story())

    assert isinstance(app.error, TargetError)

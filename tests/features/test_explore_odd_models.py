"""Someone explores a model that does what models should not do: one bad module is one row."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchglass as tg
from tests import models
from tests.explorer import Explorer, drive, shown, terminal
from torchglass import errors

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
    "not initialized": models.Uninitialized,
    "deep": lambda: models.deep(60),
    "lists": Lists,
    "empty": Empty,
    "empty sequential": nn.Sequential,
    "lazy": lambda: nn.Sequential(nn.LazyLinear(3)),
    "meta": lambda: nn.Linear(3, 3, device="meta"),
    "parameter list": lambda: nn.ParameterList([torch.ones(2)]),
}


OPENED = ("hostile properties", "contains itself", "not initialized", "lists", "lazy", "meta")


@pytest.mark.parametrize(
    ("name", "size"),
    [
        # Every day these are opened attribute by attribute, below.
        *(
            pytest.param(name, (120, 30), marks=pytest.mark.slow if name in OPENED else ())
            for name in ODD
        ),
        ("hostile names", (40, 10)),
        ("deep", (12, 4)),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value[0]}x{value[1]}",
)
def test_keys_work_on_an_odd_model(name: str, size: tuple[int, int]) -> None:
    async def story(explorer: Explorer) -> None:
        await explorer.press(*KEYS)

        assert explorer.app.is_running
        assert "\x1b" not in explorer.text

    drive(story, ODD[name](), size=size)


@pytest.mark.parametrize("name", OPENED)
def test_every_attribute_of_an_odd_model_opens_in_the_explorer(name: str) -> None:
    async def story(explorer: Explorer) -> None:
        await explorer.press("a", "tab")
        panel = explorer.app.explorer.tabs.front
        for row in range(min(len(panel.rows), 12)):
            panel.focus()
            panel.go(row)
            await explorer.press("enter")
            await explorer.pilot.press("s", "escape", "enter", "escape")

        await explorer.settle()
        assert explorer.app.is_running
        assert "\x1b" not in explorer.text

    drive(story, ODD[name](), size=(120, 30))


def test_a_bad_module_is_one_row_with_its_error() -> None:
    model = nn.Sequential(nn.ReLU(), models.BrokenExtra(), nn.Tanh())

    lines = shown(model, size=(120, 40)).splitlines()

    assert any("!" in line and "BrokenExtra" in line for line in lines)
    assert any("Tanh" in line for line in lines)


class Slow(nn.Linear):
    """A layer that describes itself only when it may."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.goes_on = threading.Event()

    def extra_repr(self) -> str:
        self.goes_on.wait(60)
        return super().extra_repr()


def test_keys_respond_while_a_model_loads() -> None:
    layer = Slow()

    async def story(explorer: Explorer) -> None:
        await explorer.pilot.pause()
        assert not explorer.is_open()
        assert "Loading…" in explorer.text

        layer.goes_on.set()
        while not explorer.is_open():
            await explorer.pilot.pause()
        await explorer.settle()
        assert "Slow" in explorer.text
        (below, _) = explorer.app.screen_stack
        assert not list(below.query("*"))

    with terminal(story):
        tg.explore(nn.Sequential(layer))


@pytest.mark.parametrize("key", ["q", "escape"])
def test_loading_can_be_canceled(key: str) -> None:
    layer = Slow()

    async def story(explorer: Explorer) -> None:
        await explorer.pilot.press(key)
        await explorer.pilot.pause()

        assert explorer.app._exit
        layer.goes_on.set()

    with terminal(story):
        tg.explore(nn.Sequential(layer))


@pytest.fixture(scope="module")
def huge() -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.ReLU(), nn.ReLU()) for _ in range(10_000)))


def test_quitting_works_while_a_huge_model_loads(huge: nn.Module) -> None:
    async def story(explorer: Explorer) -> None:
        assert "(q to cancel)" in explorer.text
        await explorer.pilot.press("q")

        assert explorer.app._exit
        assert explorer.app.error is None

    with terminal(story):
        tg.explore(huge)


def test_quitting_works_while_a_huge_model_is_searched(huge: nn.Module) -> None:
    async def story(explorer: Explorer) -> None:
        while not explorer.is_open():
            await explorer.pilot.pause()
        explorer.app.explorer.search.clock = partial(next, count())
        explorer.app.explorer.action_search()
        explorer.app.explorer.search.find(r"re:(\d)\.\1")
        assert explorer.app.explorer.search.at_work
        await explorer.pilot.press("escape", "q")

        assert explorer.app._exit

    with terminal(story):
        tg.explore(huge)


def test_an_exception_while_loading_leaves_the_explorer(tmp_path: Path) -> None:
    (tmp_path / "net.pt").write_bytes(b"no checkpoint")

    async def story(explorer: Explorer) -> None:
        while not explorer.app._exit:
            await explorer.pilot.pause()

    with terminal(story), pytest.raises(errors.TargetError, match="is not a checkpoint"):
        tg.explore(tmp_path / "net.pt")

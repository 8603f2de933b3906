"""What the explorer looks like; `pytest --snapshot-update` accepts a new look."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import pytest
from textual.pilot import Pilot

from tests import make
from tests.features.test_explorer import HOSTILE
from tests.unit.views.tui.runs import Training, linear, still
from torchglass.records.flow import Reader
from torchglass.views.tui.app import ExplorerApp
from torchglass.views.tui.picture import settle


class Compare(Protocol):
    """The plugin's fixture."""

    def __call__(
        self,
        app: ExplorerApp,
        *,
        terminal_size: tuple[int, int],
        run_before: Callable[[Pilot[None]], Awaitable[None]],
    ) -> bool: ...


@pytest.fixture
def looks_the_same(snap_compare: Compare) -> Callable[..., bool]:
    def compare(
        reader: Reader,
        press: Sequence[str] = (),
        *,
        theme: str = "glass-dark",
        size: tuple[int, int] = (80, 24),
    ) -> bool:
        app = ExplorerApp(reader, theme=theme)

        async def go(pilot: Pilot[None]) -> None:
            await settle(app, pilot)
            await pilot.press(*press)
            for line in app.screen.query("Input"):
                line.cursor_blink = False  # type: ignore[attr-defined]
            await settle(app, pilot)

        return snap_compare(app, terminal_size=size, run_before=go)

    return compare


@pytest.mark.parametrize("theme", ["glass-dark", "glass-light"])
@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=["80x24", "120x40"])
def test_a_run(looks_the_same: Callable[..., bool], theme: str, size: tuple[int, int]) -> None:
    press = ["Z", "Z", "j", "j", "j", "z", "j", "j"]

    assert looks_the_same(Training().train(40).finish(), press, theme=theme, size=size)


@pytest.mark.parametrize("theme", ["glass-dark", "glass-light"])
def test_the_help(looks_the_same: Callable[..., bool], theme: str) -> None:
    assert looks_the_same(Training().finish(), ["question_mark"], theme=theme, size=(120, 40))


def test_a_search(looks_the_same: Callable[..., bool]) -> None:
    assert looks_the_same(Training().train(40).finish(), ["slash", *"linear"])


def test_shapes_and_devices(looks_the_same: Callable[..., bool]) -> None:
    press = ["p", "b", "d", "t", "o"]

    assert looks_the_same(Training().train(40).finish(), ["end", *press], size=(160, 30))


def test_a_small_terminal(looks_the_same: Callable[..., bool]) -> None:
    assert looks_the_same(Training().train(40).finish(), ["j", "j"], size=(40, 10))


def test_hostile_names(looks_the_same: Callable[..., bool]) -> None:
    children = {name: {**linear(2, 2), "extra": name} for name in HOSTILE}
    model = make.model({"children": children}, name="[b]Net\x07")

    assert looks_the_same(still(model), ["j", "j", "j"])


def test_a_module_that_could_not_be_read(looks_the_same: Callable[..., bool]) -> None:
    assert looks_the_same(Training().train(40).finish(), ["slash", *"broken", "enter"])


def test_an_empty_model(looks_the_same: Callable[..., bool]) -> None:
    assert looks_the_same(still(make.model(name="Empty")))

"""What the panels look like; `pytest --snapshot-update` accepts a new look."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

import pytest
import torch
from textual.pilot import Pilot
from torch import nn

from tests.unit.views.tui.panels import samples
from tests.unit.views.tui.panels.showing import PanelApp, settle, subject_of
from torchglass.capture.attributes.live import LiveObject
from torchglass.capture.model.structure import read_model
from torchglass.views.tui.panels import PANELS, Panel
from torchglass.views.tui.panels.attributes import Attributes
from torchglass.views.tui.panels.code import Code
from torchglass.views.tui.panels.findings import FindingsPanel
from torchglass.views.tui.panels.flow import TensorFlow
from torchglass.views.tui.subject import Subject

THEMES = ["glass-dark", "glass-light"]


class Compare(Protocol):
    """The plugin's fixture."""

    def __call__(
        self,
        app: PanelApp,
        *,
        terminal_size: tuple[int, int],
        run_before: Callable[[Pilot[None]], Awaitable[None]],
    ) -> bool: ...


@pytest.fixture
def looks_the_same(snap_compare: Compare) -> Callable[..., bool]:
    def compare(
        panel: Panel, path: str, *press: str, theme: str, size: tuple[int, int] = (80, 24)
    ) -> bool:
        app = PanelApp(panel, path, theme)

        async def go(pilot: Pilot[None]) -> None:
            await settle(app, pilot)
            for key in press:
                await pilot.press(key)
                await settle(app, pilot)

        return snap_compare(app, terminal_size=size, run_before=go)

    return compare


def recorded() -> Subject:
    run = samples.store(
        None, samples.traced(), samples.measures(), samples.statistics(), samples.findings()
    )
    samples.train(run, range(30))
    return subject_of(run)


def living() -> Attributes:
    net = nn.Sequential(nn.Linear(3, 4))
    grid = torch.linspace(-2, 2, 24)
    waves = torch.stack([torch.sin(rate * grid)[:, None] * grid for rate in range(1, 7)])
    live = LiveObject(net, {"0": {"output": waves}})
    return Attributes(subject_of(samples.store(read_model(net)), live))


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("panel", [one for one in PANELS if one not in (Code, Attributes)])
def test_a_panel(looks_the_same: Callable[..., bool], panel: type[Panel], theme: str) -> None:
    assert looks_the_same(panel(recorded()), "blocks.0.fc", theme=theme)


@pytest.mark.parametrize("theme", THEMES)
def test_the_code(looks_the_same: Callable[..., bool], theme: str, tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    subject = subject_of(samples.store(samples.coded(tmp_path), samples.traced(str(file))))

    assert looks_the_same(Code(subject), "", "j", "enter", theme=theme)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("opened", [0, 1, 2, 3], ids=["tree", "numbers", "picture", "sheet"])
def test_the_attributes(looks_the_same: Callable[..., bool], theme: str, opened: int) -> None:
    assert looks_the_same(living(), "0", *["enter"] * opened, theme=theme)


def test_an_opened_op(looks_the_same: Callable[..., bool]) -> None:
    assert looks_the_same(TensorFlow(recorded()), "blocks.0", "enter", theme="glass-dark")


def test_an_opened_finding(looks_the_same: Callable[..., bool]) -> None:
    assert looks_the_same(FindingsPanel(recorded()), "", "space", theme="glass-dark")


@pytest.mark.parametrize("panel", [one for one in PANELS if one not in (Code, Attributes)])
def test_a_small_terminal(looks_the_same: Callable[..., bool], panel: type[Panel]) -> None:
    assert looks_the_same(panel(recorded()), "blocks.0.fc", theme="glass-dark", size=(40, 10))

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
from torchglass.capture.live_object import LiveObject
from torchglass.capture.model.structure import read_model
from torchglass.records.measures import (
    ReportCell,
    ReportColumn,
    ReportEntry,
    ReportRecord,
    ReportSection,
)
from torchglass.views.tui.app import ExplorerApp, ExplorerSource, settle
from torchglass.views.tui.panels import PANELS, Panel
from torchglass.views.tui.panels.attributes import AttributesPanel
from torchglass.views.tui.panels.code import CodePanel
from torchglass.views.tui.panels.op_flow import ExplanationPanel
from torchglass.views.tui.panels.reports import ReportPanel

Size = tuple[int, int]

NARROW, WIDE = (80, 24), (160, 50)
LIGHT = pytest.param("glass-light", marks=pytest.mark.slow)
THEMES = pytest.mark.parametrize("theme", ["glass-dark", LIGHT])
SIZES = pytest.mark.parametrize("size", [NARROW, WIDE], ids=["80x24", "160x50"])
OTHERS = (CodePanel, AttributesPanel, ExplanationPanel, ReportPanel)
OF_RECORDS = pytest.mark.parametrize("panel", [one for one in PANELS if one not in OTHERS])
OPENED = {
    "tree": [],
    "numbers": ["enter"],
    "picture": ["enter"] * 2,
    "sheet": ["enter"] * 3,
    "colors": ["j", "enter", "enter"],
    "slice": ["enter", "s", "end", "backspace", "comma", "9", "enter"],
    "text": ["end", "enter", "pagedown"],
}


class Compare(Protocol):
    """The plugin's fixture."""

    def __call__(
        self,
        app: ExplorerApp,
        *,
        terminal_size: Size,
        run_before: Callable[[Pilot[None]], Awaitable[None]],
    ) -> bool: ...


@pytest.fixture(autouse=True)
def _the_source_is_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Panels show the lines of net.py that a trace and a finding name."""
    monkeypatch.chdir(tmp_path)
    samples.coded(Path())


@pytest.fixture
def looks_the_same(snap_compare: Compare) -> Callable[..., bool]:
    """Opens a panel of a module on the whole screen, so that the tree may look as it likes."""

    def compare(
        exhibit: ExplorerSource,
        panel: type[Panel],
        path: str,
        *press: str,
        theme: str = "glass-dark",
        size: Size = NARROW,
    ) -> bool:
        app = ExplorerApp(exhibit, theme=theme)

        async def go(pilot: Pilot[None]) -> None:
            await settle(app, pilot)
            app.explorer.go_to(path)
            if app.explorer.tabs.front is None or app.explorer.tabs.front.key != panel.key:
                await pilot.press(panel.key)
            # Where there is room for one only, it is gone to already.
            if not isinstance(app.focused, Panel):
                await pilot.press("tab")
            for key in ("M", *press):
                await settle(app, pilot)
                await pilot.press(key)
            for line in app.screen.query("Input"):
                line.cursor_blink = False  # type: ignore[attr-defined]
            await settle(app, pilot)

        return snap_compare(app, terminal_size=size, run_before=go)

    return compare


def recorded() -> ExplorerSource:
    run = samples.store(
        None, samples.traced(), samples.measures(), samples.statistics(), samples.findings()
    )
    samples.train(run, range(30))
    return ExplorerSource(reader=run)


def living() -> ExplorerSource:
    net = nn.Sequential(nn.Linear(3, 4))
    card = ["# A card", "", *["long " * at for at in range(60)]]
    net[0].card = "\n".join(card)  # type: ignore[assignment]
    grid = torch.linspace(-2, 2, 24)
    waves = torch.stack([torch.sin(rate * grid)[:, None] * grid for rate in range(1, 7)])
    ramp = torch.linspace(0, 1, 24).expand(24, 24)
    colors = torch.stack([ramp, ramp.t(), 1 - ramp])
    live = LiveObject(net, {"0": {"output": waves, "picture": colors}})
    return ExplorerSource(reader=samples.store(read_model(net)), live=live)


def broken() -> ExplorerSource:
    return ExplorerSource(reader=samples.store(None, samples.traced()), failure=samples.failed())


@SIZES
def test_the_explanation(looks_the_same: Callable[..., bool], size: Size) -> None:
    assert looks_the_same(broken(), ExplanationPanel, "blocks.1.fc", size=size)


def reported() -> ExplorerSource:
    """A quantization of two formats, of which one is suggested."""
    columns = (
        ReportColumn(title="Weight", right=False),
        ReportColumn(title="Shape", right=False, spare=3),
        ReportColumn(title="Format", right=False),
        ReportColumn(title="SQNR"),
    )
    entries = tuple(
        ReportEntry(
            paths=("blocks.0.fc",),
            cells=(
                ReportCell(text="blocks.0.fc.weight"),
                ReportCell(text="4×4"),
                ReportCell(text=kind),
                ReportCell(text=f"{quality} dB", value=quality, share=share),
            ),
            is_suggested=kind == "int8",
        )
        for kind, quality, share in (("int4", 12.0, 0.25), ("int8", 48.0, 0.004))
    )
    found = ReportRecord(
        kind="Quantization",
        answer="Storing 1 weight in int8 saves 75% (330.0 KB → 82.5 KB) at 48.0 dB SQNR.",
        sections=(
            ReportSection(title="Worst", lines=("a line", "  and more"), paths=("head", "head")),
        ),
        columns=columns,
        entries=entries,
        facts=(("Budget", "at least 30 dB SQNR"),),
        notes=("measured on 128 samples",),
    )
    return ExplorerSource(reader=samples.store(None), reports=(found,))


@SIZES
@pytest.mark.parametrize("path", ["", "blocks.0.fc", "head"])
def test_a_report(looks_the_same: Callable[..., bool], path: str, size: Size) -> None:
    assert looks_the_same(reported(), ReportPanel, path, size=size)


@THEMES
@SIZES
@OF_RECORDS
def test_a_panel(
    looks_the_same: Callable[..., bool], panel: type[Panel], theme: str, size: Size
) -> None:
    assert looks_the_same(recorded(), panel, "blocks.0.fc", theme=theme, size=size)


@THEMES
@SIZES
def test_the_code(
    looks_the_same: Callable[..., bool],
    theme: str,
    size: Size,
) -> None:
    run = samples.store(samples.coded(Path()), samples.traced("net.py"))

    assert looks_the_same(
        ExplorerSource(reader=run), CodePanel, "", "j", "enter", theme=theme, size=size
    )


@THEMES
@SIZES
@pytest.mark.parametrize("opened", OPENED)
def test_the_attributes(
    looks_the_same: Callable[..., bool], theme: str, size: Size, opened: str
) -> None:
    assert looks_the_same(living(), AttributesPanel, "0", *OPENED[opened], theme=theme, size=size)


@pytest.mark.parametrize("opened", ["picture", "colors"])
def test_pictures_in_sixteen_colors(looks_the_same: Callable[..., bool], opened: str) -> None:
    assert looks_the_same(living(), AttributesPanel, "0", *OPENED[opened], theme="glass-16")


@pytest.mark.parametrize(
    ("title", "path", "key"),
    [
        ("Tensor flow", "blocks.0", "enter"),
        ("Findings", "", "space"),
        ("Performance", "blocks.0.fc", "d"),
        ("Gradient flow", "blocks", "space"),
    ],
)
def test_an_opened_panel(
    looks_the_same: Callable[..., bool], title: str, path: str, key: str
) -> None:
    panel = next(one for one in PANELS if one.title == title)

    assert looks_the_same(recorded(), panel, path, key)


@OF_RECORDS
def test_a_small_terminal(looks_the_same: Callable[..., bool], panel: type[Panel]) -> None:
    assert looks_the_same(recorded(), panel, "blocks.0.fc", size=(40, 10))

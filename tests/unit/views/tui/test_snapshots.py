"""What the explorer looks like; `pytest --snapshot-update` accepts a new look."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import pytest
from textual.pilot import Pilot

from tests import make
from tests.unit.views.tui.runs import Training, documents, linear, still, tiny, two_models
from tests.unit.views.tui.test_explorer import HOSTILE
from torchglass.analyse.model_diff import compare
from torchglass.records.findings import Finding, Findings
from torchglass.records.run import Ending, Reader
from torchglass.views.tui.app import ExplorerApp, ExplorerSource, settle


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
        reader: Reader | ExplorerSource,
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


LIGHT = pytest.param("glass-light", marks=pytest.mark.slow)
THEMES = pytest.mark.parametrize("theme", ["glass-dark", LIGHT])
SIZES = pytest.mark.parametrize("size", [(80, 24), (160, 50)], ids=["80x24", "160x50"])
DOWN = ("Z", "Z", "j", "j", "j", "z", "j", "j")


def run() -> Reader:
    return Training(documents=documents()).train(40).finish()


def both(test: Callable[..., None]) -> Callable[..., None]:
    return THEMES(SIZES(test))  # type: ignore[no-any-return]


@both
def test_a_run(looks_the_same: Callable[..., bool], theme: str, size: tuple[int, int]) -> None:
    assert looks_the_same(Training().train(40).finish(), DOWN, theme=theme, size=size)


@both
def test_a_recorded_forward(
    looks_the_same: Callable[..., bool], theme: str, size: tuple[int, int]
) -> None:
    assert looks_the_same(run(), [*DOWN, "f", "F"], theme=theme, size=size)


@both
def test_the_help(looks_the_same: Callable[..., bool], theme: str, size: tuple[int, int]) -> None:
    assert looks_the_same(run(), ["question_mark"], theme=theme, size=size)


@both
def test_a_search(looks_the_same: Callable[..., bool], theme: str, size: tuple[int, int]) -> None:
    assert looks_the_same(run(), ["slash", *"linear"], theme=theme, size=size)


@both
def test_the_label_panel(
    looks_the_same: Callable[..., bool], theme: str, size: tuple[int, int]
) -> None:
    press = ["L", "down", "down", "down", "space", "J"]

    assert looks_the_same(run(), press, theme=theme, size=size)


@both
def test_labels_without_alignment(
    looks_the_same: Callable[..., bool], theme: str, size: tuple[int, int]
) -> None:
    assert looks_the_same(run(), ["A", "t", "down"], theme=theme, size=size)


@both
def test_repeated_blocks_in_one_row(
    looks_the_same: Callable[..., bool], theme: str, size: tuple[int, int]
) -> None:
    assert looks_the_same(run(), ["B", "3", "j", "j"], theme=theme, size=size)


@both
def test_a_comparison(
    looks_the_same: Callable[..., bool], theme: str, size: tuple[int, int]
) -> None:
    compared = compare(*two_models(), {"embed.weight": 0.25, "blocks.0.mlp.0.weight": 0.003})
    exhibit = ExplorerSource(reader=still(tiny()), comparison=compared)

    assert looks_the_same(exhibit, ["j", "j", "j"], theme=theme, size=size)


@THEMES
def test_choosing_a_format(looks_the_same: Callable[..., bool], theme: str) -> None:
    assert looks_the_same(run(), ["x"], theme=theme)


def test_shapes_and_devices(looks_the_same: Callable[..., bool]) -> None:
    press = ["p", "b", "d", "t", "o"]

    assert looks_the_same(Training().train(40).finish(), ["end", *press], size=(160, 30))


def test_a_small_terminal(looks_the_same: Callable[..., bool]) -> None:
    assert looks_the_same(Training().train(40).finish(), ["j", "j"], size=(40, 10))


def test_sixteen_colors(looks_the_same: Callable[..., bool]) -> None:
    assert looks_the_same(run(), DOWN, theme="glass-16")


def test_hostile_names(looks_the_same: Callable[..., bool]) -> None:
    children = {name: {**linear(2, 2), "extra": name} for name in HOSTILE}
    model = make.model({"children": children}, name="[b]Net\x07")

    assert looks_the_same(still(model), ["j", "j", "j"])


def test_a_module_that_could_not_be_read(looks_the_same: Callable[..., bool]) -> None:
    assert looks_the_same(Training().train(40).finish(), ["slash", *"broken", "enter"])


def test_an_empty_model(looks_the_same: Callable[..., bool]) -> None:
    assert looks_the_same(still(make.model(name="Empty")))


def sick() -> ExplorerSource:
    """A run whose loss is NaN since step 28, and that was stopped."""
    run = Training(documents=documents()).train(28).train(12, is_spoiled=True).finish()
    run.put_document(
        Findings(
            findings=(
                Finding(
                    severity="error",
                    kind="nan",
                    message="The loss is NaN since step 28",
                    path="blocks.0.mlp.0",
                    series="blocks.0.mlp.0.weight.grad",
                    first_step=28,
                    remedy="Look at the loss function: what goes into log may be 0",
                ),
                Finding(
                    severity="warning",
                    kind="dead-units",
                    message="Half of the units of `blocks.1.mlp.1` are dead",
                    path="blocks.1.mlp.1",
                    first_step=4,
                    last_step=30,
                ),
            )
        )
    )
    run.put_document(Ending(state="stopped", step=39, error="ValueError", message="loss is NaN"))
    return ExplorerSource(reader=run, kind="run")


@pytest.mark.parametrize(
    "theme",
    [
        "glass-dark",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("glass-light", "glass-16")),
    ],
)
@pytest.mark.parametrize("size", [(40, 10), (80, 24), (160, 45)], ids=["40x10", "80x24", "160x45"])
def test_the_overview_of_a_sick_run(
    looks_the_same: Callable[..., bool], theme: str, size: tuple[int, int]
) -> None:
    assert looks_the_same(sick(), ["down", "down", "left"], theme=theme, size=size)


def test_the_overview_of_a_healthy_run(looks_the_same: Callable[..., bool]) -> None:
    healthy = ExplorerSource(reader=Training().train(40).finish(), kind="run")

    assert looks_the_same(healthy)


def test_a_finding_and_where_it_leads(looks_the_same: Callable[..., bool]) -> None:
    assert looks_the_same(sick(), ["enter"], size=(160, 45))

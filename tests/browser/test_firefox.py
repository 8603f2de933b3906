"""The page in Firefox: what is done most, once through."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import torchglass as tg
from tests.browser import firefox
from tests.browser.conftest import Serve
from tests.browser.runs import graph, put_training, run_of, training, transformer

EMBED = '[data-key="embed:1"]'
BLOCK = '[data-key="blocks.0:1"]'
ATTENTION = '[data-key="blocks.0.attention:1"]'
DRAWN = '[aria-label*="histograms over steps"]'
STEP = "[data-testid=step]"
ESCAPE, HOME, RIGHT = "\ue00c", "\ue011", "\ue014"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[firefox.Tab]:
    executable = firefox.find()
    if executable is None:
        pytest.skip("no Firefox is installed")
    with firefox.running(executable, tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.fixture
def tab(browser: firefox.Tab) -> Iterator[firefox.Tab]:
    yield browser
    browser.open("about:blank")
    complaints = browser.complaints.copy()
    browser.complaints.clear()
    assert complaints == []


def text(selector: str) -> str:
    """An expression: what an element says, "" where there is none."""
    return f"(document.querySelector({selector!r})?.textContent ?? '')"


def count(selector: str) -> str:
    """An expression: how many such elements there are."""
    return f"document.querySelectorAll({selector!r}).length"


def test_the_graph_can_be_drawn_entered_searched_and_left(tab: firefox.Tab, serving: Serve) -> None:
    tab.open(serving(training()).url + "#view=graph")
    tab.wait_until(f"{count('[data-testid=box]')} === 5")
    titles = "[...document.querySelectorAll('.box .title')].map(one => one.textContent)"
    assert tab.evaluate(titles) == ["Input 0", "embed", "Block ×4", "head", "Output"]

    tab.hover(EMBED)
    tab.wait_until(f"{text('[data-testid=tooltip]')}.includes('2×16×8')")
    tab.click(".box.stack")
    tab.wait_until(f"{count(BLOCK)} === 1")
    tab.click(BLOCK)
    tab.wait_until(f"{count(ATTENTION)} === 1")
    tab.press(ESCAPE)
    tab.wait_until(f"{count(EMBED)} === 1")
    tab.press("/", *"head")
    tab.wait_until(f"{count('.box.match')} === 1")


def test_a_dragged_box_shows_its_heat_map_in_a_column(tab: firefox.Tab, serving: Serve) -> None:
    tab.open(serving(training()).url + "#view=graph")
    tab.wait_until(f"{count(EMBED)} === 1")

    tab.drag(EMBED, "[data-testid=drop]")

    tab.wait_until(f"{count(DRAWN)} === 3")
    tab.hover(".u-over")
    tab.wait_until(f"/^step \\d+/.test({text('[data-testid=bin]')})")


def test_the_slider_sets_the_step(tab: firefox.Tab, serving: Serve) -> None:
    tab.open(serving(training()).url + "#view=graph")
    tab.wait_until(f"{text(STEP)} === 'step 39'")

    tab.click('[aria-label="Step"]')
    tab.press(HOME)

    tab.wait_until(f"{text(STEP)} === 'step 0 of 39'")
    tab.press(RIGHT)
    tab.wait_until(f"{text(STEP)} === 'step 1 of 39'")


def test_a_live_run_is_followed(tab: firefox.Tab, serving: Serve) -> None:
    store = run_of(transformer(), graph(), ends=False)
    put_training(store, range(5))
    tab.open(serving(store).url + "#columns=embed:1")
    tab.wait_until(f"{count(DRAWN)} === 3")

    put_training(store, range(5, 9))

    tab.wait_until(f"{text(STEP)} === 'step 8'")
    tab.wait_until(f"{text('[data-testid=state]')} === 'live'")
    tab.wait_until("document.querySelector('[aria-label$=\"steps 0 to 8\"]') !== null")


def test_a_saved_page_opens_from_the_disk(tab: firefox.Tab, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    tg.view(training(), save=page)

    tab.open(f"{page.as_uri()}#columns=embed:1&color=gradients")

    tab.wait_until(f"{count('[data-testid=box]')} === 5")
    tab.wait_until(f"{count(DRAWN)} === 3")

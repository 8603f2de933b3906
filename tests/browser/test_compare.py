"""Two runs beside each other."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import OpenPage, Serve
from tests.browser.runs import put_steps, training, transformer
from torchglass.api.viewing import _find_more
from torchglass.records.run import Run
from torchglass.store.file import FileSink
from torchglass.store.memory import MemoryStore

OTHER = Run(name="deeper", created_ns=1)


@pytest.fixture
def page(open_page: OpenPage, serving: Serve) -> Page:
    server = serving(training(), training(30, run=OTHER, blocks=5))
    page = open_page(server.url)
    page.get_by_test_id("box").first.wait_for()
    page.get_by_label("Compare with").select_option(label="with 2 deeper")
    return page


def test_what_only_the_other_run_has_is_marked(page: Page) -> None:
    added = page.locator('[data-key="blocks.4:1"]')

    expect(added).to_have_attribute("aria-label", re.compile("only in the other run"))
    expect(page.get_by_label("Colour by")).to_have_value("difference")


def test_series_of_both_runs_are_in_one_plot(page: Page) -> None:
    page.get_by_role("button", name="Scalars").click()

    expect(page.get_by_test_id("chart").first).to_contain_text("loss")
    page.wait_for_url(re.compile("compare=1"))


def test_heat_maps_of_both_runs_stand_side_by_side(page: Page) -> None:
    page.locator('[data-key="embed:1"]').drag_to(page.get_by_test_id("drop"))

    expect(page.get_by_test_id("chart").filter(has_text="deeper: weight")).to_have_count(2)


def test_the_other_run_can_be_looked_at_by_itself(page: Page) -> None:
    page.get_by_label("Compare with").select_option("")
    page.get_by_label("Run", exact=True).select_option(label="2 deeper")

    expect(page.locator("[data-testid=box].stack")).to_contain_text("Block ×5")
    expect(page.get_by_test_id("step")).to_have_text("step 29")


def test_a_marked_step_is_compared_with_the_one_that_is_shown(
    open_page: OpenPage, serving: Serve
) -> None:
    page = open_page(serving(training()).url)
    page.get_by_label("Step", exact=True).fill("5")

    page.get_by_role("button", name="mark").click()
    page.get_by_label("Step", exact=True).fill("30")

    embed = page.locator('[data-key="embed:1"]')
    expect(embed.locator(".reference")).to_have_count(1)
    expect(embed).to_have_attribute("aria-label", re.compile(r"gradient × 1$"))
    page.wait_for_url(re.compile("reference=5"))


def test_weights_and_outputs_are_compared_between_two_steps(
    open_page: OpenPage, serving: Serve
) -> None:
    page = open_page(serving(training()).url + "#step=30&reference=5")
    embed = page.locator('[data-key="embed:1"]')

    page.get_by_label("Colour by").select_option("weights")
    expect(embed).to_have_attribute("aria-label", re.compile(r"weights × 1$"))
    page.get_by_label("Colour by").select_option("outputs")
    expect(embed).to_have_attribute("aria-label", re.compile(r"outputs × 5\.\d+$"))
    embed.click()

    since = page.get_by_test_id("since")
    expect(since.get_by_role("heading")).to_have_text("Step 5 → 30")
    output = since.locator("dl > div").first
    expect(output.get_by_role("term")).to_have_text("output× 4.301")
    expect(output.get_by_role("definition")).to_have_text(
        ["0.5 ± 0.5 → 3 ± 0.5", "-0.5 … 1.5 → 2 … 4"]
    )


def test_all_ranks_of_a_training_stand_side_by_side(open_page: OpenPage, serving: Serve) -> None:
    ranks = [
        training(run=Run(name="gpt", created_ns=0, rank=rank, world_size=3)) for rank in range(3)
    ]
    page = open_page(serving(*ranks).url)
    page.locator('[data-key="embed:1"]').drag_to(page.get_by_test_id("drop"))

    page.get_by_label("Compare with").select_option(label="with all others")

    charts = page.get_by_test_id("chart")
    expect(charts.get_by_text("rank 2: weight", exact=True)).to_have_count(1)
    expect(charts).to_have_count(9)
    page.get_by_role("radio", name="Lines").click()
    expect(charts).to_have_count(3)


def test_a_run_that_is_started_later_in_a_served_folder_is_offered(
    open_page: OpenPage, serving: Serve
) -> None:
    later = [training(30, run=OTHER, blocks=5)]
    is_started = threading.Event()

    def find_more() -> list[MemoryStore]:
        return [later.pop()] if is_started.is_set() and later else []

    page = open_page(serving(training(), find_more=find_more).url)
    page.get_by_test_id("box").first.wait_for()
    expect(page.get_by_label("Run", exact=True)).to_have_count(0)

    is_started.set()
    page.get_by_label("Run", exact=True).select_option(label="2 deeper")

    expect(page.locator("[data-testid=box].stack")).to_contain_text("Block ×5")


def test_an_empty_folder_is_watched_and_fills(
    tmp_path: Path, open_page: OpenPage, serving: Serve
) -> None:
    page = open_page(serving(find_more=_find_more([tmp_path])).url)
    expect(page.get_by_test_id("state")).to_have_text("waiting for a run")
    expect(page.locator(".tree-pane .empty")).to_contain_text("No run is here yet")

    sink = FileSink(tmp_path / "first.glass", OTHER)
    sink.put_model(transformer())
    put_steps(sink, range(3))

    expect(page.get_by_test_id("box")).to_have_count(3)
    expect(page.get_by_test_id("step")).to_have_text("step 2")
    sink.close()
    expect(page.get_by_test_id("state")).to_have_text("finished")

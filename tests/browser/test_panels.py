"""Columns of pinned modules: how they come there, and what is drawn in them."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import OpenPage, Serve
from tests.browser.runs import RUN, stats, training, transformer
from torchglass.records.histogram import Histogram
from torchglass.records.series import Frame
from torchglass.store.memory import MemoryStore


@pytest.fixture
def page(open_page: OpenPage, serving: Serve) -> Page:
    page = open_page(serving(training()).url)
    page.get_by_test_id("box").first.wait_for()
    return page


def embed(page: Page) -> Locator:
    return page.locator('[data-key="embed:1"]')


def chart(page: Page, name: str) -> Locator:
    return page.get_by_test_id("chart").filter(has=page.get_by_text(name, exact=True))


def test_a_box_is_dragged_into_a_column(page: Page) -> None:
    embed(page).drag_to(page.get_by_test_id("drop"))

    panel = page.get_by_test_id("panel")
    expect(panel).to_have_count(1)
    expect(panel.get_by_role("heading")).to_have_text(["Outputs", "Parameters"])
    expect(panel.get_by_test_id("chart")).to_have_count(3)
    expect(embed(page).locator("[data-pinned]")).to_have_count(1)


def test_enter_and_the_button_pin_as_dragging_does(page: Page) -> None:
    embed(page).click()
    embed(page).focus()
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("panel")).to_have_count(1)

    page.get_by_role("button", name="Unpin").click()
    expect(page.get_by_test_id("panel")).to_have_count(0)

    page.get_by_role("button", name="Pin", exact=True).click()
    expect(page.get_by_test_id("panel")).to_have_count(1)


def test_columns_are_added_moved_and_removed(page: Page) -> None:
    embed(page).drag_to(page.get_by_test_id("drop"))
    page.locator('[data-key="head:1"]').drag_to(page.get_by_test_id("drop"))
    columns = page.get_by_test_id("column")
    expect(columns).to_have_count(2)
    expect(columns.first.get_by_test_id("panel")).to_have_attribute("aria-label", "embed")

    columns.first.get_by_role("button", name="Move column right").click()
    expect(columns.first.get_by_test_id("panel")).to_have_attribute("aria-label", "head")

    columns.first.get_by_role("button", name="Remove column").click()
    expect(page.get_by_test_id("panel")).to_have_attribute("aria-label", "embed")


def test_a_heat_map_reads_exact_counts_under_the_mouse(page: Page) -> None:
    embed(page).drag_to(page.get_by_test_id("drop"))
    plot = chart(page, "weight").locator(".u-over")

    plot.hover()

    reading = chart(page, "weight").get_by_test_id("bin")
    expect(reading).to_contain_text(re.compile(r"step \d+"))
    expect(reading.locator("b")).to_have_text(re.compile("^(99|100|92)$"))


def test_the_cursor_shows_the_same_step_in_all_plots(page: Page) -> None:
    embed(page).drag_to(page.get_by_test_id("drop"))
    page.get_by_role("radio", name="Lines").click()

    chart(page, "weight").locator(".u-over").hover()

    expect(chart(page, "output")).to_contain_text(re.compile(r"step \d+"))


@pytest.mark.parametrize(("button", "mode"), [("Bands", "percentiles"), ("Lines", "lines")])
def test_series_are_drawn_in_other_ways(button: str, mode: str, page: Page) -> None:
    embed(page).drag_to(page.get_by_test_id("drop"))

    page.get_by_role("radio", name=button).click()
    page.get_by_label("log").check()

    expect(chart(page, "weight")).to_have_attribute("data-mode", mode)
    page.wait_for_url(re.compile(f"mode={mode}.*log=1"))


def test_the_slider_leaves_outliers_out(page: Page) -> None:
    embed(page).drag_to(page.get_by_test_id("drop"))
    slider = page.get_by_label("Share of outliers left out")

    slider.fill("0.2")

    expect(page.get_by_text("trim 20%")).to_be_visible()
    page.wait_for_url(re.compile("outliers=0.2"))


def test_a_link_opens_the_same_columns_again(
    page: Page, open_page: OpenPage, serving: Serve
) -> None:
    embed(page).drag_to(page.get_by_test_id("drop"))
    page.wait_for_url(re.compile("columns="))

    again = open_page(serving(training()).url + "#" + page.url.partition("#")[2])

    expect(again.get_by_test_id("panel")).to_have_attribute("aria-label", "embed")


def test_the_slider_of_time_sets_the_step_everywhere(page: Page) -> None:
    mini = embed(page).locator(".mini")
    at_the_end = mini.get_attribute("d")
    embed(page).drag_to(page.get_by_test_id("drop"))

    page.get_by_label("Step", exact=True).fill("3")

    expect(page.get_by_test_id("step")).to_have_text("step 3 of 39")
    expect(mini).to_have_attribute("d", at_the_end or "")
    page.get_by_role("radio", name="Lines").click()
    expect(chart(page, "output")).to_contain_text("0.3")

    page.get_by_role("button", name="end").click()
    expect(chart(page, "output")).to_contain_text("3.9")


def test_playing_runs_to_the_end_and_stops(page: Page) -> None:
    page.get_by_label("Step", exact=True).fill("30")

    page.get_by_role("button", name="Play").click()

    expect(page.get_by_test_id("step")).to_have_text("step 39")
    expect(page.get_by_role("button", name="Play")).to_be_visible()


SHADES = """canvas => {
  const picture = canvas.getContext("2d");
  const area = canvas.parentElement.querySelector(".u-over").getBoundingClientRect();
  const around = canvas.getBoundingClientRect();
  const x = area.left - around.left + area.width / 3;
  const y = area.top - around.top;
  const strip = picture.getImageData(x, y, 1, area.height).data;
  const rows = [5 / 6, 1 / 2, 1 / 6].map(share => 4 * Math.floor(share * area.height));
  return rows.map(row => [...strip.slice(row, row + 3)]);
}"""


def test_a_bin_is_white_without_values_light_gray_with_one_and_coloured_with_many(
    open_page: OpenPage, serving: Serve
) -> None:
    store = MemoryStore(RUN)
    store.put_model(transformer())
    series = store.series("embed", "weight", "histogram")
    spread = Histogram(
        exponent=0, first=0, counts=(1, 0, 900), stats=stats(count=901, reach=1.5, mean=1.5)
    )
    for step in range(3):
        store.put_frame(Frame(step=step, time_ns=step, points={series: spread}))
    store.close()
    page = open_page(serving(store).url + "#columns=embed:1&outliers=0")
    canvas = chart(page, "weight").locator("canvas")
    expect(chart(page, "weight").get_by_role("img").first).to_have_attribute(
        "aria-label", re.compile("steps 0 to 2")
    )
    page.wait_for_function("() => document.querySelectorAll('.u-axis').length")

    one, none, many = canvas.evaluate(SHADES)

    assert none == [255, 255, 255]
    assert max(one) - min(one) < 10
    assert 200 < min(one) < 255
    assert max(many) - min(many) > 60

"""Columns of pinned modules: how they come there, and what is drawn in them."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import OpenPage, Serve
from tests.browser.runs import training


@pytest.fixture
def page(open_page: OpenPage, serving: Serve) -> Page:
    page = open_page(serving(training()).url + "#view=graph")
    page.get_by_test_id("box").first.wait_for()
    expect(page.get_by_test_id("step")).to_have_text("step 39")
    return page


ALL_STEPS = re.compile("steps 0 to 39")


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


def test_enter_and_the_pin_button_pin_a_box(page: Page) -> None:
    embed(page).click()
    embed(page).focus()
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("panel")).to_have_count(1)

    page.get_by_role("button", name="Unpin").click()
    expect(page.get_by_test_id("panel")).to_have_count(0)

    page.get_by_role("button", name="Pin", exact=True).click()
    expect(page.get_by_test_id("panel")).to_have_count(1)


def test_p_pins_the_module_selected_in_the_tree(page: Page) -> None:
    page.get_by_role("treeitem", name="embed").click()
    page.keyboard.press("p")
    expect(page.get_by_test_id("panel")).to_have_attribute("aria-label", "embed")

    page.keyboard.press("p")
    expect(page.get_by_test_id("panel")).to_have_count(0)


def test_pinning_in_another_view_uses_the_selection_of_the_tree(page: Page) -> None:
    embed(page).click()
    page.get_by_role("button", name="Scalars").click()

    page.get_by_role("treeitem", name="blocks").dblclick()
    page.get_by_role("treeitem", name="1 Block").click()
    page.get_by_role("button", name="Pin", exact=True).click()

    expect(page.get_by_test_id("panel")).to_have_attribute("aria-label", "blocks.1")


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


def test_hovering_a_heat_map_shows_exact_counts(page: Page) -> None:
    embed(page).drag_to(page.get_by_test_id("drop"))
    plot = chart(page, "weight").locator(".u-over")
    expect(chart(page, "weight").get_by_role("img")).to_have_attribute("aria-label", ALL_STEPS)

    plot.hover()

    reading = chart(page, "weight").get_by_test_id("bin")
    expect(reading).to_contain_text(re.compile(r"step \d+"))
    expect(reading.locator("b")).to_have_text(re.compile("^(99|100|92)$"))


def test_the_cursor_shows_the_same_step_in_all_plots(page: Page) -> None:
    embed(page).drag_to(page.get_by_test_id("drop"))
    page.get_by_role("radio", name="Lines").click()
    expect(chart(page, "weight")).to_have_attribute("data-mode", "lines")
    for name in ("weight", "output"):
        expect(chart(page, name).get_by_role("img")).to_have_attribute("aria-label", ALL_STEPS)

    chart(page, "weight").locator(".u-over").hover()

    expect(chart(page, "output")).to_contain_text(re.compile(r"step \d+"))


@pytest.mark.parametrize(("button", "mode"), [("Bands", "percentiles"), ("Lines", "lines")])
def test_series_can_be_drawn_in_other_styles(button: str, mode: str, page: Page) -> None:
    embed(page).drag_to(page.get_by_test_id("drop"))

    page.get_by_role("radio", name=button).click()
    page.get_by_label("log").check()

    expect(chart(page, "weight")).to_have_attribute("data-mode", mode)
    page.wait_for_url(re.compile(f"mode={mode}.*log=1"))


def test_the_slider_hides_outliers(page: Page) -> None:
    embed(page).drag_to(page.get_by_test_id("drop"))
    slider = page.get_by_label("Share of outliers hidden")

    slider.fill("0.2")

    expect(page.get_by_text("Hide outliers 20%")).to_be_visible()
    page.wait_for_url(re.compile("outliers=0.2"))


def test_a_link_restores_the_columns(page: Page, open_page: OpenPage, serving: Serve) -> None:
    embed(page).drag_to(page.get_by_test_id("drop"))
    page.wait_for_url(re.compile("columns="))

    again = open_page(serving(training()).url + "#" + page.url.partition("#")[2])

    expect(again.get_by_test_id("panel")).to_have_attribute("aria-label", "embed")


def test_the_step_slider_sets_the_step_everywhere(page: Page) -> None:
    mini = embed(page).locator(".mini")
    at_the_end = mini.get_attribute("d")
    embed(page).drag_to(page.get_by_test_id("drop"))

    page.get_by_label("Step", exact=True).fill("3")

    expect(page.get_by_test_id("step")).to_have_text("step 3 of 39")
    expect(mini).to_have_attribute("d", at_the_end or "")
    page.get_by_role("radio", name="Lines").click()
    expect(chart(page, "output")).to_contain_text("0.3")

    page.get_by_role("button", name="Latest").click()
    expect(chart(page, "output")).to_contain_text("3.9")


def test_playback_stops_at_the_last_step(page: Page) -> None:
    page.get_by_label("Step", exact=True).fill("30")

    page.get_by_role("button", name="Play").click()

    expect(page.get_by_test_id("step")).to_have_text("step 39")
    expect(page.get_by_role("button", name="Play")).to_be_visible()

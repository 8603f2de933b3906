from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import expect

import torchglass as tg
from tests import make
from tests.browser.conftest import OpenPage
from tests.browser.runs import put_steps, run_of, training


def test_a_saved_page_opens_from_the_disk_without_a_network(
    tmp_path: Path, open_page: OpenPage
) -> None:
    tg.view(training(), save=tmp_path / "page.html")

    page = open_page((tmp_path / "page.html").as_uri() + "#view=graph", offline=True)

    expect(page.get_by_role("treeitem")).to_have_count(4)
    expect(page.get_by_test_id("state")).to_have_text("finished")
    expect(page.get_by_test_id("box")).to_have_count(5)

    page.locator('[data-key="embed:1"]').drag_to(page.get_by_test_id("drop"))

    expect(page.get_by_test_id("panel").get_by_test_id("chart")).to_have_count(3)
    page.wait_for_url("**/page.html#columns=embed%3A1")


def test_a_saved_page_keeps_all_interactions(tmp_path: Path, open_page: OpenPage) -> None:
    tg.view(training(), save=tmp_path / "page.html")
    page = open_page((tmp_path / "page.html").as_uri() + "#view=graph", offline=True)

    page.locator("[data-testid=box].stack").click()
    page.locator('[data-key="blocks.0:1"]').click()
    expect(page.get_by_test_id("step")).to_have_text("step 39")
    page.get_by_label("Step", exact=True).fill("7")
    page.get_by_label("Color by").select_option("gradients")

    attention = page.locator('[data-key="blocks.0.attention:1"]')
    expect(attention).to_have_attribute("aria-label", re.compile(r"Linear, \d"))
    expect(page.get_by_test_id("step")).to_have_text("step 7 of 39")
    page.get_by_role("button", name="Gradients").click()
    expect(page.get_by_label("Gradient norms of 5 layers over 40 steps")).to_be_visible()
    page.get_by_role("button", name="Findings").click()
    expect(page.get_by_test_id("finding")).to_have_count(2)


def test_saving_the_page_of_a_live_run_does_not_wait(tmp_path: Path, open_page: OpenPage) -> None:
    store = run_of(None, ends=False)
    put_steps(store, range(3))
    tg.view(store, save=tmp_path / "page.html")

    page = open_page((tmp_path / "page.html").as_uri(), offline=True)

    expect(page.get_by_test_id("state")).to_have_text("saved during training")
    expect(page.locator(".tree-pane .empty")).to_have_text("No model recorded yet.")


def test_hostile_names_stay_inside_the_data_of_a_saved_page(
    tmp_path: Path, open_page: OpenPage
) -> None:
    name = "</script><script>alert(1)</script><!--<script>\u2028\ud800"
    store = run_of(make.model({"children": {name: {"extra": name}}}, name=name), ends=False)
    tg.view(store, save=tmp_path / "page.html")

    page = open_page((tmp_path / "page.html").as_uri(), offline=True)

    expect(page.get_by_role("treeitem")).to_have_count(2)
    expect(page.get_by_role("treeitem").last).to_contain_text("<script>alert(1)")

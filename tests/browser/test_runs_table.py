"""Someone serves a folder of runs, and finds the one that matters in a table."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect
from torch import nn

import torchglass as tg
from tests.browser.conftest import OpenPage, Serve


def record(path: Path, lr: float, loss: float) -> None:
    model = nn.Linear(2, 1)
    with tg.watch(model, save=path, config={"lr": lr}, notes="a try", verbose=False) as watcher:
        for value in (2 * loss, loss):
            watcher.log("loss", value)
            watcher.step()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, lr, loss in (("a", 0.1, 0.5), ("b", 0.01, 0.3), ("c", 0.001, 0.4)):
        record(tmp_path / f"{name}.glass", lr, loss)
    return tmp_path


def names(page: Page) -> list[str]:
    return page.get_by_test_id("run").get_by_role("rowheader").all_inner_texts()


def test_a_folder_opens_as_a_table_that_can_be_sorted_and_filtered(
    folder: Path, open_page: OpenPage, serving: Serve
) -> None:
    page = open_page(serving(folder).url)

    rows = page.get_by_test_id("run")
    expect(rows).to_have_count(3)
    expect(page.get_by_test_id("answer")).to_contain_text("3 runs in")
    expect(rows.first).to_contain_text("finished")

    page.get_by_role("columnheader", name="Loss").get_by_role("button").click()
    expect(rows.first).to_contain_text("0.3")
    assert names(page) == ["b", "c", "a"]
    page.get_by_role("columnheader", name="Loss").get_by_role("button").click()
    expect(rows.first).to_contain_text("0.5")

    page.get_by_label("Filter runs").fill("lr < 0.05 and")
    expect(page.get_by_test_id("answer")).to_contain_text("is not a filter")
    expect(rows).to_have_count(3)
    page.get_by_label("Filter runs").fill("lr < 0.05")
    expect(rows).to_have_count(2)


def test_the_back_button_returns_from_a_run_to_the_table(
    folder: Path, open_page: OpenPage, serving: Serve
) -> None:
    page = open_page(serving(folder).url)

    page.get_by_test_id("run").get_by_role("button", name="b", exact=True).click()

    expect(page.get_by_test_id("settings")).to_contain_text("lr0.01")
    expect(page.get_by_test_id("settings")).to_contain_text("a try")
    page.get_by_role("button", name="All runs").click()
    expect(page.get_by_test_id("run")).to_have_count(3)


def test_selected_runs_are_compared(folder: Path, open_page: OpenPage, serving: Serve) -> None:
    page = open_page(serving(folder).url)

    page.get_by_label("Select a", exact=True).check()
    page.get_by_label("Select c", exact=True).check()
    page.get_by_role("button", name="Compare 2 runs").click()

    expect(page.get_by_label("Run", exact=True)).to_have_value("2")
    expect(page.get_by_label("Compare with")).to_have_value("0")


def test_the_table_adds_new_runs_and_reports_corrupt_ones(
    folder: Path, open_page: OpenPage, serving: Serve
) -> None:
    page = open_page(serving(folder).url)
    expect(page.get_by_test_id("run")).to_have_count(3)

    record(folder / "later.glass", 1.0, 0.1)
    (folder / "bad.glass").write_bytes(b"half a file")

    expect(page.get_by_test_id("run")).to_have_count(4)
    assert names(page)[0] == "later"
    expect(page.get_by_text("1 file cannot be read")).to_be_visible()


def test_a_link_opens_a_run_among_many(tmp_path: Path, open_page: OpenPage, serving: Serve) -> None:
    for number in range(23):
        record(tmp_path / f"{number:02}.glass", 0.1, 0.5 + number)
    runs = tg.runs(tmp_path)
    server = serving(tmp_path)
    page = open_page(server.url)
    shown = page.get_by_label("Run", exact=True).locator("option:checked")

    def open_slowly(route: Route) -> None:
        # Longer than the page waits before it writes the address.
        page.wait_for_timeout(500)
        route.continue_()

    page.route("**/api/open?*", open_slowly)
    page.goto(f"{server.url}#run={runs['00'].id}&view=overview")
    expect(shown).to_contain_text("00.glass")
    assert f"run={runs['00'].id}" in page.url

    page.goto("about:blank")
    page.goto(f"{server.url}#run={runs['01'].id}&view=overview")
    expect(shown).to_contain_text("01.glass")
    assert f"run={runs['01'].id}" in page.url


COLORED = """() => {
    const {width, height} = document.querySelector(".overlay canvas");
    const canvas = document.querySelector(".overlay canvas");
    const {data} = canvas.getContext("2d").getImageData(0, 0, width, height);
    let count = 0;
    for (let at = 0; at < data.length; at += 4) {
        const [r, g, b, a] = data.slice(at, at + 4);
        count += a > 100 && Math.max(r, g, b) - Math.min(r, g, b) > 60;
    }
    return count > 200;
}"""


def test_the_losses_of_runs_are_overlaid(folder: Path, open_page: OpenPage, serving: Serve) -> None:
    page = open_page(serving(folder).url)

    page.get_by_role("button", name="Overlay loss").click()
    expect(page.get_by_test_id("overlaid")).to_have_text("3 of 3 runs")
    page.wait_for_function(COLORED)

    page.get_by_label("Select a", exact=True).check()
    page.get_by_role("button", name="Overlay loss of selection").click()
    expect(page.get_by_test_id("overlaid")).to_have_text("1 of 1 runs")
    page.get_by_role("button", name="Close").click()
    expect(page.get_by_test_id("overlaid")).to_have_count(0)

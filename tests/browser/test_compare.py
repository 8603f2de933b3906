"""Two runs beside each other."""

from __future__ import annotations

import contextlib
import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Page, expect
from torch import nn

import torchglass as tg
from tests.browser.conftest import OpenPage, Serve
from tests.browser.runs import (
    file_of,
    graph,
    put_steps,
    run_named,
    scalars,
    training,
    transformer,
)

OTHER = run_named("deeper")


@pytest.fixture
def page(open_page: OpenPage, serving: Serve) -> Page:
    server = serving(training(), training(30, run=OTHER, blocks=5))
    page = open_page(server.url + "#view=graph")
    page.get_by_test_id("box").first.wait_for()
    page.get_by_label("Compare with").select_option("1")
    return page


def test_modules_only_in_the_other_run_are_marked(page: Page) -> None:
    added = page.locator('[data-key="blocks.4:1"]')

    expect(added).to_have_attribute("aria-label", re.compile("only in the other run"))
    expect(page.get_by_label("Color by")).to_have_value("difference")


def test_series_of_both_runs_are_in_one_plot(page: Page) -> None:
    page.get_by_role("button", name="Scalars").click()

    expect(page.get_by_test_id("chart").first).to_contain_text("loss")
    page.wait_for_url(re.compile("compare=1"))


def test_heat_maps_of_both_runs_are_side_by_side(page: Page) -> None:
    page.locator('[data-key="embed:1"]').drag_to(page.get_by_test_id("drop"))

    expect(page.get_by_test_id("chart").filter(has_text="deeper: weight")).to_have_count(2)


def test_the_other_run_can_be_shown_alone(page: Page) -> None:
    page.get_by_label("Compare with").select_option("")
    page.get_by_label("Run", exact=True).select_option("1")

    expect(page.locator("[data-testid=box].stack")).to_contain_text("Block ×5")
    expect(page.get_by_test_id("step")).to_have_text("step 29")


def test_a_marked_step_is_compared_with_the_current_step(
    open_page: OpenPage, serving: Serve
) -> None:
    page = open_page(serving(training()).url + "#view=graph")
    expect(page.get_by_test_id("step")).to_have_text("step 39")
    page.get_by_label("Step", exact=True).fill("5")

    page.get_by_role("button", name="Compare from here").click()
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

    page.get_by_label("Color by").select_option("weights")
    expect(embed).to_have_attribute("aria-label", re.compile(r"weights × 1$"))
    page.get_by_label("Color by").select_option("outputs")
    expect(embed).to_have_attribute("aria-label", re.compile(r"outputs × 5\.\d+$"))
    embed.click()

    since = page.get_by_test_id("since")
    expect(since.get_by_role("heading")).to_have_text("Step 5 → 30")
    output = since.locator("dl > div").first
    expect(output.get_by_role("term")).to_have_text("output× 4.301")
    expect(output.get_by_role("definition")).to_have_text(
        ["0.5 ± 0.5 → 3 ± 0.5", "-0.5 … 1.5 → 2 … 4"]
    )


def test_all_ranks_of_a_run_are_side_by_side(open_page: OpenPage, serving: Serve) -> None:
    ranks = [training(run=run_named("gpt", 0, rank=rank, world_size=3)) for rank in range(3)]
    page = open_page(serving(*ranks).url + "#view=graph")
    page.locator('[data-key="embed:1"]').drag_to(page.get_by_test_id("drop"))

    page.get_by_label("Compare with").select_option(label="with all others")

    charts = page.get_by_test_id("chart")
    expect(charts.get_by_text("rank 2: weight", exact=True)).to_have_count(1)
    expect(charts).to_have_count(9)
    page.get_by_role("radio", name="Lines").click()
    expect(charts).to_have_count(3)


def test_a_run_started_later_in_a_served_folder_is_listed(
    tmp_path: Path, open_page: OpenPage, serving: Serve
) -> None:
    run_file(tmp_path / "first.glass", 1_000, 3)
    page = open_page(serving(tmp_path).url + "#view=graph")
    page.get_by_test_id("box").first.wait_for()
    expect(page.get_by_label("Run", exact=True)).to_have_count(0)

    run_file(tmp_path / "later.glass", 2_000, 5, blocks=5)
    page.get_by_label("Run", exact=True).select_option("1")

    expect(page.locator("[data-testid=box].stack")).to_contain_text("Block ×5")


def test_an_empty_folder_shows_runs_as_they_appear(
    tmp_path: Path, open_page: OpenPage, serving: Serve
) -> None:
    page = open_page(serving(tmp_path).url + "#view=graph")
    expect(page.get_by_test_id("state")).to_have_text("waiting for a run")
    expect(page.locator(".tree-pane .empty")).to_contain_text(
        "No runs yet. New runs appear here automatically."
    )

    sink = file_of(tmp_path / "first.glass", transformer())
    put_steps(sink, range(3))

    expect(page.get_by_test_id("box")).to_have_count(3)
    expect(page.get_by_test_id("step")).to_have_text("step 2")
    sink.close()
    expect(page.get_by_test_id("state")).to_have_text("finished")


def logged(every: int, *, name: str, values: float = 1.0) -> Any:
    """A training of 24 steps that was logged at some of them."""
    loss = {step: values + step for step in range(0, 24, every)}
    return scalars({"loss": loss}, run=run_named(name, every))


UNBROKEN_LINES = """() => {
    const charts = [...document.querySelectorAll("[data-testid=chart]")];
    const chart = charts.find((chart) => chart.textContent.includes("loss"));
    const canvas = chart?.querySelector("canvas");
    if (!canvas || !canvas.width) return false;
    const {width, height} = canvas;
    const copy = new OffscreenCanvas(width, height).getContext("2d", {willReadFrequently: true});
    copy.drawImage(canvas, 0, 0);
    const {data} = copy.getImageData(0, 0, width, height);
    const columns = {};
    for (let at = 0; at < data.length; at += 4) {
        const [r, g, b, a] = data.slice(at, at + 4);
        if (a < 120 || Math.max(r, g, b) - Math.min(r, g, b) < 60) continue;
        const hue = r > b ? "warm" : "cold";
        (columns[hue] ??= new Set()).add((at / 4) % width);
    }
    const length = (all) => Math.max(...all) - Math.min(...all);
    const isLine = (all) => all && all.size > 0.8 * length(all) && all.size > 0.5 * width;
    return isLine(columns.warm) && isLine(columns.cold);
}"""
"""Whether the chart of the loss has a line of each of two colors, with a pixel in almost every
column. It looks for the canvas each time: the chart is rebuilt when other runs come beside it."""


def test_runs_logged_at_different_steps_are_both_drawn_as_lines(
    open_page: OpenPage, serving: Serve
) -> None:
    alone, often = logged(5, name="rarely"), logged(1, name="often", values=8.0)
    page = open_page(serving(alone, often).url + "#view=scalars")
    chart = page.get_by_test_id("chart").filter(has_text="loss")

    page.get_by_label("Compare with").select_option("1")

    legend = chart.locator(".runs")
    expect(legend).to_contain_text("rarely")
    expect(legend).to_contain_text("often 28")
    page.wait_for_function(UNBROKEN_LINES, polling=100)
    page.get_by_label("Run", exact=True).select_option("1")
    page.get_by_label("Compare with").select_option("0")
    page.get_by_label("Step", exact=True).fill("22")
    expect(legend).to_contain_text("rarely 21 (step 20)")


def test_a_saved_comparison_opens_as_one_and_shows_how_far_weights_moved(
    open_page: OpenPage, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    old = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    new = copy.deepcopy(old)
    with torch.no_grad():
        new.get_parameter("1.weight").mul_(1.5)
        new.get_parameter("2.bias").add_(1e-6)
    torch.save(old.state_dict(), tmp_path / "old.pt")
    torch.save(new.state_dict(), tmp_path / "new.pt")

    path = tg.view(tmp_path / "new.pt", against=tmp_path / "old.pt", save=tmp_path / "both.html")
    page = open_page(f"{path.as_uri()}#fold=0", offline=True)

    box = page.get_by_test_id("box")
    expect(box.nth(0)).to_have_attribute("aria-label", re.compile("identical weights"))
    expect(box.nth(1)).to_have_attribute("aria-label", re.compile("weights differ by 50 %"))
    expect(box.nth(2)).to_have_attribute("aria-label", re.compile(r"weights differ by .*e-"))
    fills = [box.nth(at).locator("rect.body").evaluate("one => one.style.fill") for at in range(3)]
    assert len(set(fills)) == 3
    expect(page.get_by_test_id("legend")).to_contain_text("identical")


def test_missing_weights_are_not_reported_as_identical(page: Page) -> None:
    expect(page.get_by_test_id("legend")).to_contain_text("weights not compared")
    expect(page.get_by_test_id("legend")).not_to_contain_text("identical")


def run_file(path: Path, created_ns: int, steps: int, blocks: int = 4) -> None:
    sink = file_of(path, transformer(blocks), graph(blocks), run=run_named("Gpt", created_ns))
    put_steps(sink, range(steps))
    sink.close()


@pytest.mark.slow
def test_a_link_opens_the_same_run_after_others_were_added(
    tmp_path: Path, open_page: OpenPage
) -> None:
    run_file(tmp_path / "one.glass", 1_000, 3)
    run_file(tmp_path / "two.glass", 2_000, 5)
    with contextlib.closing(tg.view(tmp_path, port=0)) as server:
        page = open_page(server.url)
        page.get_by_test_id("run").get_by_role("button", name="two", exact=True).click()
        runs = page.get_by_label("Run", exact=True)
        runs.locator("option", has_text="one.glass").wait_for(state="attached")
        options = runs.locator("option").all_text_contents()
        assert all(
            re.search(r"(one|two)\.glass · .*\d\d:\d\d · \d steps · finished", one)
            for one in options
        )
        page.wait_for_url(re.compile("run="))
        before = page.url
        runs.select_option(label=next(one for one in options if "one.glass" in one))
        # The address follows a moment later.
        page.wait_for_url(lambda url: "run=" in url and url != before)
        expect(page.get_by_test_id("step")).to_have_text("step 2")
        link = page.url.partition("#")[2]
        expect(page).to_have_title(re.compile("one.glass – Torchglass"))
        page.close()

    run_file(tmp_path / "three.glass", 3_000, 7)
    with contextlib.closing(tg.view(tmp_path, port=0)) as server:
        page = open_page(f"{server.url}#{link}")
        expect(page.get_by_test_id("step")).to_have_text("step 2")
        page.close()

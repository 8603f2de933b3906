"""The overview that a training opens on: verdict, ending, loss, findings and layers over steps."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import torch
from playwright.sync_api import Locator, Page, expect
from torch import nn

import torchglass as tg
from tests.browser.conftest import OpenPage, Serve
from tests.browser.runs import findings, graph, put_training, run_of, training, transformer

RED_CELLS = """canvas => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let red = 0;
    for (let at = 0; at < data.length; at += 4)
        if (data[at] === 206 && data[at + 1] === 32 && data[at + 2] === 41) red++;
    return red / (data.length / 4);
}"""


def train(file: Path, *, steps: int = 30, nan_at: int | None = None, stop_at: int = -1) -> Path:
    """A small classifier that learns, until one of its weights is overwritten with NaN."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    truth = torch.randn(8, 4)
    with tg.watch(model, save=file, verbose=False) as watcher:
        for step in range(steps):
            if step == nan_at:
                with torch.no_grad():
                    next(model[2].parameters())[0, 0] = float("nan")
            if step == stop_at:
                raise RuntimeError("the disk is full")
            batch = torch.randn(32, 8)
            loss = nn.functional.cross_entropy(model(batch), (batch @ truth).argmax(1))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            watcher.log("loss", loss.item())
    return file


def heat_map(page: Page) -> Locator:
    return page.get_by_role("application")


def test_a_run_with_nan_opens_as_broken(
    tmp_path: Path, open_page: OpenPage, serving: Serve
) -> None:
    page = open_page(serving(train(tmp_path / "run.glass", nan_at=15)).url)

    verdict = page.get_by_test_id("verdict")
    expect(verdict).to_contain_text("✕")
    expect(verdict).to_contain_text(re.compile(r"Broken: .*NaN.*step 15"))
    expect(verdict).to_contain_text("What to do")
    expect(page.get_by_test_id("ending")).to_have_text("Finished at step 29")
    expect(page.get_by_test_id("chart")).to_contain_text("loss")
    expect(page.get_by_test_id("event")).to_have_count(1)
    expect(page.get_by_test_id("scale")).to_contain_text("NaN or Inf")
    # Half of the steps, less the stripes.
    assert 0.25 < heat_map(page).evaluate(RED_CELLS) < 0.5


def test_a_healthy_run_shows_no_problems(
    tmp_path: Path, open_page: OpenPage, serving: Serve
) -> None:
    page = open_page(serving(train(tmp_path / "run.glass")).url)

    expect(page.get_by_test_id("verdict")).to_contain_text(
        "Healthy: no problems found up to step 29"
    )
    expect(heat_map(page)).to_have_attribute("aria-label", re.compile("gradient norm of 3 layers"))
    for alarm in ("event", "tick", "badge"):
        expect(page.get_by_test_id(alarm)).to_have_count(0)
    expect(page.get_by_test_id("scale")).not_to_contain_text("NaN")
    assert heat_map(page).evaluate(RED_CELLS) == 0


def test_a_stopped_run_names_the_exception(
    tmp_path: Path, open_page: OpenPage, serving: Serve
) -> None:
    file = tmp_path / "run.glass"
    with contextlib.suppress(RuntimeError):
        train(file, stop_at=20)
    page = open_page(serving(file).url)

    expect(page.get_by_test_id("verdict")).to_contain_text("Broken")
    expect(page.get_by_test_id("ending")).to_have_text(
        "Stopped by RuntimeError at step 20: the disk is full"
    )


def test_a_finding_links_to_its_module_series_and_step(open_page: OpenPage, serving: Serve) -> None:
    page = open_page(serving(training()).url)
    events = page.get_by_test_id("event")
    expect(events).to_have_count(2)
    expect(events.first).to_contain_text("blocks.2.attention")

    events.filter(has_text="hardly any gradient").click()

    expect(page.locator('[data-key="embed:1"]')).to_have_class(re.compile("selected"))
    expect(page.locator(".plot-card.sought")).to_contain_text("weight (gradient)")
    expect(page.get_by_test_id("step")).to_have_text("step 20 of 39")
    page.go_back()
    expect(events).to_have_count(2)


def test_a_cell_describes_itself_and_links_to_its_module_and_step(
    open_page: OpenPage, serving: Serve
) -> None:
    page = open_page(serving(training()).url)
    box = heat_map(page).bounding_box()
    assert box is not None
    # The third of five layers, at half of the steps.
    page.mouse.move(box["x"] + box["width"] * 0.513, box["y"] + box["height"] * 0.5)

    expect(page.get_by_test_id("cell")).to_have_text(
        re.compile(r"step 20 · blocks\.1\.attention · gradient norm \d")
    )
    page.mouse.down()
    page.mouse.up()

    selected = page.locator('[data-key="blocks.1.attention:1"]')
    expect(selected).to_have_class(re.compile("selected"))
    expect(page.get_by_test_id("step")).to_have_text("step 20 of 39")
    expect(page.get_by_test_id("details").get_by_role("heading")).to_contain_text("Linear")


def test_the_layer_map_is_navigated_by_keyboard(open_page: OpenPage, serving: Serve) -> None:
    page = open_page(serving(training()).url)
    heat_map(page).focus()
    cell = page.get_by_test_id("cell")

    page.keyboard.press("ArrowDown")
    expect(cell).to_contain_text("step 39 · embed")
    for key in ("ArrowDown", "ArrowLeft", "Home", "ArrowRight"):
        page.keyboard.press(key)
    expect(cell).to_contain_text("step 1 · blocks.0.attention")
    page.keyboard.press("Enter")

    expect(page.get_by_test_id("step")).to_have_text("step 1 of 39")
    expect(page.get_by_test_id("graph")).to_be_visible()


def test_the_layer_map_can_show_other_statistics(
    tmp_path: Path, open_page: OpenPage, serving: Serve
) -> None:
    page = open_page(serving(train(tmp_path / "run.glass")).url)

    page.get_by_role("button", name="Activation scale").click()

    expect(heat_map(page)).to_have_attribute(
        "aria-label", re.compile("activation scale of 4 layers over 30 columns")
    )
    page.get_by_role("button", name="Update ratio").click()
    expect(heat_map(page)).to_have_attribute("aria-label", re.compile("update ratio of 3 layers"))


def test_the_step_slider_has_ticks_where_problems_begin(
    open_page: OpenPage, serving: Serve
) -> None:
    page = open_page(serving(training()).url)
    ticks = page.get_by_test_id("tick")
    expect(ticks).to_have_count(2)
    expect(ticks.first).to_have_class("error")
    expect(ticks.last).to_have_class("warning")

    ticks.first.click()

    expect(page.get_by_test_id("step")).to_have_text("step 12 of 39")
    tick, slider = ticks.first.bounding_box(), page.locator(".slide").bounding_box()
    assert tick is not None
    assert slider is not None
    share = (tick["x"] + tick["width"] / 2 - slider["x"] - 8) / (slider["width"] - 16)
    assert abs(share - 12 / 39) < 0.01


def test_modules_with_problems_have_badges_in_the_tree_and_in_the_graph(
    open_page: OpenPage, serving: Serve
) -> None:
    page = open_page(serving(training()).url + "#view=graph")
    rows = page.get_by_role("treeitem")
    blocks = rows.filter(has_text="blocks").first
    expect(blocks.get_by_test_id("badge")).to_have_class(re.compile("error below"))
    expect(rows.first.get_by_test_id("badge")).to_have_count(0)

    rows.first.get_by_test_id("twisty").click()

    # The closed model has both problems below.
    expect(rows.first.get_by_test_id("badge")).to_have_text("2")
    boxes = page.get_by_test_id("box")
    expect(boxes.filter(has_text="embed").get_by_test_id("badge")).to_have_text(
        re.compile("hardly any gradient")
    )
    stack = page.locator("[data-testid=box].stack")
    expect(stack).to_have_attribute("aria-label", re.compile("1 problem below: softmax"))
    stack.click()
    expect(page.locator('[data-key="blocks.2:1"]').get_by_test_id("badge")).to_be_visible()
    expect(page.locator('[data-key="blocks.1:1"]').get_by_test_id("badge")).to_have_count(0)


def test_a_saved_page_opens_on_its_overview_without_a_network(
    tmp_path: Path, open_page: OpenPage
) -> None:
    saved = tg.view(train(tmp_path / "run.glass", nan_at=15), save=tmp_path / "page.html")
    page = open_page(saved.as_uri(), offline=True)

    expect(page.get_by_test_id("verdict")).to_contain_text("Broken")
    expect(page.get_by_test_id("scale")).to_contain_text("NaN or Inf")
    assert heat_map(page).evaluate(RED_CELLS) > 0.25
    page.get_by_role("button", name="Activation scale").click()
    expect(heat_map(page)).to_have_attribute("aria-label", re.compile("activation scale"))


def test_an_open_page_shows_when_a_live_run_breaks(open_page: OpenPage, serving: Serve) -> None:
    store = run_of(transformer(), graph(), ends=False)
    page = open_page(serving(store).url)
    expect(page.get_by_test_id("verdict")).to_contain_text("No steps recorded yet")

    put_training(store, range(10))
    expect(page.get_by_test_id("verdict")).to_contain_text("no problems found up to step 9")
    expect(page.get_by_test_id("ending")).to_have_text("Running, step 9")
    expect(heat_map(page)).to_have_attribute("aria-label", re.compile("over 10 columns"))
    put_training(store, range(10, 25))
    store.put_document(findings())

    expect(page.get_by_test_id("verdict")).to_contain_text("Broken: softmax produced 3 NaN")
    expect(page.get_by_test_id("event")).to_have_count(2)
    expect(page.get_by_test_id("tick")).to_have_count(2)
    expect(heat_map(page)).to_have_attribute("aria-label", re.compile("over 25 columns"))


def test_the_overview_fits_a_phone(open_page: OpenPage, serving: Serve) -> None:
    page = open_page(serving(training()).url, viewport={"width": 390, "height": 844})

    expect(page.get_by_test_id("event")).to_have_count(2)
    expect(heat_map(page)).to_be_attached()
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    overview = page.get_by_role("region", name="Overview")
    assert overview.evaluate("one => one.scrollWidth <= one.clientWidth")


def test_a_link_without_a_view_opens_the_graph(open_page: OpenPage, serving: Serve) -> None:
    page = open_page(serving(training()).url + "#module=embed")
    expect(page.get_by_test_id("graph")).to_be_visible()

    page.get_by_role("button", name="Overview").click()
    page.wait_for_url(re.compile("view=overview"))
    page.reload()

    expect(page.get_by_role("region", name="Overview")).to_be_visible()
    page.go_back()
    expect(page.get_by_test_id("graph")).to_be_visible()

"""Views of a training: scalars, gradients, findings, time; and following one that goes on."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Locator, expect
from torch import nn

import torchglass as tg
from tests import make
from tests.browser.conftest import PATIENCE_MS, OpenPage, Serve
from tests.browser.runs import (
    called_twice,
    file_of,
    footprint,
    graph,
    pictures,
    put_steps,
    put_training,
    run_named,
    run_of,
    scalars,
    training,
    transformer,
)


def test_scalars_are_charted(open_page: OpenPage, serving: Serve) -> None:
    page = open_page(serving(training()).url)

    page.get_by_role("button", name="Scalars").click()

    chart = page.get_by_test_id("chart")
    expect(chart).to_contain_text("loss")
    expect(chart.get_by_role("img")).to_have_attribute("aria-label", re.compile("steps 0 to 39"))


def test_scalars_can_be_grouped_filtered_and_restyled(tmp_path: Path, open_page: OpenPage) -> None:
    file = tmp_path / "run.glass"
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tg.watch(model, save=file, verbose=False) as watcher:
        for step in range(30):
            model(torch.ones(4, 2)).sum().backward()
            optimizer.step()
            watcher.log("loss", 10.0 ** (step % 3))
            watcher.log("train/accuracy", step / 30)
            watcher.log("train/recall", step / 40)
    server = tg.view(file, port=0)
    page = open_page(server.url)
    page.get_by_role("button", name="Scalars").click()
    charts = page.get_by_test_id("chart")
    loss = charts.filter(has_text="loss").first
    expect(page.get_by_role("heading", name="train", exact=True)).to_be_visible()

    plain = drawn_once_settled(loss)
    page.get_by_label("Log scale").check()
    logarithmic = drawn_once_settled(loss, other_than=plain)
    page.get_by_label("Smoothing").fill("0.9")
    drawn_once_settled(loss, other_than=logarithmic)
    page.get_by_label("Filter scalars").fill("recall")

    expect(charts).to_have_count(1)
    expect(charts).to_contain_text("train/recall")
    page.get_by_label("Filter scalars").fill("nothing")
    expect(page.get_by_text("No scalar matches.")).to_be_visible()
    page.close()
    server.close()


def drawn_once_settled(chart: Locator, other_than: bytes = b"") -> bytes:
    """A picture of a chart that is not the one before, once it no longer changes."""
    before, now = b"", chart.screenshot()
    end = time.monotonic() + PATIENCE_MS / 1000
    while now in (other_than, b"") or now != before:
        assert time.monotonic() < end, "the chart looks as it did before"
        before, now = now, chart.screenshot()
    return now


def test_gradients_are_shown_by_depth(open_page: OpenPage, serving: Serve) -> None:
    page = open_page(serving(training()).url)

    page.get_by_role("button", name="Gradients").click()

    expect(page.get_by_label("Gradient norms of 5 layers over 40 steps")).to_be_visible()
    page.get_by_role("button", name="blocks.1.attention").click()
    expect(page.get_by_test_id("details").get_by_role("heading")).to_contain_text("Linear")


def test_a_finding_links_to_its_module_and_step(open_page: OpenPage, serving: Serve) -> None:
    page = open_page(serving(training()).url)

    page.get_by_role("button", name="Findings").click()
    expect(page.get_by_test_id("finding").first).to_contain_text("3 NaN")
    page.get_by_role("button", name="blocks.2.attention").click()

    expect(page.locator('[data-key="blocks.2.attention:1"]')).to_have_class(re.compile("selected"))
    expect(page.get_by_test_id("step")).to_have_text("step 12 of 39")


def test_a_finding_opens_its_series_at_its_step(open_page: OpenPage, serving: Serve) -> None:
    page = open_page(serving(training()).url)
    page.get_by_role("button", name="Findings").click()

    page.get_by_role("button", name="embed · weight (gradient) · step 20").click()

    expect(page.get_by_test_id("panel")).to_have_attribute("aria-label", "embed")
    sought = page.locator(".plot-card.sought")
    expect(sought).to_contain_text("weight (gradient)")
    expect(sought).to_be_in_viewport()
    expect(page.get_by_test_id("step")).to_have_text("step 20 of 39")

    page.go_back()

    expect(page.get_by_test_id("finding").first).to_be_visible()


def test_a_finding_links_to_its_call(open_page: OpenPage, serving: Serve) -> None:
    page = open_page(serving(called_twice()).url)
    page.get_by_role("button", name="Findings").click()

    page.get_by_role("button", name="embed · call 2 · output", exact=True).click()

    expect(page.locator('[data-key="embed:2"]')).to_have_class(re.compile("selected"))
    expect(page.get_by_test_id("panel")).to_contain_text("call 2")

    page.get_by_role("button", name="Findings").click()
    page.get_by_test_id("finding").first.get_by_role("button").click()

    expect(page.locator(".box.op")).to_have_class(re.compile("selected"))


def test_built_in_scalars_have_readable_names(open_page: OpenPage, serving: Serve) -> None:
    names = ("lr.1", "grad_scale", "ranks.slowest", "my own")
    page = open_page(serving(scalars({name: {0: 1.0} for name in names})).url)

    page.get_by_role("button", name="Scalars").click()

    words = ["my own", "learning rate, group 1", "gradient scale", "slowest rank"]
    expect(page.locator(".plot-card b")).to_have_text(words)


def test_a_traced_pass_is_drawn_as_a_flame_graph(open_page: OpenPage, serving: Serve) -> None:
    calls = [make.call(0), make.call(1, "embed", parent=0)]
    ops = [make.op(0, "embedding", call=1, start_ns=10, end_ns=90)]
    page = open_page(serving(run_of(transformer(), make.trace(ops, calls))).url)

    page.get_by_role("button", name="Time", exact=True).click()

    expect(page.get_by_label("3 spans of one pass")).to_be_visible()


class Softmax(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return torch.softmax(x, -1)  # selected


def test_selecting_a_traced_op_shows_its_name_values_and_source_line(
    open_page: OpenPage, tmp_path: Path
) -> None:
    trace = tg.trace(Softmax(), torch.ones(2, 4))
    page = open_page(tg.view(trace, save=tmp_path / "trace.html").as_uri(), offline=True)

    page.locator("[data-testid=box].op", has_text="softmax").click()

    details = page.get_by_test_id("details")
    expect(details.locator("h2")).to_contain_text("softmax")
    expect(details.locator("table.calls")).to_contain_text("0.25")
    details.get_by_text("Source code").click()
    expect(details.locator(".line.here")).to_contain_text("# selected")


def test_a_profile_has_a_view_of_time_per_module(open_page: OpenPage, tmp_path: Path) -> None:
    profile = tg.profile(Softmax(), torch.ones(2, 4), warmup=0, repeats=2)
    page = open_page(tg.view(profile, save=tmp_path / "profile.html").as_uri(), offline=True)

    page.get_by_role("button", name="Time").click()

    expect(page.get_by_role("img", name="4 spans of one pass")).to_be_visible()
    expect(page.get_by_role("status")).to_contain_text("median of the timed runs")


def test_hovering_reads_gradients_also_in_a_comparison(open_page: OpenPage, serving: Serve) -> None:
    server = serving(training(), training(30, run=run_named("other")))
    page = open_page(f"{server.url}#view=gradients&compare=1")
    said = page.get_by_role("region", name="Gradients").get_by_role("status")
    expect(said).to_contain_text("Amber: other")

    page.get_by_role("img", name="Gradient norms of").hover()

    expect(said).to_contain_text("gradient norm")
    expect(page.locator("table.layers tr").first.locator("td.number")).to_have_count(2)


def test_activation_images_are_drawn(open_page: OpenPage, serving: Serve) -> None:
    page = open_page(serving(run_of(transformer(), pictures())).url)

    page.get_by_role("button", name="Activations").click()

    canvas = page.get_by_test_id("map").locator("canvas")
    pixels = "canvas => [...canvas.getContext('2d').getImageData(0, 0, 2, 1).data]"
    expect(canvas).to_have_attribute("aria-label", "output of embed, -1 … 1")
    assert canvas.evaluate(pixels) == [0, 0, 0, 255, 255, 255, 255, 255]


@pytest.mark.parametrize("channels", [3, 8, 20])
def test_tiles_without_a_channel_are_empty(
    channels: int, open_page: OpenPage, serving: Serve, tmp_path: Path
) -> None:
    model, file = torch.nn.Conv2d(1, channels, 1), tmp_path / "run.glass"
    with tg.watch(model, log=["activations"], save=file, verbose=False):
        model(torch.ones(1, 1, 4, 4)).sum().backward()
    page = open_page(serving(file).url)

    page.get_by_role("button", name="Activations").click()

    canvas = page.get_by_label("Activations").get_by_test_id("map").locator("canvas")
    opaque = """canvas => {
        const { width, height } = canvas;
        const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
        return data.filter((value, at) => at % 4 === 3 && value === 255).length;
    }"""
    assert canvas.evaluate(opaque) == min(channels, 16) * 4 * 4


def test_the_memory_of_a_step_is_a_timeline(open_page: OpenPage, serving: Serve) -> None:
    page = open_page(serving(run_of(transformer(), footprint())).url)

    page.get_by_role("button", name="Memory").click()

    expect(page.get_by_label("Memory of one step, at most 1.0 KB")).to_be_visible()
    expect(page.get_by_role("row", name="embed")).to_contain_text("1.0 KB")


def test_new_steps_arrive_while_the_run_is_written(
    tmp_path: Path, open_page: OpenPage, serving: Serve
) -> None:
    sink = file_of(tmp_path / "run.glass", None)
    page = open_page(serving(tmp_path / "run.glass").url)
    expect(page.locator(".tree-pane .empty")).to_have_text("No model recorded yet.")

    sink.put_model(transformer())
    put_steps(sink, range(3))

    expect(page.get_by_test_id("state")).to_have_text("live")
    expect(page.get_by_test_id("step")).to_have_text("step 2")
    page.get_by_role("button", name="Scalars").click()
    expect(page.get_by_test_id("chart").get_by_role("img")).to_have_attribute(
        "aria-label", re.compile("steps 0 to 2")
    )

    put_steps(sink, range(3, 50))

    expect(page.get_by_test_id("chart").get_by_role("img")).to_have_attribute(
        "aria-label", re.compile("steps 0 to 49")
    )

    sink.close()

    expect(page.get_by_test_id("state")).to_have_text("finished")


def test_a_graph_that_arrives_later_is_shown(open_page: OpenPage, serving: Serve) -> None:
    store = run_of(transformer(), ends=False)
    page = open_page(serving(store).url + "#view=graph")
    expect(page.get_by_test_id("box")).to_have_count(3)

    store.put_document(graph())

    expect(page.get_by_test_id("box")).to_have_count(5)


def test_the_view_stays_at_an_earlier_step_when_new_steps_arrive(
    open_page: OpenPage, serving: Serve
) -> None:
    store = run_of(transformer(), ends=False)
    put_training(store, range(10))
    page = open_page(serving(store).url)
    expect(page.get_by_test_id("step")).to_have_text("step 9")
    page.get_by_label("Step", exact=True).fill("4")

    put_training(store, range(10, 20))

    expect(page.get_by_test_id("step")).to_have_text("step 4 of 19")
    page.get_by_role("button", name="Follow").click()
    expect(page.get_by_test_id("step")).to_have_text("step 19")


def test_a_disconnected_page_says_how_to_open_the_file_again(
    tmp_path: Path, open_page: OpenPage, serving: Serve
) -> None:
    sink = file_of(tmp_path / "run.glass", transformer())
    put_steps(sink, range(3))
    server = serving(tmp_path / "run.glass")
    page = open_page(server.url + "#view=graph", loses_its_server=True)
    expect(page.get_by_test_id("step")).to_have_text("step 2")
    # What is asked for while the server ends cannot be read: everything is there before.
    expect(page.get_by_test_id("box")).to_have_count(3)

    server.close()

    expect(page.get_by_role("alert")).to_contain_text("Reopen: torchglass view run.glass")
    sink.close()


def test_nan_gradients_are_marked_and_layers_are_in_execution_order(
    tmp_path: Path, open_page: OpenPage
) -> None:
    class Swapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.second = nn.Linear(2, 2)
            self.first = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.second(self.first(x))
            return out

    model = Swapped()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tg.watch(model, save=tmp_path / "run.glass", verbose=False):
        for scale in (1.0, float("nan")):
            optimizer.zero_grad()
            (model(torch.ones(4, 2)).sum() * scale).backward()
            optimizer.step()
    server = tg.view(tmp_path / "run.glass", port=0)
    page = open_page(server.url)

    page.get_by_role("button", name="Gradients").click()

    rows = page.get_by_role("region", name="Gradients").get_by_role("row")
    expect(rows.filter(has_text="first")).to_contain_text("NaN")
    names = [text for text in rows.all_inner_texts() if "first" in text or "second" in text]
    assert [name.split()[0] for name in names] == ["first", "second"]
    page.close()
    server.close()


def test_a_disconnected_page_says_so_and_keeps_its_data(
    open_page: OpenPage, serving: Serve
) -> None:
    store = run_of(transformer(), ends=False)
    server = serving(store)
    page = open_page(server.url + "#view=graph", loses_its_server=True)
    page.get_by_role("treeitem").first.wait_for()
    expect(page.get_by_test_id("box")).to_have_count(3)

    server.close()

    expect(page.get_by_test_id("state")).to_have_text(
        "Disconnected · showing the last data received"
    )
    page.get_by_role("treeitem", name="head").click()
    expect(page.get_by_test_id("details")).to_contain_text("Linear")
    expect(page.get_by_role("alert")).to_contain_text("has ended or cannot be reached")
    expect(page.locator("body")).not_to_contain_text("TypeError")

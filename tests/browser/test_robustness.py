"""Runs that are too large, deleted, killed or seen twice."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests import make
from tests.browser.conftest import OpenPage, Serve
from tests.browser.runs import file_of, graph, long_training, put_training, run_of, transformer

TRAIN = """
import sys
from pathlib import Path
from tests.browser.runs import file_of, graph, put_training, transformer

sink = file_of(Path(sys.argv[1]), transformer(), graph())
for step in range(10_000):
    put_training(sink, range(step, step + 1))
    print(step, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A training in a process of its own, which makes a step for each line that it reads."""
    process = subprocess.Popen(
        [sys.executable, "-c", TRAIN, str(tmp_path / "run.glass")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    yield process
    process.kill()
    process.communicate()


def go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    process.stdout.readline()


@pytest.mark.slow
def test_a_killed_training_run_is_still_shown(
    trainer: subprocess.Popen[str], tmp_path: Path, open_page: OpenPage, serving: Serve
) -> None:
    assert trainer.stdout is not None
    trainer.stdout.readline()
    page = open_page(serving(tmp_path / "run.glass").url + "#view=graph")
    expect(page.get_by_test_id("box")).to_have_count(5)
    go_on(trainer)
    go_on(trainer)
    expect(page.get_by_test_id("state")).to_have_text("live")

    page.clock.install()
    trainer.kill()
    trainer.wait()
    page.reload()
    page.clock.fast_forward(30_000)

    expect(page.get_by_test_id("state")).to_contain_text("killed")
    expect(page.get_by_test_id("box")).to_have_count(5)


def test_a_deleted_run_file_still_shows_the_data_already_read(
    tmp_path: Path, open_page: OpenPage, serving: Serve
) -> None:
    sink = file_of(tmp_path / "run.glass", transformer(), graph())
    put_training(sink, range(5))
    sink.close()
    page = open_page(serving(tmp_path / "run.glass").url + "#view=graph")
    expect(page.get_by_test_id("box")).to_have_count(5)

    for file in tmp_path.iterdir():
        file.unlink()

    page.locator('[data-key="embed:1"]').drag_to(page.get_by_test_id("drop"))
    expect(page.get_by_test_id("panel")).to_have_count(1)
    page.get_by_role("treeitem", name="head").click()
    expect(page.get_by_test_id("details")).to_contain_text("Linear")


def test_two_tabs_follow_one_run(open_page: OpenPage, serving: Serve) -> None:
    store = run_of(transformer(), ends=False)
    put_training(store, range(2))
    server = serving(store)
    tabs = [open_page(server.url), open_page(server.url)]

    put_training(store, range(2, 6))

    for tab in tabs:
        expect(tab.get_by_test_id("step")).to_have_text("step 5")


def test_ten_thousand_ops_are_shown_in_parts(open_page: OpenPage, serving: Serve) -> None:
    ops = [make.op(0, "arange", call=0)]
    ops += [make.op(at, f"op{at % 7}", at - 1, call=0) for at in range(1, 10_000)]

    page = open_page(serving(run_of(make.model(), make.trace(ops, [make.call(0)]))).url)

    stack = page.locator("[data-testid=box].stack")
    expect(stack).to_contain_text("op1, op2")
    stack.click()
    expect(page.locator("[data-testid=box].group").first).to_be_visible()
    expect(page.get_by_test_id("graph")).to_have_attribute("data-boxes", "105")
    page.locator("summary", has_text="Show").click()
    page.get_by_label("Group repeats").uncheck()
    expect(page.get_by_test_id("graph")).to_have_attribute("data-boxes", "100")
    page.locator("[data-testid=box].group").first.click()
    expect(page.get_by_test_id("graph")).to_have_attribute("data-boxes", "200")
    assert page.locator(".box").count() < 200


@pytest.mark.slow
def test_a_hundred_thousand_steps_fit_in_one_plot(open_page: OpenPage, serving: Serve) -> None:
    page = open_page(serving(long_training(100_000)).url + "#columns=a%3A1")

    plot = page.get_by_test_id("chart").get_by_role("img")

    expect(plot).to_have_attribute("aria-label", re.compile("steps 0 to 99999"))
    page.get_by_role("button", name="Scalars").click()
    expect(page.get_by_test_id("chart").get_by_text("loss")).to_be_visible()

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests import make
from tests.browser.conftest import OpenPage, Serve
from tests.browser.runs import file_of, put_steps, run_of, statistics, transformer, with_source

CODE = Path(__file__).with_name("shop.py")


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    sink = file_of(tmp_path / "run.glass", transformer())
    put_steps(sink, range(100))
    sink.close()
    return tmp_path / "run.glass"


@pytest.fixture
def page(run_file: Path, open_page: OpenPage, serving: Serve) -> Page:
    page = open_page(serving(run_file).url + "#view=graph")
    page.get_by_test_id("box").first.wait_for()
    return page


def names(page: Page) -> list[str]:
    page.get_by_role("treeitem").first.wait_for()
    return page.locator("[role=treeitem] .name > .text").all_text_contents()


def keys(page: Page, *pressed: str) -> None:
    page.get_by_role("tree").focus()
    for key in pressed:
        page.keyboard.press(key)


def test_the_module_tree_of_a_run_file_is_shown(page: Page) -> None:
    expect(page.get_by_role("heading", name="tiny-gpt")).to_be_visible()
    expect(page.get_by_test_id("state")).to_have_text("finished")
    expect(page.get_by_test_id("step")).to_have_text("step 99")
    assert names(page) == ["Gpt", "embed", "blocks", "head"]
    expect(page.get_by_role("treeitem", name="embed")).to_contain_text("Embedding")
    expect(page.get_by_role("treeitem", name="embed")).to_contain_text("800")


def test_the_token_is_removed_from_the_url(page: Page) -> None:
    assert "token" not in page.url


def test_arrow_keys_open_and_close_modules(page: Page) -> None:
    keys(page, "ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "Enter")

    assert names(page)[2:6] == ["blocks", "0", "attention", "mlp"]
    opened = page.get_by_role("treeitem", selected=True)
    expect(opened).to_have_attribute("aria-expanded", "true")
    expect(opened).to_have_attribute("aria-level", "3")

    keys(page, "ArrowLeft", "ArrowLeft", "ArrowLeft")

    assert names(page) == ["Gpt", "embed", "blocks", "head"]


def test_home_and_end_jump_to_the_first_and_last_row(page: Page) -> None:
    keys(page, "End")

    expect(page.get_by_role("treeitem", selected=True)).to_contain_text("head")

    keys(page, "Home")

    expect(page.get_by_role("treeitem", selected=True)).to_contain_text("Gpt")


def test_the_mouse_opens_and_closes_modules(page: Page) -> None:
    twisty = page.get_by_role("treeitem", name="blocks").get_by_test_id("twisty")

    twisty.click()

    expect(page.get_by_role("treeitem")).to_have_count(8)

    twisty.click()

    expect(page.get_by_role("treeitem")).to_have_count(4)


def test_a_search_marks_matches_and_keeps_their_parents(page: Page) -> None:
    page.get_by_role("tree").focus()
    page.keyboard.press("/")
    page.keyboard.type("gelu")

    expect(page.get_by_role("search")).to_contain_text("4 matches")
    expect(page.locator("mark").first).to_have_text("GELU")
    assert names(page)[:5] == ["Gpt", "blocks", "0", "mlp", "1"]

    page.keyboard.press("Enter")

    expect(page.get_by_test_id("details")).to_contain_text("torch.nn.modules.activation.GELU")

    page.keyboard.press("Escape")

    expect(page.get_by_role("searchbox")).to_have_value("")
    expect(page.get_by_role("treeitem", selected=True)).to_be_in_viewport()


def test_selecting_a_module_shows_its_tensors(page: Page) -> None:
    page.get_by_role("treeitem", name="blocks").dblclick()
    page.get_by_role("treeitem", name="Block", exact=False).nth(1).click()
    keys(page, "ArrowRight", "ArrowDown")

    details = page.get_by_test_id("details")
    expect(details.get_by_role("heading")).to_have_text("Linear(8, 24)")
    expect(details.get_by_role("row", name="weight")).to_contain_text("24×8")
    expect(details.get_by_role("row", name="bias")).to_contain_text("96 B")


def test_a_tied_tensor_links_to_its_other_name_and_back(page: Page) -> None:
    page.get_by_role("treeitem", name="head").click()

    page.get_by_role("button", name="embed.weight").click()

    details = page.get_by_test_id("details")
    expect(details.get_by_role("heading")).to_contain_text("Embedding")

    page.go_back()

    expect(details.get_by_role("heading")).to_contain_text("Linear")
    expect(details).to_contain_text("extra_repr: ValueError: no")


def test_a_module_shows_a_table_of_its_calls_and_its_source_code(
    open_page: OpenPage, serving: Serve
) -> None:
    model = with_source(transformer(), "shop.Block", CODE, forward_line=4)
    store = run_of(model, statistics(), ends=False)
    page = open_page(serving(store).url + "#module=blocks.0")

    row = page.get_by_role("row", name="2 5.0 µs")
    expect(row).to_contain_text("2×3")
    expect(row).to_contain_text("-1 … 2.5")
    expect(row).to_contain_text("3 NaN")

    page.get_by_text("Source code").click()

    expect(page.locator(".line.here")).to_contain_text("def forward")
    expect(page.locator(".line.here")).to_have_attribute("data-number", "4")


def test_a_link_opens_the_same_view_again(page: Page, open_page: OpenPage, serving: Serve) -> None:
    page.get_by_role("searchbox").fill("mlp")
    page.keyboard.press("ArrowDown")
    page.wait_for_url("**/#module=blocks.0.mlp&search=mlp*")
    server = serving(run_of(transformer()))

    again = open_page(server.url + "#" + page.url.partition("#")[2])

    expect(again.get_by_role("searchbox")).to_have_value("mlp")
    expect(again.get_by_role("navigation", name="Path")).to_have_text("Gptblocks0mlp")


HOSTILE = {
    "html": "<img src=x onerror=alert(1)>",
    "script": "</script><script>alert(1)</script>",
    "emoji": "🔥💥",
    "right to left": "\u202eشبكة\u202c",
    "template": "${alert(1)} {{7*7}}",
    "long": "x" * 10_000,
}


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_name_is_only_text(name: str, open_page: OpenPage, serving: Serve) -> None:
    node = {"class": f"shop.{name}", "extra": name, "problem": name, "weight": (2,), name: (3,)}
    store = run_of(make.model({"children": {name: node}}, name=name))

    page = open_page(serving(store).url)
    keys(page, "End")

    assert names(page) == [name, name]
    expect(page.get_by_test_id("details").get_by_role("heading")).to_contain_text(name)
    expect(page.get_by_test_id("box").first).to_be_visible()
    assert page.locator("img, script:not([src])").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.slow
def test_only_visible_rows_of_twenty_thousand_modules_are_rendered(
    open_page: OpenPage, serving: Serve
) -> None:
    leaf = {"class": "torch.nn.modules.linear.Linear", "weight": (2, 2)}
    wide = make.model({"children": {str(at): leaf for at in range(20_000)}})
    page = open_page(serving(run_of(wide)).url)

    keys(page, "End")

    expect(page.get_by_role("treeitem", selected=True)).to_contain_text("19999")
    assert page.get_by_role("treeitem").count() < 100


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_follows_the_color_scheme(
    scheme: str, open_page: OpenPage, serving: Serve
) -> None:
    page = open_page(serving(run_of(transformer())).url, color_scheme=scheme)
    page.get_by_role("tree").wait_for()

    ground = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")

    channels = [int(channel) for channel in re.findall(r"\d+", ground)[:3]]
    assert all(channel > 200 if scheme == "light" else channel < 60 for channel in channels)


def test_the_page_fits_the_width_of_a_phone(
    run_file: Path, open_page: OpenPage, serving: Serve
) -> None:
    page = open_page(serving(run_file).url, viewport={"width": 390, "height": 844}, has_touch=True)

    page.get_by_role("button", name="modules").tap()
    page.get_by_role("treeitem", name="embed").tap()

    expect(page.get_by_test_id("details")).to_contain_text("Embedding")
    assert page.evaluate("document.documentElement.scrollWidth") == 390

"""The graph: what is seen, opened, walked through, searched for and colored."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Locator, Page, expect
from torch import nn

import torchglass as tg
from tests import make
from tests.browser.conftest import OpenPage, Serve
from tests.browser.runs import run_of, training, transformer


@pytest.fixture
def page(open_page: OpenPage, serving: Serve) -> Page:
    page = open_page(serving(training()).url + "#view=graph")
    page.get_by_test_id("box").first.wait_for()
    return page


def box(page: Page, key: str) -> Locator:
    return page.locator(f'[data-key="{key}"]')


def titles(page: Page) -> list[str]:
    return page.locator("[data-testid=box] .title").all_text_contents()


def stack(page: Page) -> Locator:
    return page.locator("[data-testid=box].stack")


def test_module_calls_are_boxes_and_repeats_are_grouped(page: Page) -> None:
    assert titles(page) == ["Input 0", "embed", "Block ×4", "head", "Output"]
    expect(page.locator(".link")).to_have_count(4)


def test_a_stack_opens_in_place_and_closes_again(page: Page) -> None:
    stack(page).click()

    expect(box(page, "blocks.3:1")).to_be_attached()
    expect(box(page, "head:1")).to_be_attached()

    stack(page).locator("[data-twist]").click()

    expect(box(page, "blocks.3:1")).to_have_count(0)


def test_a_click_enters_a_call_and_the_breadcrumbs_leave_it(page: Page) -> None:
    stack(page).click()
    box(page, "blocks.0:1").click()

    expect(box(page, "blocks.0.attention:1")).to_be_visible()
    expect(box(page, "head:1")).to_have_count(0)
    crumbs = page.get_by_role("navigation", name="Opened module")
    expect(crumbs).to_have_text("Gptblocks.0")

    crumbs.get_by_role("button", name="Gpt").click()

    expect(box(page, "head:1")).to_be_visible()


def test_a_nested_module_opens_in_place(page: Page) -> None:
    stack(page).click()
    box(page, "blocks.0:1").click()
    box(page, "blocks.0.mlp:1").locator("[data-twist]").click()

    expect(box(page, "blocks.0.mlp.1:1")).to_be_visible()
    expect(box(page, "blocks.0.mlp:1")).to_have_attribute("aria-expanded", "true")
    expect(box(page, "blocks.0.attention:1")).to_be_visible()


def test_all_levels_open_and_close_at_once(page: Page) -> None:
    page.get_by_role("button", name="all", exact=True).click()

    expect(page.get_by_test_id("graph")).to_have_attribute("data-boxes", "33")

    page.get_by_role("button", name="none").click()

    expect(page.get_by_test_id("graph")).to_have_attribute("data-boxes", "5")

    page.get_by_role("button", name="+1").click()

    expect(page.get_by_test_id("graph")).to_have_attribute("data-boxes", "9")


def test_modules_expand_to_the_selected_depth(page: Page) -> None:
    page.get_by_label("Open to depth").select_option("1")

    expect(page.get_by_test_id("graph")).to_have_attribute("data-boxes", "9")

    page.get_by_label("Open to depth").select_option("0")

    expect(page.get_by_test_id("graph")).to_have_attribute("data-boxes", "5")


def test_repeats_can_be_ungrouped(page: Page) -> None:
    page.get_by_text("Show", exact=True).click()
    page.get_by_label("Group repeats").uncheck()

    expect(page.get_by_test_id("graph")).to_have_attribute("data-boxes", "8")


def test_arrow_keys_move_enter_opens_and_escape_leaves(page: Page) -> None:
    page.get_by_test_id("graph").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
    expect(stack(page)).to_be_focused()

    page.keyboard.press("Enter")
    expect(box(page, "blocks.0:1")).to_be_attached()
    page.keyboard.press("ArrowDown")
    expect(box(page, "blocks.0:1")).to_be_focused()
    page.keyboard.press("Enter")
    expect(box(page, "blocks.0.attention:1")).to_be_visible()
    page.keyboard.press("Escape")

    expect(box(page, "embed:1")).to_be_attached()
    expect(box(page, "blocks.0:1")).to_be_focused()


def test_a_search_highlights_boxes_and_jumps_to_one(page: Page) -> None:
    page.keyboard.press("/")
    page.keyboard.type("embed")

    expect(box(page, "embed:1")).to_have_class(re.compile("match"))
    expect(box(page, "head:1")).to_have_class(re.compile("other"))

    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type("blocks.2.attention")
    page.keyboard.press("Enter")

    expect(box(page, "blocks.2.attention:1")).to_have_class(re.compile("selected"))


def test_selecting_a_box_selects_its_module_in_the_tree(page: Page) -> None:
    box(page, "head:1").click()

    expect(page.get_by_role("treeitem", selected=True)).to_contain_text("head")
    expect(page.get_by_test_id("details").get_by_role("heading")).to_have_text("Linear")


def test_selecting_a_module_in_the_tree_shows_its_box(page: Page) -> None:
    page.get_by_role("treeitem", name="blocks").dblclick()
    page.get_by_role("treeitem", name="2 Block").dblclick()
    page.get_by_role("treeitem", name="attention").click()

    expect(box(page, "blocks.2.attention:1")).to_have_class(re.compile("selected"))
    expect(box(page, "blocks.2.attention:1")).to_be_in_viewport()


def test_a_box_shows_shapes_and_the_extra_repr_of_its_module(page: Page) -> None:
    stack(page).click()
    box(page, "blocks.0:1").click()
    box(page, "blocks.0.attention:1").hover()

    rows = page.get_by_test_id("tooltip").locator("tr")
    expect(rows.filter(has_text="in")).to_contain_text("2×16×8 float32")
    expect(rows.filter(has_text="–").first).to_have_text("–8")


def test_an_edge_shows_the_tensor_it_carries(page: Page) -> None:
    page.locator(".grip").first.hover(force=True)

    expect(page.get_by_test_id("tooltip")).to_contain_text("Input 0 → embed")
    expect(page.get_by_test_id("tooltip")).to_contain_text("1.0 KB")


def test_opening_a_layer_shows_its_ops(page: Page) -> None:
    page.goto(page.url.partition("#")[0] + "#in=blocks.1.mlp%3A1")
    page.reload()
    box(page, "blocks.1.mlp.0:1").click()

    expect(page.locator("[data-testid=box].op .title")).to_have_text("linear")


@pytest.mark.parametrize(
    ("coloring", "says"),
    [("time", "10.00 ms"), ("flops", "8.0M"), ("memory", "16.0 KB"), ("parameters", "1.9K")],
)
def test_boxes_can_be_colored_by_cost(coloring: str, says: str, page: Page) -> None:
    page.get_by_label("Color by").select_option(coloring)

    expect(stack(page)).to_have_attribute("aria-label", re.compile(re.escape(says)))


def test_boxes_are_colored_by_gradient_norm_and_findings(page: Page) -> None:
    page.get_by_label("Color by").select_option("gradients")
    expect(box(page, "embed:1")).to_have_attribute("aria-label", re.compile(r"Embedding, \d"))

    page.get_by_label("Color by").select_option("findings")
    expect(box(page, "embed:1")).to_have_attribute("aria-label", re.compile("hardly any gradient"))
    expect(stack(page)).to_have_attribute("aria-label", re.compile("3 NaN"))


def test_a_link_restores_the_coloring_of_boxes(open_page: OpenPage, serving: Serve) -> None:
    page = open_page(serving(training()).url + "#color=gradients&step=7&view=graph")

    expect(box(page, "embed:1")).to_have_attribute("aria-label", re.compile(r"Embedding, \d"))
    expect(page.get_by_label("Color by")).to_have_count(1)


def test_the_wheel_zooms_and_fit_shows_all(page: Page) -> None:
    graph = page.get_by_test_id("graph")
    page.get_by_role("button", name="all", exact=True).click()
    expect(graph).to_have_attribute("data-boxes", "33")
    graph.hover()
    page.mouse.wheel(0, -600)
    expect(page.get_by_test_id("minimap")).to_be_visible()

    page.get_by_role("button", name="Zoom to fit").click()

    expect(page.get_by_test_id("minimap")).to_have_count(0)


@pytest.fixture
def afar(page: Page) -> Page:
    """All boxes so small that they are drawn together."""
    page.get_by_role("button", name="all", exact=True).click()
    expect(page.get_by_test_id("graph")).to_have_attribute("data-boxes", "33")
    for _ in range(8):
        page.get_by_role("button", name="Zoom out").click()
    expect(page.locator(".far.closed").first).to_be_attached()
    return page


def place_afar(page: Page, key: str) -> tuple[float, float]:
    """Where a box is that has no element of its own: the search draws one around it."""
    page.get_by_label("Search modules").fill(key)
    around = page.locator(".far.match").bounding_box()
    assert around
    page.get_by_label("Search modules").fill("")
    return around["x"] + around["width"] / 2, around["y"] + around["height"] / 2


def test_zoomed_out_boxes_have_tooltips_and_can_be_dragged(afar: Page) -> None:
    x, y = place_afar(afar, "embed")

    afar.mouse.move(x, y)
    expect(afar.get_by_test_id("tooltip")).to_contain_text("embed Embedding")
    afar.mouse.down()
    drop = afar.get_by_test_id("drop").bounding_box()
    assert drop
    afar.mouse.move(drop["x"] + 30, drop["y"] + 30, steps=4)
    afar.mouse.up()

    expect(afar.get_by_test_id("panel")).to_have_attribute("aria-label", "embed")


def test_zoomed_out_boxes_can_be_entered_and_navigated(afar: Page) -> None:
    afar.get_by_test_id("graph").focus()
    afar.keyboard.press("ArrowDown")
    afar.keyboard.press("ArrowDown")
    expect(afar.get_by_role("button", name="embed", exact=True)).to_be_focused()

    afar.mouse.click(*place_afar(afar, "blocks.0.attention"))
    expect(afar.get_by_role("treeitem", selected=True)).to_contain_text("attention")
    afar.mouse.click(*place_afar(afar, "blocks.0.mlp.0"))

    expect(afar.locator("[data-testid=box].op .title")).to_have_text("linear")


def test_a_model_that_never_ran_shows_its_module_hierarchy(
    open_page: OpenPage, serving: Serve
) -> None:
    page = open_page(serving(run_of(transformer())).url)

    expect(page.get_by_test_id("box")).to_have_count(3)
    box(page, "blocks:1").click()
    expect(stack(page)).to_contain_text("Block ×4")


def until_all_is_seen(page: Page) -> None:
    page.wait_for_function(
        """() => {
            const around = document.querySelector("[data-testid=graph]").getBoundingClientRect();
            const boxes = [...document.querySelectorAll("[data-testid=box]")];
            const inside = ({left, right}) => left >= around.left - 1 && right <= around.right + 1;
            return boxes.length > 0 && boxes.every((box) => inside(box.getBoundingClientRect()));
        }"""
    )


def test_the_graph_is_fitted_again_when_a_column_narrows_it(
    open_page: OpenPage, serving: Serve
) -> None:
    page = open_page(serving(training()).url + "#view=graph")
    page.locator('[data-key="embed:1"]').click()

    page.keyboard.press("p")
    page.get_by_test_id("panel").wait_for()

    until_all_is_seen(page)


def test_expanding_all_and_switching_runs_fit_the_graph(
    open_page: OpenPage, serving: Serve
) -> None:
    page = open_page(serving(training(), training(3, blocks=9)).url + "#view=graph")
    page.get_by_test_id("box").first.wait_for()
    page.mouse.move(600, 400)
    page.mouse.wheel(0, -1500)

    page.get_by_role("button", name="all", exact=True).click()
    page.locator("[data-testid=box].open").first.wait_for()
    until_all_is_seen(page)
    page.mouse.wheel(0, -1500)
    page.get_by_label("Run", exact=True).select_option("1")

    expect(page.locator("[data-testid=box].stack").first).to_contain_text("Block ×9")
    until_all_is_seen(page)


def test_expanding_all_of_a_wide_graph_shows_its_whole_width(
    open_page: OpenPage, serving: Serve
) -> None:
    layer = {"class": "shop.Layer", "children": {f"part{at}": {} for at in range(15)}}
    wide = make.model({"class": "shop.Net", "children": {f"layer{at}": layer for at in range(24)}})
    page = open_page(serving(run_of(wide)).url + "#fold=0", viewport={"width": 900, "height": 700})
    page.get_by_test_id("box").first.wait_for()

    page.get_by_role("button", name="all", exact=True).click()

    expect(page.get_by_test_id("graph")).to_have_attribute("data-boxes", str(24 * 16))
    until_all_is_seen(page)


def test_menus_close_on_escape_and_on_a_click_outside(open_page: OpenPage, serving: Serve) -> None:
    page = open_page(serving(training()).url + "#view=graph")
    menu = page.locator("details.menu", has_text="Group repeats")
    summary = menu.locator("summary")

    summary.click()
    expect(menu).to_have_attribute("open", "")
    page.keyboard.press("Escape")
    expect(menu).not_to_have_attribute("open", "")
    summary.click()
    page.get_by_test_id("details").click()
    expect(menu).not_to_have_attribute("open", "")


def test_the_back_button_undoes_changes_of_view_and_module(
    open_page: OpenPage, serving: Serve
) -> None:
    page = open_page(serving(training()).url + "#view=graph")
    page.get_by_test_id("box").first.wait_for()
    page.get_by_role("button", name="Scalars").click()
    page.wait_for_url(re.compile("view=scalars"))

    page.go_back()

    expect(page.get_by_test_id("graph")).to_be_visible()
    page.go_forward()
    expect(page.get_by_role("region", name="Scalars")).to_be_visible()


def test_question_mark_shows_the_keyboard_shortcuts(open_page: OpenPage, serving: Serve) -> None:
    page = open_page(serving(training()).url + "#view=graph")
    page.get_by_test_id("box").first.wait_for()

    page.keyboard.press("?")

    expect(page.get_by_role("dialog", name="Keys")).to_contain_text("expand or collapse")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Keys")).to_have_count(0)


def test_enter_on_an_expanded_box_enters_it_and_keeps_it_expanded(
    open_page: OpenPage, serving: Serve
) -> None:
    page = open_page(serving(training()).url + "#view=graph")
    stack = page.locator("[data-testid=box].stack")
    stack.click()
    expect(page.locator("[data-testid=box].stack.open")).to_have_count(1)

    page.keyboard.press("Enter")

    expect(page.locator("[data-testid=box].stack.open")).to_have_count(1)
    expect(page.locator("[data-testid=box].selected")).not_to_have_class(re.compile("stack"))


def test_a_search_does_not_dim_the_stack_that_contains_the_match(
    open_page: OpenPage, serving: Serve
) -> None:
    page = open_page(serving(training()).url + "#view=graph")

    page.get_by_label("Search modules").fill("attention")

    expect(page.locator('[data-key="embed:1"]')).to_have_class(re.compile("other"))
    expect(page.locator("[data-testid=box].stack")).not_to_have_class(re.compile("other"))


def test_two_views_of_one_batch_are_drawn_as_two_named_inputs(
    open_page: OpenPage, tmp_path: Path
) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(9, 4)
            self.loss = nn.CrossEntropyLoss()

        def forward(self, idx: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.embed(idx)
            loss: torch.Tensor = self.loss(logits.flatten(0, 1), targets.flatten() % 4)
            return loss

    batch = torch.randint(0, 9, (2, 6))
    path = tg.view(Model(), batch[:, :-1], batch[:, 1:], save=tmp_path / "model.html")
    page = open_page(f"{path.as_uri()}#ops=0", offline=True)

    boxes = page.get_by_test_id("box")
    expect(boxes.filter(has_text="Input idx")).to_have_count(1)
    expect(boxes.filter(has_text="Input targets")).to_have_count(1)
    expect(page.locator("[data-link]")).to_have_count(4)

"""Someone compares two models on the page: the conclusion, both trees, and every change in turn."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Locator, Page, expect
from torch import nn

import torchglass as tg
from tests.browser.conftest import OpenPage, Serve
from tests.browser.test_accessibility import serious_problems


class Net(nn.Module):
    def __init__(self, slope: float = 0.0) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
        self.head = nn.Linear(8, 2)
        self.slope = slope

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = nn.functional.leaky_relu(block(x), self.slope)
        found: torch.Tensor = self.head(x)
        return found


def pair() -> tuple[Net, Net]:
    torch.manual_seed(0)
    before = Net()
    after = copy.deepcopy(before)
    with torch.no_grad():
        after.get_parameter("blocks.1.weight").mul_(1.5)
        after.get_parameter("blocks.3.bias").add_(1e-7)
        after.get_parameter("head.weight")[0, 0] = torch.nan
    return before, after


def row(page: Page, name: str) -> Locator:
    return page.get_by_role("treeitem").filter(has_text=re.compile(rf"^{name}\b"))


def color(row: Locator) -> str:
    found: str = row.locator(".middle").evaluate("one => getComputedStyle(one).backgroundColor")
    return found


@pytest.fixture
def page(open_page: OpenPage, tmp_path: Path) -> Page:
    """The saved page of a comparison, without a server."""
    before, after = pair()
    file = tmp_path / "comparison.html"
    tg.compare(before, after).to_html(file)
    return open_page(file.as_uri(), offline=True)


def test_the_conclusion_comes_first_and_changes_are_visited_in_turn(page: Page) -> None:
    expect(page.get_by_label("Conclusion")).to_contain_text("3 of 10 tensors differ.")
    expect(page.get_by_role("treeitem")).to_have_count(7)
    position, details = page.get_by_test_id("position"), page.get_by_test_id("row-details")
    expect(position).to_have_text("1 of 3 changed modules")
    expect(details).to_contain_text("blocks.1")

    page.keyboard.press("n")
    expect(details).to_contain_text("blocks.3")
    page.get_by_role("button", name="Next change").click()
    expect(details).to_contain_text("head")
    expect(details).to_contain_text("0 → 1")
    page.keyboard.press("n")
    expect(position).to_have_text("1 of 3 changed modules")
    page.keyboard.press("p")
    expect(position).to_have_text("3 of 3 changed modules")


def test_changed_only_filters_rows_and_a_collapsed_parent_counts_changes(page: Page) -> None:
    page.get_by_label("Changed only").check()
    names = page.get_by_role("treeitem").locator(".half:first-child b")
    expect(names).to_have_text(["Net", "blocks", "1", "3", "head"])

    page.get_by_role("treeitem").nth(1).locator(".twisty.open").click()
    expect(names).to_have_text(["Net", "blocks", "head"])
    expect(page.get_by_role("treeitem").nth(1)).to_contain_text("2 below")
    page.get_by_test_id("row-details").get_by_text("head").wait_for(state="hidden")
    page.keyboard.press("n")
    page.keyboard.press("n")
    page.keyboard.press("n")
    # The next change inside a closed parent opens it.
    expect(names).to_have_text(["Net", "blocks", "1", "3", "head"])


def test_larger_value_changes_have_stronger_colors(page: Page) -> None:
    same, large, tiny = (color(row(page, name)) for name in ("0", "1", "3"))

    assert len({same, large, tiny}) == 3
    parent = row(page, "blocks")
    parent.locator(".twisty.open").click()
    assert color(parent) == large


def test_a_changed_tensor_shows_its_old_and_new_values(page: Page) -> None:
    tensor = page.get_by_test_id("tensor")

    expect(tensor).to_have_count(1)
    expect(tensor).to_contain_text("weight 8×8 float32")
    expect(tensor).to_contain_text("distance0.5")
    histogram = tensor.get_by_role("img", name="Values of weight before and after")
    paths = histogram.locator("path")
    expect(paths).to_have_count(2)
    assert paths.nth(0).get_attribute("d") != paths.nth(1).get_attribute("d")


def test_the_first_divergence_shows_both_source_lines_and_links_to_its_module(
    open_page: OpenPage, tmp_path: Path
) -> None:
    before = Net()
    after = Net(slope=0.3)
    after.load_state_dict(before.state_dict())
    file = tmp_path / "divergence.html"
    tg.compare(before, after, torch.randn(2, 8)).save(file)

    page = open_page(file.as_uri(), offline=True)

    expect(page.get_by_label("Conclusion").locator("b")).to_contain_text("First divergence: leaky")
    found = page.get_by_test_id("divergence")
    expect(found.locator("pre")).to_have_count(2)
    expect(found.locator("pre").first).to_have_text(
        "x = nn.functional.leaky_relu(block(x), self.slope)"
    )
    expect(found).to_contain_text("Same until there: 1 op")
    page.get_by_role("treeitem").last.click()
    page.get_by_role("button", name="Show module").click()
    expect(page.locator('[aria-selected="true"]')).to_contain_text("≠")


def test_added_removed_and_renamed_modules_are_next_to_their_counterparts(
    open_page: OpenPage, tmp_path: Path
) -> None:
    before = nn.ModuleDict({"stem": nn.Linear(4, 8), "old": nn.Linear(3, 3)})
    after = nn.ModuleDict({"root": before["stem"], "new": nn.Conv2d(3, 3, 1)})
    file = tmp_path / "renamed.html"
    tg.compare(before, after).to_html(file)

    page = open_page(file.as_uri(), offline=True)

    texts = [
        [half.strip() for half in line.locator(".half").all_text_contents()]
        for line in page.get_by_role("treeitem").all()
    ]
    assert texts == [
        ["ModuleDict ModuleDict", "ModuleDict ModuleDict"],
        ["stem Linear", "root Linear"],
        ["old Linear", ""],
        ["", "new Conv2d"],
    ]
    row(page, "stem").click()
    details = page.get_by_test_id("row-details")
    expect(details).to_contain_text("Renamed or moved: stem → root")


def test_two_models_open_on_their_comparison_which_links_to_the_graph(
    open_page: OpenPage, serving: Serve
) -> None:
    before, after = pair()
    page = open_page(serving(after, against=before).url)

    expect(page.get_by_role("button", name="Comparison")).to_have_attribute("aria-current", "page")
    expect(page.get_by_label("Conclusion")).to_contain_text("3 of 10 tensors differ.")
    page.get_by_role("button", name="Show in graph").click()

    expect(page.get_by_role("button", name="Graph", exact=True)).to_have_attribute(
        "aria-current", "page"
    )
    page.wait_for_url(re.compile("module=blocks.1"))
    page.go_back()
    expect(page.get_by_label("Conclusion")).to_be_visible()


def test_a_comparison_is_saved_with_both_graphs(open_page: OpenPage, tmp_path: Path) -> None:
    found = tg.compare(*pair())
    path = tg.view(found, save=tmp_path / "both.html")

    page = open_page(path.as_uri(), offline=True)

    expect(page.get_by_label("Conclusion")).to_contain_text("3 of 10 tensors differ.")
    page.get_by_role("button", name="Graph", exact=True).click()
    expect(page.get_by_test_id("legend")).to_contain_text("identical")
    expect(page.get_by_test_id("box").nth(1)).to_be_visible()


def test_settings_and_curves_of_two_runs_are_listed(open_page: OpenPage, tmp_path: Path) -> None:
    for name, lr in (("a", 0.1), ("b", 0.2)):
        model = nn.Linear(2, 1)
        with tg.watch(model, save=tmp_path / f"{name}.glass", verbose=False) as watcher:
            for step in range(12):
                watcher.log("loss", 1 / (1 + lr * step))
                watcher.step()
    file = tmp_path / "runs.html"
    tg.compare(tmp_path / "a.glass", tmp_path / "b.glass").to_html(file)

    page = open_page(file.as_uri(), offline=True)

    expect(page.get_by_role("row").filter(has_text="loss")).to_contain_text("step 1")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_a_comparison(
    scheme: str, open_page: OpenPage, tmp_path: Path
) -> None:
    before, after = pair()
    after.blocks.append(nn.Linear(8, 8))
    file = tmp_path / "comparison.html"
    tg.compare(before, after).to_html(file)

    page = open_page(file.as_uri(), color_scheme=scheme, offline=True)
    page.get_by_role("treeitem").first.wait_for()

    assert serious_problems(page) == []

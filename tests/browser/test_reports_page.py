"""What quantization, pruning, estimate and batch_size found, beside the modules of the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Locator, Page, expect
from torch import nn

import torchglass as tg
from tests.browser.conftest import OpenPage, Serve
from tests.browser.test_accessibility import serious_problems


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
    net = nn.Sequential(body, nn.Flatten(), nn.Linear(8 * 36, 4)).eval()
    with torch.no_grad():
        # One channel far above the others: a scale per tensor leaves no digits for them.
        net.get_parameter("0.0.weight")[0] *= 200
    return net


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.rand(4, 3, 6, 6)


@pytest.fixture(scope="module")
def quantization(model: nn.Module, images: torch.Tensor) -> Any:
    return tg.quantization(model, images, dtypes=["int8", "int4"])


def row(page: Page, path: str) -> Locator:
    return page.get_by_role("treeitem").filter(has=page.locator(f'bdi[title="{path}"]'))


def strength(cell: Locator) -> float:
    return float(cell.evaluate("one => one.style.getPropertyValue('--strength')"))


def test_a_saved_quantization_opens_on_its_answer_with_a_column_for_each_format(
    quantization: Any, open_page: OpenPage, tmp_path: Path
) -> None:
    path = tg.view(quantization, save=tmp_path / "quantization.html")
    page = open_page(path.as_uri(), offline=True)

    expect(page.get_by_label("Conclusion")).to_contain_text(quantization.answer)
    expect(page.get_by_role("button", name="SQNR int8")).to_be_visible()
    cells = row(page, "2").locator(".heated")
    best = max(one.sqnr_db for one in quantization["2.weight"] if one.format == "int4")
    expect(cells.nth(1)).to_have_text(f"{best:.0f} dB")
    assert strength(cells.nth(1)) > strength(cells.nth(0)) > 0
    expect(row(page, "1").locator(".heated").nth(0)).to_have_text("")


def test_the_most_sensitive_module_comes_first_and_its_rows_stand_beside_it(
    quantization: Any, open_page: OpenPage, serving: Serve
) -> None:
    page = open_page(serving(quantization).url)

    page.get_by_role("button", name="SQNR int4").click()
    worst = min(
        ("0.0", "0.2", "2"),
        key=lambda path: max(
            one.sqnr_db for one in quantization[f"{path}.weight"] if one.format == "int4"
        ),
    )
    expect(page.get_by_role("treeitem")).to_have_count(3)
    first = page.get_by_role("treeitem").first
    expect(first).to_contain_text(worst)
    first.click()
    rows = page.get_by_test_id("row-details").get_by_role("row")
    # Two formats, each with a scale per tensor and per channel.
    expect(rows).to_have_count(1 + 4)
    expect(rows.nth(1)).to_contain_text(f"{worst}.weight")
    page.get_by_role("button", name="Show in graph").click()

    expect(page.get_by_role("button", name="Graph", exact=True)).to_have_attribute(
        "aria-current", "page"
    )


def test_several_reports_are_laid_over_one_model(
    model: nn.Module, images: torch.Tensor, open_page: OpenPage, tmp_path: Path
) -> None:
    pruning = tg.pruning(model, images, timed=False)
    estimate = tg.estimate(model, images)
    batch = tg.batch_size(model, images, memory="1GB", check=False)
    found = [pruning, estimate, batch]
    path = tg.view(model, images, reports=found, save=tmp_path / "reports.html")
    page = open_page(path.as_uri(), offline=True)

    for report, column in ((pruning, "saves"), (estimate, "Moved"), (batch, "")):
        name = " ".join(type(report).__name__.replace("BatchSize", "Batch size").split())
        page.locator("nav[aria-label=Reports]").get_by_role("button", name=name, exact=True).click()
        expect(page.get_by_label("Conclusion")).to_contain_text(report.answer)
        if column:
            expect(row(page, "0.0").locator(".heated").first).not_to_have_text("")
        else:
            expect(page.get_by_role("treeitem")).to_have_count(0)
            expect(page.get_by_role("columnheader", name="Fits")).to_be_visible()
    page.locator("nav[aria-label=Reports]").get_by_role("button", name="Pruning").click()
    page.get_by_test_id("row-details").get_by_role("button", name="0.0").first.click()
    expect(row(page, "0.0")).to_have_attribute("aria-selected", "true")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_a_report(
    scheme: str, quantization: Any, open_page: OpenPage, serving: Serve
) -> None:
    page = open_page(serving(quantization).url, color_scheme=scheme)
    page.get_by_role("treeitem").first.wait_for()

    assert serious_problems(page) == []

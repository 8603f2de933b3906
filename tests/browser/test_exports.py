"""What a person takes along: pictures, tables and the whole page."""

from __future__ import annotations

import csv
import io
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests import make
from tests.browser.conftest import OpenPage, Serve
from tests.browser.runs import run_of, training

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def page(open_page: OpenPage, serving: Serve) -> Page:
    page = open_page(serving(training()).url + "#view=graph")
    page.get_by_test_id("box").first.wait_for()
    return page


def save(page: Page, what: str, folder: Path) -> Path:
    page.get_by_text("Export", exact=True).click()
    with page.expect_download() as downloading:
        page.get_by_text(what).click()
    path = folder / downloading.value.suggested_filename
    downloading.value.save_as(path)
    return path


def test_the_graph_is_exported_as_standalone_svg(page: Page, tmp_path: Path) -> None:
    path = save(page, "Graph as SVG", tmp_path)

    assert path.name == "tiny-gpt.svg"
    drawing = ET.parse(path).getroot()
    words = [text.text for text in drawing.iter(f"{SVG}text")]
    assert "Block ×4" in words
    assert "var(" not in path.read_text("utf-8")
    assert "oklch" not in path.read_text("utf-8")


def test_the_graph_is_exported_as_png(page: Page, tmp_path: Path) -> None:
    path = save(page, "Graph as PNG", tmp_path)

    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert int.from_bytes(data[16:20], "big") > 200


def test_pinned_series_are_exported_as_csv(page: Page, tmp_path: Path) -> None:
    page.locator('[data-key="embed:1"]').drag_to(page.get_by_test_id("drop"))

    path = save(page, "Pinned series as CSV", tmp_path)

    rows = list(csv.DictReader(io.StringIO(path.read_text("utf-8"))))
    assert {row["path"] for row in rows} == {"embed"}
    assert {row["name"] for row in rows} == {"output", "weight", "weight.grad"}
    assert len(rows) == 3 * 40
    assert float(rows[5]["mean"]) == 0.5


def test_the_whole_view_is_exported_as_a_page_that_opens_offline(
    page: Page, tmp_path: Path, open_page: OpenPage
) -> None:
    path = save(page, "Everything as one file", tmp_path)

    saved = open_page(path.as_uri() + "#view=graph", offline=True)

    expect(saved.get_by_test_id("box")).to_have_count(5)
    saved.locator('[data-key="embed:1"]').drag_to(saved.get_by_test_id("drop"))
    expect(saved.get_by_test_id("chart")).to_have_count(3)


def test_hostile_names_are_plain_text_in_an_exported_image(
    tmp_path: Path, open_page: OpenPage, serving: Serve
) -> None:
    name = '<script>alert("1")</script>\u0000&\ud800'
    page = open_page(serving(run_of(make.model({"children": {name: {}}}))).url)
    page.get_by_test_id("box").first.wait_for()

    path = save(page, "Graph as SVG", tmp_path)

    drawing = ET.parse(path).getroot()
    assert not list(drawing.iter(f"{SVG}script"))

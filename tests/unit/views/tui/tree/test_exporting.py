"""What the tree shows, as a file."""

from __future__ import annotations

import csv
import io
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.unit.views.tui.runs import changed, tiny
from torchglass.records.run import Run
from torchglass.views.tui.subject import Subject, measure
from torchglass.views.tui.tree.exporting import (
    Line,
    Table,
    new_file,
    to_csv,
    to_html,
    to_json,
    to_text,
)
from torchglass.views.tui.tree.labels import Labels


@pytest.fixture
def table() -> Table:
    from dataclasses import replace

    model = changed(tiny(), "broken", lambda module: replace(module, name="<b>&,\n"))
    subject = Subject(Run(name="run", created_ns=0), model)
    subject.holdings = measure(model)
    lines = [Line([module], subject.outline.depths[module.id]) for module in model.modules]
    return Table(subject, Labels().columns(subject), lines)


def test_text_has_titles_indentation_and_numbers(table: Table) -> None:
    lines = to_text(table).splitlines()

    assert lines[0].split() == ["name", "class", "params", "share", "memory", "notes"]
    assert lines[1].startswith("TinyGPT")
    assert lines[2].startswith("  embed")
    assert "\\n" in lines[-2]


def test_csv_has_a_row_for_each_with_plain_numbers(table: Table) -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(table))))

    assert len(rows) == len(table.lines)
    assert rows[1]["path"] == "embed"
    assert float(rows[1]["params"]) == 6400


def test_json_has_the_same(table: Table) -> None:
    data = json.loads(to_json(table))

    assert data["model"] == "TinyGPT"
    assert data["modules"][1]["path"] == "embed"
    assert data["modules"][1]["bytes"] == 25_600


def test_names_are_text_in_html(table: Table) -> None:
    seen: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            seen.append(tag)

    page = to_html(table)
    Reader().feed(page)

    assert "b" not in seen
    assert seen.count("tr") == len(table.lines) + 1
    assert "http" not in page


def test_no_file_is_written_over(tmp_path: Path) -> None:
    first = new_file(tmp_path, "Net/../[x]", ".csv")
    first.write_text("")

    assert first.parent == tmp_path
    assert new_file(tmp_path, "Net/../[x]", ".csv") == first.with_name(f"{first.stem}-2.csv")

"""What the tree shows, as a file."""

from __future__ import annotations

import csv
import io
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.unit.views.tui.runs import Training, changed, documents, tiny
from torchglass.records.model import Module
from torchglass.records.run import RunRecord
from torchglass.views.tui.explorer_state import ExplorerState, count_model
from torchglass.views.tui.tree import (
    TreeLine,
    TreeTable,
    new_file,
    to_csv,
    to_html,
    to_json,
    to_text,
)
from torchglass.views.tui.tree_columns import BY_ID, ColumnChoice


@pytest.fixture
def table() -> TreeTable:
    from dataclasses import replace

    model = changed(tiny(), "broken", lambda module: replace(module, name="<b>&,\n"))
    state = ExplorerState(RunRecord(name="run", created_ns=0), model)
    state.contents = count_model(model)
    lines = [TreeLine([module], state.outline.depths[module.id]) for module in model.modules]
    return TreeTable(state, ColumnChoice().columns(state), lines)


def test_text_export_has_headers_indentation_and_numbers(table: TreeTable) -> None:
    lines = to_text(table).splitlines()

    assert lines[0].split() == ["name", "class", "params", "share", "memory", "notes"]
    assert lines[1].startswith("TinyGPT")
    assert lines[2].startswith("  embed")
    assert "\\n" in lines[-2]


def test_csv_export_has_a_row_per_module_with_plain_numbers(table: TreeTable) -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(table))))

    assert len(rows) == len(table.lines)
    assert rows[1]["path"] == "embed"
    assert float(rows[1]["params"]) == 6400


def test_json_export_has_the_same_values_as_csv(table: TreeTable) -> None:
    data = json.loads(to_json(table))

    assert data["model"] == "TinyGPT"
    assert data["modules"][1]["path"] == "embed"
    assert data["modules"][1]["bytes"] == 25_600


def test_names_are_text_in_html(table: TreeTable) -> None:
    tags: list[str] = []
    words: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            tags.append(tag)

        def handle_data(self, data: str) -> None:
            words.append(data)

    page = to_html(table)
    Reader().feed(page)

    assert tags.count("b") == len(table.lines)
    assert "<b>&,\\n" in words
    assert "http" not in page


def test_existing_files_are_not_overwritten(tmp_path: Path) -> None:
    first = new_file(tmp_path, "Net/../[x]", ".csv")
    first.write_text("")

    assert first.parent == tmp_path
    assert new_file(tmp_path, "Net/../[x]", ".csv") == first.with_name(f"{first.stem}-2.csv")


def test_exported_shares_and_times_use_the_units_of_the_headers() -> None:
    state = ExplorerState(RunRecord(name="run", created_ns=0), tiny())
    state.contents = count_model(state.model)
    state.take_documents({type(one): one for one in documents()})
    labels = ColumnChoice(shown=frozenset(BY_ID))
    lines = [TreeLine([module], state.outline.depths[module.id]) for module in state.model.modules]
    table = TreeTable(state, labels.columns(state), lines)

    rows = list(csv.DictReader(io.StringIO(to_csv(table))))
    data = json.loads(to_json(table))

    root, embed = rows[0], rows[1]
    assert float(root["params_share"]) == 1.0
    assert float(embed["params_share"]) == pytest.approx(6400 / float(root["params"]))
    assert float(root["time_ms"]) == pytest.approx(2.4)
    assert float(root["self_time_ms"]) == pytest.approx(0.12)
    assert float(root["time_share"]) == 1.0
    assert data["modules"][0]["time_ms"] == pytest.approx(2.4)
    assert not any(" " in heading for heading in root)


def test_a_shared_row_shows_only_values_common_to_all_modules() -> None:
    training = Training(documents=documents()).train(5)
    state = ExplorerState(RunRecord(name="run", created_ns=0), training.model)
    state.contents = count_model(state.model)
    state.take_documents({type(one): one for one in documents()})
    series = training.store.series()
    state.learn(4, series, [training.store.points(one.id) for one in series])
    found = [state.model.find(f"blocks.{number}.attention.qkv") for number in range(2)]
    row = [module for module in found if module is not None]

    def told(id: str, of: list[Module]) -> str:
        return BY_ID[id].plain(state, of).strip()

    assert told("class", row) == "Linear"
    assert told("trend", row[:1])
    assert told("trend", row) == ""
    assert told("mean time", row[:1])
    assert told("mean time", row) == ""
    peaks = [BY_ID["peak"].value(state, [one]) for one in row]
    assert BY_ID["peak"].value(state, row) == max(filter(None, peaks))  # type: ignore[type-var]

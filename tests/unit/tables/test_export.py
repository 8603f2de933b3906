"""Data as the text of a file."""

from __future__ import annotations

import csv
import io
import json

from torchglass.tables.export import csv_text, json_text


def test_json_is_ascii_for_any_name() -> None:
    text = json_text({"модель": 1})

    assert text.isascii()
    assert json.loads(text) == {"модель": 1}


def test_csv_cells_round_trip_and_none_is_an_empty_cell() -> None:
    text = csv_text(["path", "size"], [['a "b", c', 1], [None, 2]])

    assert text.splitlines()[0] == "path,size"
    assert list(csv.reader(io.StringIO(text)))[1:] == [['a "b", c', "1"], ["", "2"]]

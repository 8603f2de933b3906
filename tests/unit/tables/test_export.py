"""Data as the text of a file."""

from __future__ import annotations

import csv
import io
import json

from torchglass.tables.export import csv_text, json_text


def test_json_is_ascii_whatever_the_names_are() -> None:
    text = json_text({"модель": 1})

    assert text.isascii()
    assert json.loads(text) == {"модель": 1}


def test_cells_come_back_as_they_were_and_nothing_is_an_empty_one() -> None:
    text = csv_text(["path", "size"], [['a "b", c', 1], [None, 2]])

    assert text.splitlines()[0] == "path,size"
    assert list(csv.reader(io.StringIO(text)))[1:] == [['a "b", c', "1"], ["", "2"]]

"""CSV has one line a module, and any reader gets the names back."""

from __future__ import annotations

import csv
import io

from tests import make, networks
from torchglass.analyse.summary import summarize
from torchglass.export.summary import summary_csv
from torchglass.records.model import Model
from torchglass.records.trace import CallRecord


def rows(model: Model, calls: list[CallRecord] | None = None) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(summary_csv(summarize(model, calls)))))


def test_each_module_is_a_line_with_its_numbers() -> None:
    found = rows(networks.resnet(), networks.resnet_calls())

    conv = next(row for row in found if row["path"] == "conv1")
    assert conv["parameters"] == "9408"
    assert conv["output_shapes"] == "1x64x112x112"
    assert len(found) == len(networks.resnet().modules)


def test_commas_quotes_and_new_lines_in_names_survive() -> None:
    name = 'a,"b"\nc'

    assert rows(make.model({"children": {name: {}}}))[1]["path"] == name

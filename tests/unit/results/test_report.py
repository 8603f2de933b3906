"""Every report is printed, shown in a notebook and written to files in one way."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests import make
from tests.inspections import inspected
from tests.timings import timing
from torchglass.records.measures import CallPath, FlopRecord, OpFlopRecord
from torchglass.results.flops import Flops
from torchglass.results.inspection import Inspection
from torchglass.results.profile import Profile
from torchglass.results.report import Report
from torchglass.results.summary import Summary

MODEL = make.model({"children": {"fc<1>": {"class": "Linear"}, "act": {"class": "ReLU"}}})
WORK = FlopRecord(
    places=(CallPath(path="", calls=1), CallPath(path="fc<1>", parent=0, calls=1)),
    ops=(OpFlopRecord(op="aten.mm", place=1, stage="forward", nature="counted", calls=1, flops=6),),
)
REPORTS: list[Report] = [
    Flops(MODEL, WORK),
    Profile(MODEL, (), timing()),
    Summary(MODEL),
    Inspection(inspected()),
]


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: type(report).__name__)
def test_a_file_is_written_in_the_format_of_its_extension(report: Report, tmp_path: Path) -> None:
    assert report.to_json(tmp_path / "new" / "a.json") == report.to_json()
    assert json.loads((tmp_path / "new" / "a.json").read_text()) == json.loads(report.to_json())
    assert report.to_csv(tmp_path / "a.csv") == (tmp_path / "a.csv").read_text()
    assert next(csv.reader(io.StringIO(report.to_csv())))[:2] == ["path", "class"]
    assert str(report) == repr(report) == report.table()


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: type(report).__name__)
def test_the_html_has_the_contents_of_the_table(report: Report) -> None:
    page = report.to_html()

    assert page.startswith("<!doctype html>")
    assert f"<title>{report.title}</title>" in page
    assert "<fc" not in page
    assert report._repr_html_() in page
    assert report._repr_mimebundle_() == {
        "text/plain": str(report),
        "text/html": report._repr_html_(),
    }


def test_save_takes_the_format_from_the_extension(tmp_path: Path) -> None:
    report = REPORTS[0]

    assert report.save(tmp_path / "a.csv").read_text() == report.to_csv()
    assert report.save(tmp_path / "a.JSON").read_text() == report.to_json()
    assert report.save(tmp_path / "a.html").read_text() == report.to_html()
    assert report.save(tmp_path / "a.txt").read_text() == f"{report}\n"
    assert REPORTS[-1].save(tmp_path / "a.txt").read_text() == REPORTS[-1].to_json()

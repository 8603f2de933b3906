"""The modules of a profile in order, and its CSV, whose self times add up to the whole."""

from __future__ import annotations

import csv
import io
from typing import Any

from tests import make
from tests.timings import timing
from torchglass.analyse.latency import ModuleTime
from torchglass.results.profile import Profile
from torchglass.results.report import ModuleRow

MODEL = make.model({"children": {"fc": {"class": "Linear"}, "act": {"class": "ReLU"}}})
LARGER = make.model({"children": {"fc": {"class": "Linear"}, "act": {}, "unused": {}}})


def rows(**options: Any) -> list[ModuleRow[ModuleTime]]:
    return Profile(LARGER, (), timing()).module_rows(**options)


def test_rows_are_a_tree_ending_with_unattributed_time() -> None:
    table = rows()

    assert [(row.name, row.depth, row.last) for row in table] == [
        ("Net", 0, True),
        ("fc", 1, False),
        ("act", 1, False),
        ("unused", 1, False),
        ("unattributed", 1, True),
    ]
    assert table[3].measured.stages == []


def test_siblings_or_all_are_sorted_by_time() -> None:
    by_total = rows(sort="total")
    by_self = rows(sort="self")

    assert [row.name for row in by_total] == ["Net", "fc", "act", "unattributed", "unused"]
    assert [row.name for row in by_self] == ["fc", "act", "unattributed", "Net"]
    assert all(row.depth == 0 for row in by_self)


def test_depth_limits_the_rows() -> None:
    assert [row.name for row in rows(depth=0)] == ["Net"]
    assert [row.name for row in rows(depth=0, sort="self")] == [
        "unattributed",
        "Net",
    ]


def test_a_module_created_in_the_forward_has_a_row_below_its_creator() -> None:
    bare = make.model({"children": {"fc": {"class": "Linear"}}})
    found = Profile(bare, (), timing()).module_rows()

    assert [row.name for row in found] == ["Net", "fc", "act", "unattributed"]


def csv_lines() -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(Profile(MODEL, (), timing()).to_csv())))


def test_csv_names_the_model_and_unattributed_time() -> None:
    assert [line["path"] for line in csv_lines()] == [MODEL.name, "fc", "act", "unattributed"]


def test_self_times_add_up_to_the_model() -> None:
    found = csv_lines()

    for stage, total in (("forward", 100), ("backward", 200)):
        assert sum(int(line[f"{stage}_self_ns"] or 0) for line in found) == total
        assert found[0][f"{stage}_total_ns"] == str(total)


def test_the_spread_of_all_runs_is_beside_the_fastest_run() -> None:
    fc = csv_lines()[1]

    assert fc["calls"] == "1"
    assert fc["forward_total_ns"] == "60"
    assert fc["forward_share"] == "0.6"
    quartiles = ("forward_lower_quartile_ns", "forward_median_ns", "forward_upper_quartile_ns")
    assert [float(fc[name]) for name in quartiles] == [90, 120, 150]


def test_a_stage_without_a_measurement_is_empty() -> None:
    unattributed = csv_lines()[-1]

    assert unattributed["forward_self_ns"] == ""
    assert unattributed["backward_self_ns"] == "50"

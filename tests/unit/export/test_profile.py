"""The CSV of a profile has a line for each module, whose self times add up to the whole."""

from __future__ import annotations

import csv
import io

from tests import make
from tests.timings import timing
from torchglass.analyse.latency import latency
from torchglass.export.measurements import profile_csv

MODEL = make.model({"children": {"fc": {"class": "Linear"}, "act": {"class": "ReLU"}}})


def lines() -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(profile_csv(MODEL, latency(timing())))))


def test_the_model_and_what_no_module_owns_have_words() -> None:
    assert [line["path"] for line in lines()] == [MODEL.name, "fc", "act", "unattributed"]


def test_self_times_add_up_to_the_model() -> None:
    found = lines()

    for stage, total in (("forward", 100), ("backward", 200)):
        assert sum(int(line[f"{stage}_self_ns"] or 0) for line in found) == total
        assert found[0][f"{stage}_total_ns"] == str(total)


def test_the_spread_of_all_runs_stands_beside_the_fastest() -> None:
    fc = lines()[1]

    assert fc["calls"] == "1"
    assert fc["forward_total_ns"] == "60"
    assert fc["forward_share"] == "0.6"
    quartiles = ("forward_lower_quartile_ns", "forward_median_ns", "forward_upper_quartile_ns")
    assert [float(fc[name]) for name in quartiles] == [90, 120, 150]


def test_a_stage_without_a_part_in_it_is_empty() -> None:
    unattributed = lines()[-1]

    assert unattributed["forward_self_ns"] == ""
    assert unattributed["backward_self_ns"] == "50"

"""The table of what a model computes says what was counted, by which rule, and what is missing."""

from __future__ import annotations

import csv
import io
import json

import pytest

from tests import make
from tests.timings import timing
from torchglass.errors import LookupFailedError, ViewError
from torchglass.records.measures import CallPath, FlopRecord, OpFlopRecord
from torchglass.results.flops import Flops
from torchglass.tables.text import format_flops

MODEL = make.model({"children": {"fc": {"class": "Linear"}, "act": {"class": "ReLU"}}})
FC = OpFlopRecord(
    op="aten.addmm", place=1, stage="forward", nature="counted", calls=1, flops=3000, bytes=9
)
ODD = OpFlopRecord(
    op="aten._fft_r2c", place=0, stage="forward", nature="uncounted", calls=2, time_ns=25
)
PLACES = (CallPath(path="", calls=1), CallPath(path="fc", parent=0, calls=1))


def counted(*ops: OpFlopRecord, **fields: object) -> Flops:
    work = FlopRecord(places=PLACES, ops=ops, **fields)  # type: ignore[arg-type]
    return Flops(MODEL, work, None)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1.00 K"),
        (12_345, "12.3 K"),
        (999_600, "1.00 M"),
        (3_628_146_688, "3.63 G"),
        (295_674e9, "296 T"),
        (2e18, "2.00 E"),
    ],
)
def test_flops_are_written_with_three_digits(count: float, text: str) -> None:
    assert format_flops(count) == text


def test_a_forward_alone_has_one_group_of_columns() -> None:
    lines = str(counted(FC)).splitlines()

    assert lines[1].split() == ["Module", "Class", "Calls", "FLOPs", "self", "share", "FLOPs/byte"]
    assert lines[4].split() == [
        "├─",
        "fc",
        "Linear",
        "1",
        "3.00",
        "K",
        "3.00",
        "K",
        "100%",
        "333.3",
    ]
    assert lines[5].split() == ["└─", "act", "ReLU", "–", "0"]
    assert "Total    3,000 FLOPs = 1,500 MACs" in lines


def test_a_backward_has_its_own_columns() -> None:
    text = str(counted(FC, backward=True))

    assert "Backward" in text
    assert "forward 3,000, backward 0" in text


def test_a_lower_bound_is_marked_in_the_rows_and_explained_below() -> None:
    text = str(counted(FC, ODD, total_ns=100))

    assert "≥ 3.00 K" in text
    assert "at least 3,000 FLOPs" in text
    assert "no formula for 1 op, which takes 25% of the time; add one with tg." in text
    assert "aten._fft_r2c ×2" in text


def test_notes_are_printed() -> None:
    assert "Note: what to know." in str(counted(FC, notes=("what to know",)))


def test_the_ops_table_shows_unknown_ops() -> None:
    lines = counted(FC, ODD, total_ns=100).op_table(count=1).splitlines()

    assert lines[3].split()[:3] == ["aten.addmm", "1", "3.00"]
    assert "… and 1 more" in lines
    assert "?" in counted(FC, ODD).op_table()


def test_with_times_there_is_a_throughput() -> None:
    found = Flops(MODEL, FlopRecord(places=PLACES, ops=(FC,)), timing())

    assert found.flops_per_second == 3000 / 300e-9
    assert found.speed(found["fc"]) == 3000 / 180e-9
    assert "10.0 G FLOP/s over 300.0ns" in str(found)


def test_json_and_csv_have_all_counts() -> None:
    found = counted(FC, ODD, total_ns=100)

    plain = json.loads(found.to_json())
    lines = list(csv.DictReader(io.StringIO(found.to_csv())))

    assert plain["total_flops"] == 3000
    assert plain["is_lower_bound"] is True
    assert plain["uncounted"][0]["share"] == 0.25
    assert plain["modules"][1]["forward"]["self_flops"] == 3000
    assert [line["path"] for line in lines] == ["Net", "fc", "unattributed"]
    assert lines[1]["forward_flops"] == "3000"
    assert lines[0]["uncounted_calls"] == "2"


def test_invalid_modules_sort_keys_and_depths_are_refused() -> None:
    with pytest.raises(LookupFailedError, match="no module 'x' was measured"):
        counted(FC)["x"]
    with pytest.raises(ViewError, match="sort must be one of"):
        counted(FC).table(sort="size")  # type: ignore[arg-type]
    with pytest.raises(ViewError, match="depth must be 0 or more"):
        counted(FC).table(depth=-1)

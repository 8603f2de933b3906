"""Work is added up for each module and op, and nothing is counted twice."""

from __future__ import annotations

from typing import Any

import pytest

from tests import make
from torchglass.records.json_data import from_json_data, to_json_data
from torchglass.records.measures import CallPath, FlopRecord, OpFlopRecord
from torchglass.results.flops import Flops, add_up


def op(place: int | None, flops: int = 0, **fields: Any) -> OpFlopRecord:
    return OpFlopRecord(
        **{
            "op": "aten.mm",
            "place": place,
            "stage": "forward",
            "nature": "counted",
            "calls": 1,
            "flops": flops,
            "bytes": 10,
            **fields,
        }
    )


PLACES = (
    CallPath(path="", calls=1),
    CallPath(path="blocks.0", parent=0, calls=1),
    CallPath(path="blocks.1", parent=0, calls=1),
    CallPath(path="shared", parent=1, calls=1),
    CallPath(path="shared", parent=2, calls=2),
)
STEP = FlopRecord(
    places=PLACES,
    ops=(
        op(0, 1),
        op(1, 10),
        op(3, 100),
        op(4, 1000, stage="backward"),
        op(4, 500, stage="recompute"),
        op(None, 7),
        op(2, op="aten._fft_r2c", nature="uncounted", calls=3),
    ),
    backward=True,
)


def test_a_total_includes_all_inner_calls() -> None:
    modules = add_up(STEP).modules

    assert modules["blocks.0"].forward.total_flops == 110
    assert modules["blocks.0"].forward.self_flops == 10
    assert modules["blocks.1"].backward.total_flops == 1500
    assert modules[""].total_flops == 1 + 10 + 100 + 1500


def test_a_module_called_from_two_places_counts_both_calls() -> None:
    shared = add_up(STEP).modules["shared"]

    assert shared.calls == 3
    assert (shared.forward.total_flops, shared.backward.total_flops) == (100, 1500)
    assert shared.recomputed_flops == 500


def test_an_uncalled_container_sums_its_modules() -> None:
    blocks = add_up(STEP).modules["blocks"]

    assert (blocks.calls, blocks.self_flops, blocks.total_flops) == (0, 0, 1610)


def test_a_recursive_module_is_counted_once_in_its_total_flops() -> None:
    calls = [("", None), ("a", 0), ("a", 1)]
    places = tuple(CallPath(path=path, parent=parent, calls=1) for path, parent in calls)

    modules = add_up(FlopRecord(places=places, ops=(op(1, 1), op(2, 2)))).modules

    assert modules["a"].total_flops == modules["a"].self_flops == modules[""].total_flops == 3


def test_unattributed_flops_are_separate() -> None:
    found = Flops(make.model({}), STEP)

    assert found.unattributed.total_flops == 7
    assert found.forward_flops == 118
    assert found.total_flops == found.root.total_flops + 7 == 1618


def test_uncounted_ops_are_listed_and_make_totals_lower_bounds() -> None:
    found = Flops(make.model({}), STEP)

    assert [(one.op, one.calls) for one in found.uncounted] == [("aten._fft_r2c", 3)]
    assert [path for path, row in found.rows.items() if row.uncounted_calls] == [
        "",
        "blocks.1",
        "blocks",
    ]


def test_the_time_share_is_relative_to_the_whole_step() -> None:
    ops = op(0, 4, time_ns=30), op(0, time_ns=20, nature="free")
    found = Flops(make.model({}), FlopRecord(places=PLACES, ops=ops, total_ns=100))

    assert found.share(found.free) == 0.2
    assert found.ops[0].flops_per_second == pytest.approx(4 / 30e-9)
    assert found.uncounted_share == 0


def test_rows_are_a_tree_or_a_list_sorted_by_size() -> None:
    model = make.model({"children": {"shared": {}, "blocks": {"children": {"0": {}, "1": {}}}}})
    found = Flops(model, STEP)

    tree = [(row.name, row.depth, row.last) for row in found.module_rows()]
    largest = [row.name for row in found.module_rows(sort="total", depth=1)]
    own = [(row.name, row.measured.self_flops) for row in found.module_rows(sort="self")]

    assert tree == [
        ("Net", 0, True),
        ("shared", 1, False),
        ("blocks", 1, False),
        ("0", 2, False),
        ("1", 2, True),
        ("unattributed", 1, True),
    ]
    assert largest == ["Net", "blocks", "shared", "unattributed"]
    assert own == [("shared", 1600), ("blocks.0", 10), ("unattributed", 7), ("Net", 1)]


def test_a_flops_record_round_trips_through_json() -> None:
    assert from_json_data(FlopRecord, to_json_data(STEP)) == STEP

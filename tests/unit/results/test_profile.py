"""A profile reads as a table, and each layer as an overlay."""

from __future__ import annotations

from typing import Any

import pytest

from tests import make
from tests.timings import run, timing
from torchglass.analyse.latency import attribute_time
from torchglass.errors import LookupFailedError, ViewError
from torchglass.records.measures import Timing
from torchglass.results.profile import Profile

MODEL = make.model(
    {
        "children": {
            "fc": {"class": "torch.nn.Linear", "weight": (4, 3), "bias": (4,)},
            "act": {"class": "torch.nn.ReLU"},
        }
    }
)
CALLS = (
    make.call(0, "", outputs=[(2, 4)]),
    make.call(1, "fc", parent=0, inputs=[(2, 3)], outputs=[(2, 4)]),
    make.call(2, "act", parent=0, inputs=[(2, 4)], outputs=[(2, 4), (1,)]),
)


def profile(times: Timing | None = None, **fields: Any) -> Profile:
    return Profile(MODEL, CALLS, times or timing(**fields))


def cells(text: str, first: str) -> list[str]:
    return next(line.split() for line in text.splitlines() if first in line.split()[:2])


def test_a_row_has_shape_parameters_calls_and_both_stages() -> None:
    text = str(profile())

    assert cells(text, "fc") == [
        *("├─", "fc", "Linear", "2×4", "16", "1"),
        *("60.0ns", "60.0ns", "60%", "120.0ns", "120.0ns", "60%", "±25%"),
    ]
    assert cells(text, "act")[2:6] == ["ReLU", "2×4", "+1", "0"]
    assert cells(text, "unattributed")[2:] == ["50.0ns", "50.0ns", "25%", "±25%"]


def test_the_measuring_method_is_shown_below_the_rows() -> None:
    text = str(profile(plain_cpu_ns=(200,), threads=2))

    assert (
        "Forward       100.0ns, CPU 100.0ns; median 200.0ns, middle half 150.0ns to 250.0ns" in text
    )
    assert "Runs          3 after 3 warm-up runs, 2 threads; showing run 2, the fastest" in text
    assert "Measuring     ≈ 1.50× the CPU time of an unmeasured run" in text
    assert "ops=False has less overhead" in text


def test_a_busy_machine_is_reported() -> None:
    text = str(profile(runs=(attribute_time(run(10, cpu=4)),), published=0, notes=("it was late",)))

    assert "Note: it was late." in text
    assert "Note: wall time is 2.5× CPU time: the machine is busy" in text


def test_the_clock_of_a_device_is_named() -> None:
    assert "on cuda:0" in str(profile(scales=[1], clock="cuda:0"))


def test_columns_are_chosen_by_name() -> None:
    text = profile().table(columns=["forward_median", "backward_cpu"])

    assert "120.0ns (90.0ns–150.0ns)" in text
    assert "Backward CPU" in text
    with pytest.raises(ViewError, match="no column 'memory'; the columns are class, output"):
        profile().table(columns=["memory"])


@pytest.mark.parametrize("options", [{"sort": "name"}, {"depth": -1}])
def test_an_unknown_view_is_refused(options: Any) -> None:
    with pytest.raises(ViewError):
        profile().table(**options)


def test_without_a_backward_there_are_no_columns_for_it() -> None:
    text = str(profile(runs=(attribute_time(run()[:6]),), published=0))

    assert "Backward" not in text
    assert "unattributed" not in text


def test_the_slowest_ops_come_first() -> None:
    text = profile().op_table(2)

    assert cells(text, "linear") == ["linear", "fc", "1", "50.0ns", "120.0ns", "57%"]
    assert cells(text, "autograd") == ["autograd", "unattributed", "45.0ns", "15%"]
    assert "… and 5 more" in text
    assert "between ops" in profile().op_table(None)


def test_the_overlay_is_drawn_as_specified() -> None:
    assert profile().overlay("fc").splitlines() == [
        "fc              16 params    Shape: 4×3   Time: 180.0ns   Mem: 64 B",
        "├─ forward()    ⚡ 60.0ns    Input: 2×3   Output: 2×4",
        "├─ backward()   ⚡ 120.0ns   Gradient: computed",
        "└─ memory       📊 64 B      Parameters: 16 × 4 bytes",
    ]


def test_the_overlay_shows_all_layers_and_known_memory() -> None:
    text = profile().overlay(memory={"act": 1024})

    assert [block.split()[0] for block in text.split("\n\n")] == ["fc", "act"]
    assert "Activations: 1.0 KB" in text
    with pytest.raises(ViewError, match="no module 'nothing' ran"):
        profile().overlay("nothing")


def test_a_module_is_found_by_its_path() -> None:
    found = profile()

    assert found["fc"].total_ns == 180
    assert found.root is found[""]
    with pytest.raises(LookupFailedError, match="no module 'nothing' was measured"):
        _ = found["nothing"]


def test_json_has_every_run_of_every_row() -> None:
    plain = profile().to_dict()

    fc = next(module for module in plain["modules"] if module["path"] == "fc")
    assert fc["class"] == "torch.nn.Linear"
    assert fc["outputs"] == [[2, 4]]
    assert fc["forward"]["runs_ns"] == [120, 60, 180]
    assert fc["forward"]["share"] == 0.6
    assert plain["unattributed"]["forward"] is None
    assert plain["ops"][0]["op"] == "linear"
    assert plain["published"] == 1


def test_the_last_line_names_the_slowest_modules_with_their_shares() -> None:
    *_, last, _ = str(profile()).splitlines()

    assert last == "Slowest: fc 60%, act 20%, Net 3% (share of the total time, without children)"


def test_unattributed_time_and_symbols_are_explained() -> None:
    text = str(profile())

    assert "Unattributed  25% of backward belongs to no module: the loss, autograd" in text
    assert "\n+1: one more output tensor\n" in text
    assert "–:" not in text


def test_a_module_called_from_several_modules_is_noted() -> None:
    calls = (
        make.call(0, ""),
        make.call(1, "fc", parent=0),
        make.call(2, "act", parent=1),
        make.call(3, "act", parent=0),
    )

    text = str(Profile(MODEL, calls, timing()))

    assert "Note: called from several modules: act; the row counts all calls." in text

"""A recording is read by path, by pass and call by call, and printed as a table."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import make
from torchglass.errors import LookupFailedError
from torchglass.records.calls import CallTensor, ForwardStats, Level, ModuleStatistics, Totals
from torchglass.records.json_data import from_json_data
from torchglass.records.model import Stats
from torchglass.results.statistics import Recording

if TYPE_CHECKING:
    import torch

STATS = Stats(count=6, min=-1.0, max=2.0, mean=0.5, std=0.25)


def call(
    path: str, number: int = 1, *, forward: int = 1, start_ns: int = 0, **fields: Any
) -> ForwardStats:
    tensor = CallTensor(place="0", spec=make.spec(2, 3), stats=STATS)
    return ForwardStats(
        **{
            "path": path,
            "number": number,
            "forward": forward,
            "start_ns": start_ns,
            "inputs": (tensor,),
            "outputs": (tensor,),
            **fields,
        }
    )


def module(
    path: str, class_name: str, *calls: ForwardStats, self_ns: int = 0, **totals: Any
) -> ModuleStatistics:
    known: dict[str, Any] = {"calls": len(calls), "self_ns": self_ns, "total_ns": self_ns}
    return ModuleStatistics(
        path=path,
        class_name=class_name,
        calls=calls,
        totals=Totals(**{**known, "outputs": STATS, **totals}),
    )


class Fabricated:
    """A recorder that was told what it has seen."""

    left_out = 2

    def __init__(self, *modules: ModuleStatistics, level: Level = "full") -> None:
        self._modules = {module.path: module for module in modules}
        self.level: Level = level
        self.keep = 100
        self.forward_count = 2

    @property
    def paths(self) -> list[str]:
        return list(self._modules)

    def module(self, path: str) -> ModuleStatistics:
        return self._modules[path]

    def tensors(self, path: str) -> Iterator[tuple[int, str, torch.Tensor]]:
        return iter(())


def fabricated(*modules: ModuleStatistics, level: Level = "full") -> Any:
    return Fabricated(*modules, level=level)


def two_passes(level: Level = "full") -> Recording:
    return Recording(
        fabricated(
            module(
                "",
                "Net",
                call("", start_ns=0),
                call("", 2, forward=2, start_ns=20),
                self_ns=1_000_000,
                total_ns=4_000_000,
            ),
            module(
                "fc",
                "Linear",
                call("fc", start_ns=5),
                call("fc", 2, forward=2, start_ns=25),
                self_ns=3_000_000,
            ),
            level=level,
        ),
        "Net",
    )


def test_a_module_is_found_by_its_path() -> None:
    recording = two_passes()

    assert list(recording) == ["", "fc"]
    assert recording["fc"][-1].number == 2
    assert recording["fc"].totals.calls == 2


def test_an_uncalled_path_error_names_the_closest_paths() -> None:
    with pytest.raises(LookupFailedError, match=r"no module 'fc1' was called; did you mean fc\?"):
        two_passes()["fc1"]


def test_calls_are_in_start_order() -> None:
    assert [(one.path, one.number) for one in two_passes().calls] == [
        ("", 1),
        ("fc", 1),
        ("", 2),
        ("fc", 2),
    ]


def test_passes_are_kept_separate() -> None:
    forwards = two_passes().forwards

    assert {number: list(paths) for number, paths in forwards.items()} == {
        1: ["", "fc"],
        2: ["", "fc"],
    }
    assert [one.number for one in forwards[2]["fc"]] == [2]


def test_a_call_has_flat_names_as_attributes_and_as_keys() -> None:
    stats = call("fc", total_ns=1_500_000_000)

    assert stats.in_shape == stats["in_shape"] == (2, 3)
    assert (stats.out_mean, stats.out_memory_bytes, stats.runtime) == (0.5, 24, 1.5)
    assert len(dict(stats)) == 21
    assert "in_std" in dir(stats)
    assert "out_std=0.25" in repr(stats)


def test_an_unknown_statistic_raises_attribute_or_key_error() -> None:
    stats = call("fc")

    with pytest.raises(AttributeError, match="in_median"):
        _ = stats.in_median
    with pytest.raises(KeyError, match="number"):
        _ = stats["number"]


def test_json_has_all_data_and_can_be_loaded() -> None:
    recording = two_passes()

    plain = json.loads(recording.to_json())

    assert (plain["model"], plain["level"], plain["forwards"]) == ("Net", "full", 2)
    assert from_json_data(ModuleStatistics, plain["modules"]["fc"]) == recording["fc"]


def test_nan_is_null_in_json() -> None:
    undefined = Stats(count=1, min=math.nan, max=math.nan, mean=math.nan, std=math.nan, nan=1)
    recording = Recording(fabricated(module("", "Net", call(""), outputs=undefined)), "Net")

    plain = json.loads(recording.to_json(), parse_constant=pytest.fail)

    assert plain["modules"][""]["totals"]["outputs"]["min"] is None


def test_a_recording_prints_as_a_table() -> None:
    assert str(two_passes()).splitlines() == [
        "Net: 2 forwards, 4 calls of 2 modules, 4.00ms",
        "─" * 81,
        "Module  Class   Calls  Input  Output  min  max  mean   std    Time    Self  Share",
        "─" * 81,
        "Net     Net         2  2×3    2×3      -1    2   0.5  0.25  4.00ms  1.00ms    25%",
        "fc      Linear      2  2×3    2×3      -1    2   0.5  0.25  3.00ms  3.00ms    75%",
        "─" * 81,
        "min … std: of the first output, over all calls",
        "─" * 81,
    ]


def test_without_statistics_there_are_no_statistics_columns() -> None:
    text = str(two_passes("shapes"))

    assert "mean" not in text
    assert "2×3" in text


def test_sampled_statistics_are_labeled_as_such() -> None:
    assert "from samples of its values" in str(two_passes("cheap"))


def test_non_finite_values_and_exceptions_are_noted() -> None:
    spoilt = Stats(count=6, min=0.0, max=1.0, mean=0.5, std=0.1, nan=3)
    raised = call("fc", error="ValueError", outputs=())
    recording = Recording(
        fabricated(module("fc", "Linear", raised, outputs=spoilt, failed=1)), "Net"
    )

    heading, row, note = (str(recording).splitlines()[line] for line in (2, 4, -2))

    assert "nan" in heading.split()
    assert row.split()[4] == "–"
    assert note == "1 call of fc raised ValueError"


def test_the_middle_of_a_long_table_is_omitted() -> None:
    modules = [module(f"layers.{number}", "Linear", call("")) for number in range(500)]

    text = str(Recording(fabricated(*modules), "Net"))

    assert "… 420 more …" in text
    assert "layers.0 " in text
    assert "layers.499 " in text


def test_an_empty_recording_says_so() -> None:
    recording = Recording(fabricated(), "Net")

    assert str(recording) == "Net: no module was called"
    assert (recording.calls, recording.tensors, recording.tensors_left_out) == ((), {}, 2)


def test_csv_has_a_line_for_each_recorded_call(tmp_path: Path) -> None:
    text = two_passes().to_csv(tmp_path / "calls.csv")

    lines = list(csv.DictReader(io.StringIO(text)))
    assert [(line["path"], line["number"]) for line in lines] == [
        *(("Net", "1"), ("fc", "1"), ("Net", "2"), ("fc", "2"))
    ]
    assert (lines[1]["in_shape"], lines[1]["out_mean"], lines[1]["error"]) == ("2x3", "0.5", "")
    assert (tmp_path / "calls.csv").read_text(encoding="utf-8") == text


def test_json_is_written_to_the_given_file(tmp_path: Path) -> None:
    text = two_passes().to_json(tmp_path / "calls.json")

    assert (tmp_path / "calls.json").read_text(encoding="utf-8") == text

from __future__ import annotations

from dataclasses import replace

import pytest

from tests import make
from tests.unit.analyse.test_memory import MODEL, Writing
from torchglass.analyse.memory import Moment
from torchglass.errors import LookupFailedError, ViewError
from torchglass.records.measures import AllocatorPeak, BlockId, StepPhase
from torchglass.results.memory import Memory, area_text


def moment(live: int, phase: StepPhase = "forward") -> Moment:
    return Moment(0, live, 1, phase, "mm", "a", BlockId(0))


def step() -> Writing:
    written = Writing()
    written.there(2048, "parameter", "a")
    written.there(10, "input")
    block = written.taken(1024, "activation", "a.inner", op="mm")
    written.taken(512, "gradient", "a", op="mm", phase="backward")
    written.freed(block)
    return written


def test_a_table_shows_only_columns_with_values() -> None:
    heading = Memory(MODEL, (), step().footprint()).table().splitlines()[1]

    assert heading.split() == [
        *("Module", "Class", "Output", "Parameters", "Activations", "Gradients", "Temporary"),
        *("At", "peak", "share"),
    ]


def test_requested_columns_are_shown_and_unknown_ones_refused() -> None:
    taken = Memory(MODEL, (), step().footprint())

    lines = taken.table(columns=["parameters_self", "peak"]).splitlines()

    assert lines[1].split() == ["Module", "Parameters", "self", "At", "peak"]
    assert lines[4].split() == ["├─", "a", "2.0", "KB", "3.5", "KB"]
    with pytest.raises(ViewError, match="no column 'size'"):
        taken.table(columns=["size"])


def test_the_peak_is_shown_with_its_composition() -> None:
    text = str(Memory(MODEL, (), step().footprint(optimizer="Adam", notes=("so it is",))))

    assert "3.5 KB on cpu, in the backward: mm of a" in text
    assert "2.0 KB parameters + 1.0 KB activations + 512 B gradients + 10 B else" in text
    assert "starts at 2.0 KB including Adam state; adds up to 1.5 KB" in text
    assert "Note: so it is." in text


def test_the_peak_includes_memory_inside_kernels() -> None:
    allocations = (AllocatorPeak(device="cpu", peak_bytes=1536 + 1024, op="conv"),)

    text = str(Memory(MODEL, (), step().footprint(allocations=allocations)))

    assert "Peak  4.5 KB on cpu" in text
    assert "+ 1.0 KB scratch memory inside kernels (conv)" in text


def test_a_device_without_memory_is_refused() -> None:
    taken = Memory(MODEL, (), step().footprint())

    with pytest.raises(LookupFailedError, match="the step used no memory on 'cuda:0'"):
        taken.on("cuda:0")
    assert taken.on("cpu").peak_bytes == taken.peak_bytes


def test_an_unknown_module_is_refused() -> None:
    with pytest.raises(LookupFailedError, match="no module 'c' was measured"):
        Memory(MODEL, (), step().footprint())["c"]


@pytest.mark.parametrize("options", [{"sort": "size"}, {"depth": -1}])
def test_invalid_table_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ViewError):
        Memory(MODEL, (), step().footprint()).table(**options)  # type: ignore[arg-type]


def test_an_area_chart_shows_the_maximum_per_column_and_the_phases() -> None:
    timeline = [moment(1024), moment(4096), *(moment(2048, "backward") for _ in range(38))]

    lines = area_text(timeline, before_bytes=0, cells=28, height=4)

    assert lines == [
        "4.0 KB ┤█",
        "       ┤█▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁",
        "       ┤████████████████████",
        "   0 B ┤████████████████████",
        "       └┴ backward ────────",
    ]


def test_few_changes_are_stretched_over_the_width() -> None:
    lines = area_text([moment(0), moment(8)], before_bytes=0, cells=17, height=1)

    assert lines == ["0 B ┤▁▁▁▁▁▁██████", "    └ forward ──"]


def test_an_empty_timeline_has_no_chart() -> None:
    assert area_text([], before_bytes=10, cells=40, height=3) == []


def test_packed_weights_are_noted_as_not_included() -> None:
    model = make.model({"weight": (4, 8), "children": {"a": {"children": {"inner": {}}}}})
    slots = tuple(replace(slot, role="packed") for slot in model.root.slots)
    packed = replace(model, modules=(replace(model.root, slots=slots), *model.modules[1:]))

    text = str(Memory(packed, (), step().footprint()))

    assert "Note: not included: 128 B of packed weights of quantized modules" in text
    assert "packed" not in str(Memory(MODEL, (), step().footprint()))

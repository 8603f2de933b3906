from __future__ import annotations

from typing import Any

from tests import make
from torchglass.analyse.memory import MemoryReport, devices_of
from torchglass.records.measures import (
    AllocatorPeak,
    BlockId,
    BlockKind,
    Footprint,
    MemoryBlock,
    MemoryChange,
    Saver,
    StepPart,
    StepPhase,
)
from torchglass.results.memory import Memory

MODEL = make.model({"children": {"a": {"children": {"inner": {}}}, "b": {}}})


class Writing:
    """A footprint, written down block by block."""

    def __init__(self) -> None:
        self.blocks: list[MemoryBlock] = []
        self.changes: list[MemoryChange] = []

    def there(
        self, size: int, kind: BlockKind, path: str | None = None, **more: Any
    ) -> MemoryBlock:
        spec = make.spec(1, device=more.pop("device", "cpu"))
        block = MemoryBlock(
            id=BlockId(len(self.blocks)), kind=kind, bytes=size, spec=spec, path=path, **more
        )
        self.blocks.append(block)
        return block

    def taken(
        self,
        size: int,
        kind: BlockKind = "temporary",
        path: str | None = None,
        op: str = "mm",
        phase: StepPhase = "forward",
        **more: Any,
    ) -> MemoryBlock:
        block = self.there(size, kind, path, op=op, phase=phase, **more)
        self._change(block, size)
        return block

    def freed(self, block: MemoryBlock) -> None:
        self._change(block, -block.bytes)

    def footprint(self, **more: Any) -> Footprint:
        parts = (StepPart(phase="forward", start=0, start_ns=0),)
        return Footprint(
            blocks=tuple(self.blocks), changes=tuple(self.changes), parts=parts, **more
        )

    def report(self, device: str = "cpu", **more: Any) -> MemoryReport:
        return MemoryReport(self.footprint(**more), MODEL, device)

    def _change(self, block: MemoryBlock, size: int) -> None:
        self.changes.append(
            MemoryChange(
                time_ns=len(self.changes),
                block=block.id,
                bytes=size,
                phase=block.phase or "forward",
                path=block.path,
                op=block.op,
            )
        )


def test_the_peak_is_the_first_maximum_and_names_all_live_blocks() -> None:
    step = Writing()
    step.there(100, "parameter", "a")
    first = step.taken(40, path="a.inner", op="mm")
    step.freed(first)
    second = step.taken(50, path="b", op="relu")
    step.freed(second)
    step.taken(50, path="b", op="exp")

    report = step.report()

    assert report.peak is not None
    assert (report.peak_bytes, report.peak.op, report.before_bytes) == (150, "relu", 100)
    held = [(one.path, one.kind, one.op, one.bytes) for one in report.peak_holders]
    assert held == [("a", "parameter", "", 100), ("b", "temporary", "relu", 50)]


def test_a_step_without_allocations_peaks_at_its_start() -> None:
    step = Writing()
    step.there(100, "parameter", "a")

    report = step.report()

    assert report.peak is None
    assert report.peak_bytes == 100
    assert [one.bytes for one in report.peak_holders] == [100]


def test_a_module_total_includes_descendants_and_the_root_has_everything() -> None:
    step = Writing()
    step.there(10, "parameter", "a")
    step.there(20, "parameter", "a.inner")
    step.there(5, "input")
    step.taken(7, "activation", "a.inner")

    report = step.report()

    assert report.modules["a"].own.parameter_bytes == 10
    assert report.modules["a"].total.parameter_bytes == 30
    assert report.modules["a"].total.activation_bytes == 7
    assert report.modules["b"].total.peak_bytes == 0
    assert report.unattributed.own.peak_bytes == 5
    assert report.root.total.peak_bytes == report.peak_bytes == 42


def test_an_activation_is_charged_once_to_the_first_module_that_saves_it() -> None:
    step = Writing()
    savers = Saver(node="ReluBackward0", path="b"), Saver(node="MulBackward0", path="a")
    step.taken(8, "activation", "a", saved_by=savers)

    report = step.report()

    assert report.modules["a"].own.activation_bytes == 8
    assert report.modules["b"].own.saved_bytes == 8
    assert report.root.total.saved_bytes == 8


def test_temporaries_that_are_not_live_together_are_not_summed() -> None:
    step = Writing()
    first = step.taken(30, path="a")
    step.freed(first)
    step.taken(20, path="a.inner")
    step.taken(5, path="b")

    report = step.report()

    assert report.modules["a"].own.temporary_peak_bytes == 30
    assert report.modules["a"].total.temporary_peak_bytes == 30
    assert report.root.total.temporary_peak_bytes == 30
    assert report.sizes["temporary"] == 30
    assert report.modules["a.inner"].own.temporary_peak_bytes == 20


def test_an_op_reports_total_and_maximum_allocated_bytes() -> None:
    step = Writing()
    for _ in range(3):
        step.freed(step.taken(10, path="a", op="relu"))
    step.taken(4, "gradient", "a", op="mm", phase="backward")

    report = step.report()

    relu = next(op for op in report.ops if op.op == "relu")
    assert (relu.blocks, relu.taken_bytes, relu.most_bytes, relu.peak_bytes) == (3, 30, 10, 10)
    gradient = next(op for op in report.ops if op.op == "mm")
    assert (gradient.phase, gradient.gradient_bytes) == ("backward", 4)


def test_each_device_has_its_own_report() -> None:
    step = Writing()
    step.there(10, "input", device="cpu")
    step.there(90, "parameter", "a", device="cuda:0")
    step.taken(50, path="a", device="cuda:0")
    allocations = (AllocatorPeak(device="cuda:0", peak_bytes=64),)

    assert devices_of(step.footprint()) == ["cuda:0", "cpu"]
    report = step.report("cuda:0", allocations=allocations)

    assert (report.peak_bytes, report.allocator_peak_bytes) == (140, 154)
    assert step.report("cpu", allocations=allocations).allocator_peak_bytes is None
    assert step.report("cpu").peak_bytes == 10


def test_the_timeline_is_the_running_sum_of_changes() -> None:
    step = Writing()
    step.there(10, "parameter", "a")
    block = step.taken(5, path="b", op="exp")
    step.freed(block)

    timeline = step.report().timeline

    assert [(one.time_ns, one.live_bytes, one.bytes, one.op) for one in timeline] == [
        (0, 15, 5, "exp"),
        (1, 10, -5, "exp"),
    ]


def names(report: MemoryReport, **options: Any) -> list[str]:
    rows = Memory(MODEL, (), report.footprint).module_rows(**options)
    return [row.name for row in rows]


def test_rows_are_the_tree_or_the_largest_first() -> None:
    step = Writing()
    step.there(10, "parameter", "a")
    step.there(30, "parameter", "b")
    step.taken(5, path="a.inner")
    step.taken(1, phase="loss")
    report = step.report()

    assert names(report) == ["Net", "a", "inner", "b", "unattributed"]
    assert names(report, depth=1) == ["Net", "a", "b", "unattributed"]
    assert names(report, sort="total") == ["Net", "b", "a", "inner", "unattributed"]
    assert names(report, sort="self") == ["b", "a", "a.inner", "unattributed"]
    assert names(report, sort="self", depth=1) == ["b", "a", "unattributed"]

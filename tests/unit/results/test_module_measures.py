"""Time, operations and memory put together."""

from __future__ import annotations

from torchglass.analyse.latency import ModuleTime, Times
from torchglass.analyse.memory import MemoryUse, ModuleMemory
from torchglass.records.measures import StageTime
from torchglass.results.flops import Amount, ModuleFlops
from torchglass.results.tree_record import measures


def test_a_row_combines_time_flops_and_memory() -> None:
    forward = Times(runs=(StageTime(calls=2, self_ns=3, total_ns=5),), published=0)
    time = ModuleTime(path="a", forward=forward)
    flops = ModuleFlops(path="a", calls=2, forward=Amount(self_flops=7, total_flops=9))
    memory = ModuleMemory(path="a", own=MemoryUse(), total=MemoryUse(activation_bytes=11))

    (row,) = measures({"a": time}, {"a": flops}, {"a": memory}).rows

    assert (row.calls, row.total_forward_ns, row.self_forward_ns) == (2, 5, 3)
    assert (row.total_forward_flops, row.self_forward_flops) == (9, 7)
    assert row.total_activation_bytes == 11
    assert row.total_backward_ns is None


def test_unmeasured_quantities_are_none() -> None:
    flops = ModuleFlops(path="a", calls=1)

    (row,) = measures({}, {"a": flops}, {}, ("a note",)).rows

    assert row.total_forward_ns is None
    assert row.total_activation_bytes is None
    assert row.calls == 1

"""Time, FLOPs and memory of a pass, one row per module."""

from __future__ import annotations

from collections.abc import Mapping

from torchglass.analyse.flops import ModuleFlops
from torchglass.analyse.latency import ModuleTime
from torchglass.analyse.memory import ModuleMemory
from torchglass.records.measures import Measures, ModuleMeasure


def measures(
    times: Mapping[str, ModuleTime],
    flops: Mapping[str, ModuleFlops],
    memory: Mapping[str, ModuleMemory],
    notes: tuple[str, ...] = (),
) -> Measures:
    """The rows of all modules that one of these tells of; what none tells is None."""
    paths = dict.fromkeys([*times, *flops, *memory])
    rows = (_row(path, times.get(path), flops.get(path), memory.get(path)) for path in paths)
    return Measures(rows=tuple(rows), notes=notes)


def _row(
    path: str, time: ModuleTime | None, flops: ModuleFlops | None, memory: ModuleMemory | None
) -> ModuleMeasure:
    forward = time.forward if time else None
    backward = time.backward if time else None
    return ModuleMeasure(
        path=path,
        calls=time.calls if time else flops.calls if flops else 0,
        total_forward_ns=forward.total_ns if forward else None,
        self_forward_ns=forward.self_ns if forward else None,
        total_backward_ns=backward.total_ns if backward else None,
        self_backward_ns=backward.self_ns if backward else None,
        total_forward_flops=flops.forward.total_flops if flops else None,
        self_forward_flops=flops.forward.self_flops if flops else None,
        total_backward_flops=(flops.backward.total_flops if flops else 0) or None,
        self_backward_flops=(flops.backward.self_flops if flops else 0) or None,
        total_activation_bytes=memory.total.activation_bytes if memory else None,
        self_activation_bytes=memory.own.activation_bytes if memory else None,
        total_peak_bytes=memory.total.peak_bytes if memory else None,
        gradient_bytes=memory.total.gradient_bytes if memory else None,
    )

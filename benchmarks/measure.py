"""CPU time and memory, measured so that a busy machine disturbs them least.

CPU time, because the wall clock runs on while others have the processor. Contenders take turns,
because what disturbs lasts longer than a turn: it meets all of them, and the ratio within a round
stays.
"""

from __future__ import annotations

import ctypes
import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch

Result = TypeVar("Result")
Times = dict[str, list[float]]
"""CPU seconds by contender, round by round."""

PATIENCE = 20.0
"""After so many CPU seconds no further round begins."""


def cpu_seconds(run: Callable[[], object]) -> float:
    """What one run costs; throwing away what it returns is not part of it."""
    gc.collect()
    start = time.process_time()
    result = run()
    end = time.process_time()
    del result
    return end - start


def in_turns(contenders: Mapping[str, Callable[[], object]], rounds: int) -> Times:
    """CPU seconds of each contender, round by round, after one that warms up."""
    names = list(contenders)
    times: Times = {name: [] for name in names}
    started = time.process_time()
    for name in names:
        contenders[name]()
    for number in range(rounds):
        if number and time.process_time() - started > PATIENCE:
            break
        # Each round begins with another one, so that none always comes after the same.
        for place in range(len(names)):
            name = names[(number + place) % len(names)]
            times[name].append(cpu_seconds(contenders[name]))
    return times


def keep_freed_memory() -> None:
    """Let malloc give no memory back to the system from now on.

    Whether it does depends on what lies at the end of its heap, which is a matter of chance; in
    rounds after which it did, others pay for the same pages again.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def ratios(times: Sequence[float], baseline: Sequence[float]) -> list[float]:
    """How many times the baseline, round by round."""
    return [time / base for time, base in zip(times, baseline, strict=True)]


def times_baseline(times: Times, baseline: str) -> Times:
    """The milliseconds of one contender, and how many times that the others take."""
    base = times[baseline]
    others = {name: ratios(of_one, base) for name, of_one in times.items() if name != baseline}
    return {baseline: [1e3 * seconds for seconds in base], **others}


def first_run_cost(run: Callable[[], object]) -> float:
    """CPU seconds that the first run costs over the later ones."""
    first = cpu_seconds(run)
    return first - statistics.median(cpu_seconds(run) for _ in range(5))


def peak_bytes(run: Callable[[], Result]) -> tuple[Result, int]:
    """What a run returns, and how much memory the process held at most, over what it had before."""
    gc.collect()
    # What the allocator keeps for later would hide as much of what the run needs.
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _status_bytes("VmRSS")
    result = run()
    return result, _status_bytes("VmHWM") - before


def storage_bytes(tensors: Iterable[torch.Tensor], besides: Iterable[torch.Tensor] = ()) -> int:
    """The bytes of the distinct storages that tensors lie in, but for those of some others."""
    sizes = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
    for tensor in besides:
        sizes.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(sizes.values())


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise OSError(f"this system does not tell {field}")

"""Counts what the program makes a device do, and where in the source it does so.

    with DeviceCounter() as seen:
        train()
    seen.waits, seen.launches, seen.copies, seen.lines

`waits` are those that come from torchglass. On a real GPU torch's own warnings about waits and its
profiler are counted.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections import Counter
from types import TracebackType
from typing import Any, final

from tests.device import simulated_cuda

PACKAGE = f"{os.sep}torchglass{os.sep}capture{os.sep}"


@final
class DeviceCounter:
    """Counts launches, copies and waits until the block ends."""

    def __init__(self, *, launches: bool = False) -> None:
        """With `launches`, also the lines that launch are kept, which takes longer."""
        self._keeps_launches = launches
        self.lines: Counter[str] = Counter()
        """The lines of torchglass that waited for the device."""
        self.launch_lines: Counter[str] = Counter()
        self.forbidden: Counter[str] = Counter()
        self.races: Counter[str] = Counter()
        self.others: Counter[str] = Counter()
        """Waits of the program itself."""
        self.threads: Counter[str] = Counter()
        self.launches = 0
        self.copies = 0
        self.events = 0

    @property
    def waits(self) -> int:
        """How often torchglass waited for the device."""
        return self.lines.total()

    def __enter__(self) -> DeviceCounter:
        if simulated_cuda.device is not None:
            simulated_cuda.device.start_counting(self._note)
        else:
            self._start_real()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if simulated_cuda.device is None:
            self._stop_real()
            return
        for (what, op), number in simulated_cuda.device.stop_counting().items():
            if what == "launch":
                self.launches += number
            elif what == "copy":
                self.copies += number
            elif what == "event":
                self.events += number
            elif what == "race":
                self.races[op] += number

    def _note(self, kind: str, what: str) -> None:
        if kind == "launch" and not self._keeps_launches:
            return
        line = _line_of_ours()
        if kind == "wait":
            self.threads[threading.current_thread().name] += 1
            if line is None:
                self.others[what] += 1
            else:
                self.lines[f"{line}: {what}"] += 1
        elif kind == "forbidden":
            self.forbidden[f"{line}: {what}"] += 1
        elif kind == "launch" and line is not None:
            self.launch_lines[f"{line}: {what}"] += 1

    def _start_real(self) -> None:
        import torch

        self._caught = warnings.catch_warnings(record=True)
        self._warnings = self._caught.__enter__()
        warnings.simplefilter("always")
        self._before = torch.cuda.get_sync_debug_mode()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("warn")
        self._profiler: Any = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CUDA]
        )
        self._profiler.start()

    def _stop_real(self) -> None:
        import torch

        self._profiler.stop()
        torch.cuda.set_sync_debug_mode(self._before)
        self._caught.__exit__(None, None, None)
        for one in self._warnings or ():
            if "synchronizing CUDA operation" in str(one.message):
                ours = PACKAGE in one.filename
                (self.lines if ours else self.others)[f"{one.filename}:{one.lineno}"] += 1
        for event in self._profiler.events():
            if "Memcpy" in event.name:
                self.copies += 1
            else:
                self.launches += 1


def _line_of_ours() -> str | None:
    """The innermost line of torchglass that the program is in."""
    try:
        frame: Any = sys._getframe(2)
    except ValueError:  # A thread of autograd with no Python below.
        return None
    while frame is not None:
        name = frame.f_code.co_filename
        if PACKAGE in name:
            return f"{name.partition(PACKAGE)[2]}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back
    return None

"""Errors planted in our own functions while a training runs, and what must not come of them."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeVar

import torch

import torchglass
from tests.conftest import traces_of_us
from torchglass.capture import module_calls

T = TypeVar("T")

OURS = str(Path(torchglass.__file__).parent)
_IN_BETWEEN = {"contextlib.py", "functools.py", "weakref.py", "threading.py", "_weakrefset.py"}
_FENCES = {"Fence", "LockedFence", "undo_reliably", "warn", "_where_ours", "_level_of_user"}
"""What turns an error into a warning is itself not expected to fail."""

_CHECKS = {"errors.py", "_expect_level", "attach"}
_CHECKS |= {"InspectorGadgets._running"}
"""What runs when a verb is called with wrong arguments, before anything is changed, may raise."""

BLOCK_FILES = (
    *("torchglass/errors.py", "capture/module_calls.py"),
    *("capture/torch_modes.py", "capture/isolated_run.py"),
    *("guard/guard.py", "observe/recorder.py"),
    *("watch/activations.py", "trace/assemble.py", "measure/flops.py"),
    *("classic/inspector_gadgets.py", "watch/watcher.py"),
    *("watch/module_flow.py", "api/trace.py", "contextlib.py"),
)
"""Where our blocks begin and end: everything else of ours changes nothing that must be put back."""
_SOURCES = [path.as_posix() for path in Path(OURS).rglob("*.py")] + [contextlib.__file__]
assert all(any(path.endswith(name) for path in _SOURCES) for name in BLOCK_FILES), "a file moved"

Training = Callable[[], Any]


class PlantedError(RuntimeError):
    pass


class Place(NamedTuple):
    """A function of ours, and at which of its calls it fails."""

    code: CodeType
    call: int

    def __str__(self) -> str:
        file = Path(self.code.co_filename).relative_to(OURS)
        return f"{file}:{self.code.co_qualname} at call {self.call}"  # type: ignore[attr-defined]


def spread(items: Sequence[T], most: int) -> Sequence[T]:
    """As many of some items, evenly spread; all if TORCHGLASS_ALL_FAULTS is set."""
    if "TORCHGLASS_ALL_FAULTS" in os.environ or len(items) <= most:
        return items
    return [items[index * len(items) // most] for index in range(most)]


def is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(OURS)


def is_below_an_entry(frame: FrameType) -> bool:
    """Whether a function of ours was called by another one, and not by torch or the user."""
    above = frame.f_back if is_ours(frame.f_code) else frame
    while above is not None and Path(above.f_code.co_filename).name in _IN_BETWEEN:
        above = above.f_back
    return above is not None and is_ours(above.f_code)


def is_exempt(code: CodeType) -> bool:
    if code.co_name == "error_line":
        return False
    if code.co_name.startswith("<"):
        # A comprehension fails as the function around it does.
        return True
    if code.co_qualname in _CHECKS or Path(code.co_filename).name in _CHECKS:  # type: ignore[attr-defined]
        return True
    return any(part in _FENCES for part in code.co_qualname.split("."))  # type: ignore[attr-defined]


def places_of(training: Training) -> list[Place]:
    """All functions of ours that run in a training, at their first and at a later call."""
    counts: Counter[CodeType] = Counter()

    def count(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and is_ours(code) and not is_exempt(code) and is_below_an_entry(frame):
            counts[code] += 1

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        training()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return [
        Place(code, call)
        for code, total in counts.items()
        for call in sorted({1, total // 2 + 1} if total > 1 else {1})
    ]


def plant(place: Place, training: Training) -> tuple[Any, bool]:
    """Run a training in which a function fails once: its result, and whether it has failed."""
    left = place.call
    failed = False

    def trace(frame: FrameType, event: str, argument: object) -> None:
        nonlocal left, failed
        if frame.f_code is place.code and is_below_an_entry(frame):
            left -= 1
            if not left:
                failed = True
                raise PlantedError("planted")

    hook, sys.unraisablehook = sys.unraisablehook, _ignore_planted
    try:
        return run_traced(training, trace), failed
    finally:
        sys.unraisablehook = hook


def run_traced(work: Callable[[], T], trace: Callable[[FrameType, str, Any], Any]) -> T:
    """Run something with a trace function; whoever measures coverage goes on afterwards."""
    before, before_in_threads = sys.gettrace(), threading.gettrace()
    threading.settrace(trace)
    sys.settrace(trace)
    try:
        return work()
    finally:
        sys.settrace(before)
        threading.settrace(before_in_threads)


def _ignore_planted(unraisable: Any) -> None:
    """What fails while Python frees an object reaches nobody."""
    if not isinstance(unraisable.exc_value, PlantedError):
        sys.__unraisablehook__(unraisable)


def left_behind(model: torch.nn.Module) -> dict[str, Any]:
    """All that a block of ours may change for as long as it lasts."""
    our_threads = [t for t in threading.enumerate() if t.name.startswith("torchglass")]
    # A page is served until the program ends, also that of an earlier test.
    our_threads = [thread for thread in our_threads if thread.name != "torchglass-page"]
    for thread in our_threads:
        thread.join(60)
    return {
        **(traces_of_us() or {}),
        "threads": [thread for thread in our_threads if thread.is_alive()],
        "recursion limit": sys.getrecursionlimit(),
        "observers": dict(module_calls._observers),
        "collector": gc.isenabled(),
        "torch functions": torch._C._is_torch_function_enabled(),
        "hooks": [len(p._backward_hooks or ()) for p in model.parameters()],
        "module hooks": [len(m._forward_hooks) + len(m._backward_hooks) for m in model.modules()],
        "inference": torch.is_inference_mode_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "flags": [module.training for module in model.modules()],
    }


def flat(nest: Any) -> Iterator[Any]:
    if isinstance(nest, torch.Tensor):
        yield nest.tolist()
    elif isinstance(nest, (list, tuple)):
        for item in nest:
            yield from flat(item)
    else:
        yield nest

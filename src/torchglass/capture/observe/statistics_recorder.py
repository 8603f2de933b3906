"""Records statistics of module calls for the length of a with-block.

with recording_statistics(model) as recorder:
        model(x)
    recorder.module("encoder.0")[-1].out_mean

Tensors are read before a module runs and after it, and none of them is held. The clock stands
still meanwhile: what a call took is without the time spent on reading, its own and that of all
calls inside of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchglass.blocks import surely, unbroken
from torchglass.capture.hidden_from_modes import quietly
from torchglass.capture.measure.clocks import waiting
from torchglass.capture.model.class_names import class_name
from torchglass.capture.model.live_modules import modules_in
from torchglass.capture.module_calls import observe_calls
from torchglass.capture.nested_tensors import named_tensors, tensors_of_call
from torchglass.capture.observe.call_history import Call, History, Seen
from torchglass.capture.observe.tensor_reading import Reader
from torchglass.capture.torch_internals import dispatch_mode_count, function_mode_count
from torchglass.errors import CaptureError, Fence, TargetError
from torchglass.records.calls import ForwardStats, Level, ModuleStatistics
from torchglass.records.model import join_path

Ended = Callable[[list[ForwardStats]], None]

_LEVELS = ("full", "cheap", "shapes")


@unbroken
def recording_statistics(
    target: object,
    *,
    level: Level = "full",
    keep: int = 100,
    budget_bytes: int = 0,
    ended: Ended | None = None,
) -> Iterator[StatisticsRecorder]:
    """Take down the calls of all modules in a model, a pipeline or a list, until the block ends."""
    if level not in _LEVELS:
        raise CaptureError(f"level is one of {', '.join(_LEVELS)}, not {level!r}")
    if keep < 1:
        raise CaptureError(f"keep is 1 or more, not {keep}")
    if budget_bytes < 0:
        raise CaptureError(f"tensors is True or how many bytes to keep, not {budget_bytes}")
    modules = modules_in(target)
    if not modules:
        raise TargetError(f"{type(target).__qualname__} is not a model; pass an nn.Module")
    recorder = StatisticsRecorder(
        modules, level=level, keep=keep, budget_bytes=budget_bytes, ended=ended
    )
    try:
        with observe_calls(recorder):
            yield recorder
    finally:
        surely(recorder.close)


class StatisticsRecorder:
    """Takes down what goes into the modules it is given and what comes out, call by call.

    A module that one of them calls without holding it is shown below it, as "encoder.<Linear>".
    `ended` is given the calls of each forward pass, in the order in which they ended.
    """

    def __init__(
        self,
        modules: Iterable[tuple[str, nn.Module]],
        *,
        level: Level = "full",
        keep: int = 100,
        budget_bytes: int = 0,
        ended: Ended | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.thread = threading.get_ident()
        self.level = level
        self.keep = keep
        self.forward_count = 0
        self._reader = Reader(level, budget_bytes)
        self._read = self._reader.read
        # The modules are kept, so that no other object gets the id of one of them.
        self._modules = dict(modules)
        self._paths = {id(module): path for path, module in self._modules.items()}
        self._histories: dict[int, History] = {}
        self._called: dict[str, History] = {}
        self._class_names: dict[str, str] = {}
        self._open: list[Call] = []
        self._lost_ns = 0
        self._clock = clock
        # Statistics have to wait for a device anyway.
        self._wait = None if level == "shapes" else waiting()
        self._ended = ended
        self._untold: list[Call] = []
        self._fence = Fence("some statistics were not recorded")

    @property
    def paths(self) -> list[str]:
        """The paths of the modules that were called, in the order of their first calls."""
        return list(self._called)

    @property
    def left_out(self) -> int:
        """How many tensors the budget had no room for."""
        return self._reader.left_out

    def module(self, path: str) -> ModuleStatistics:
        """What one of the called modules did."""
        return self._called[path].record(self._class_name(path))

    def tensors(self, path: str) -> Iterator[tuple[int, str, torch.Tensor]]:
        """The copies of a module's tensors that were kept: number of the call, place, tensor."""
        for call in self._called[path].kept:
            for place, tensor in call.tensors():
                yield call.number, place, tensor

    def close(self) -> None:
        """Let go of the model, once no more calls will be shown."""
        self._class_names = {path: self._class_name(path) for path in self._called}
        self._modules.clear()
        self._paths.clear()
        self._histories.clear()
        self._reader.forget()
        self._reader.finish()

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
        """Read what goes into a call that begins, and say how deep it is."""
        began_ns = self._clock()
        depth = len(self._open)
        try:
            history = self._histories.get(id(module)) or self._history(module)
            if history is None:
                return depth
            if not depth:
                self.forward_count += 1
                self._reader.forget()
            history.begun += 1
            if (
                len(args) == 1
                and not kwargs
                and type(args[0]) is Tensor
                and not function_mode_count()
                and not dispatch_mode_count()
            ):
                inputs: Seen = self._read(args[0])
            else:
                inputs = self._read_all(tensors_of_call(args, kwargs))
            call = Call(history, history.begun, self.forward_count, inputs)
            self._open.append(call)
            call.start_ns = self._clock()
            call.lost_ns = self._lost_ns = self._lost_ns + call.start_ns - began_ns
        except Exception as problem:  # noqa: BLE001 - no error of ours may stop the user's forward
            self._fence.caught(problem)
        return depth

    def leave(self, depth: int, output: Any = None, error: BaseException | None = None) -> None:
        """Read what came out of the call at a depth, or take down that it raised."""
        if len(self._open) <= depth:
            return
        call = self._open[depth]
        # Whatever is deeper never got to its own end, as when an interrupt came in between.
        del self._open[depth:]
        end_ns = call.start_ns
        try:
            if self._wait is not None:
                self._wait()
            end_ns = self._clock()
            call.total_ns = end_ns - call.start_ns - (self._lost_ns - call.lost_ns)
            call.error = "" if error is None else type(error).__name__
            if depth:
                self._open[-1].children_ns += call.total_ns
            if type(output) is Tensor and not function_mode_count() and not dispatch_mode_count():
                call.outputs = self._read(output)
            else:
                call.outputs = self._read_all(named_tensors(output))
            call.history.add(call)
            if self._ended is not None:
                self._tell_of(call, is_last=not depth)
        except Exception as problem:  # noqa: BLE001 - no error of ours may stop the user's forward
            self._fence.caught(problem)
        self._lost_ns += self._clock() - end_ns

    def _read_all(self, located: Iterable[tuple[str, torch.Tensor]]) -> Seen:
        try:
            with quietly():
                return tuple((place, self._reader.read(tensor)) for place, tensor in located)
        except Exception as problem:  # noqa: BLE001 - a call without its tensors is still a call
            self._fence.caught(problem)
            return ()

    def _history(self, module: nn.Module) -> History | None:
        """The history of a module that is called first, or is not in the model but called by it."""
        path = self._paths.get(id(module))
        is_stray = path is None
        if path is None:
            if not self._open:
                return None
            path = join_path(self._open[-1].history.path, f"<{type(module).__name__}>")
        history = self._called.get(path)
        if history is None:
            history = self._called[path] = History(path, self._reader, self.keep)
        if not is_stray:
            self._histories[id(module)] = history
        return history

    def _tell_of(self, call: Call, *, is_last: bool) -> None:
        self._untold.append(call)
        if is_last and self._ended is not None:
            untold, self._untold = self._untold, []
            self._reader.finish()
            self._ended([call.record() for call in untold])

    def _class_name(self, path: str) -> str:
        """The class of a called module; the path of one that is not in the model says it."""
        if path not in self._class_names:
            module = self._modules.get(path)
            name = path if module is None else class_name(module)
            self._class_names[path] = name.rpartition(".")[2].strip("<>")
        return self._class_names[path]

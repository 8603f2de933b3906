"""Records the calls of several models, forward and backward, in the user's loop.

recorder = InspectionRecorder([model])
    with observe_calls(recorder):
        model(x).sum().backward()
    recorder.close()

Nothing is put on the models, and the clock stands still while tensors are read. The hooks on nodes
of autograd go when the recorder is closed.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from torchglass.blocks import surely, uninterrupted
from torchglass.capture.autograd import is_in_backward
from torchglass.capture.hidden_from_modes import quietly
from torchglass.capture.measure.allocators import gauge_for
from torchglass.capture.measure.clocks import StandingClock, waiting
from torchglass.capture.model.class_names import class_name
from torchglass.capture.model.live_modules import modules_in, tensors_of
from torchglass.capture.nested_tensors import named_tensors, tensors_of_call
from torchglass.capture.observe.backward import Graph, Watch
from torchglass.capture.observe.module_call import Call, Home, Located
from torchglass.capture.observe.tensor_reading import Reader
from torchglass.capture.restore_state import has_compiled
from torchglass.errors import Fence
from torchglass.records.model import join_path


class Watched(NamedTuple):
    """What is taken down."""

    forward: bool = True
    backward: bool = True
    values: bool = True
    """Tensors and gradients: their shapes, and NaN and Inf in them."""
    memory: bool = True
    depth: int | None = None
    """How many levels below the model are looked at."""
    keep: int = 100
    """How many calls of each module are held."""


EVERYTHING = Watched()


class InspectionRecorder:
    """Takes down what the modules of some models do, call by call."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        watched: Watched = EVERYTHING,
        *,
        tick: Callable[[], None] | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.thread = threading.get_ident()
        self.watched = watched
        self.passes = [0] * len(models)
        self.homes: dict[tuple[int, str], Home] = {}
        self._modules: dict[int, tuple[nn.Module, dict[int, str]]] = {}
        located = []
        for index, model in enumerate(models):
            for path, module in modules_in(model):
                # The modules are kept, so that no other object gets the id of one of them.
                self._modules.setdefault(id(module), (module, {}))[1][index] = path
                located.append((path, module))
        tensors = tensors_of(located)
        self._clock = StandingClock(clock)
        # Only when the device is done has a module done its work.
        self._wait = waiting() or _no_wait
        self._reader = Reader("full") if watched.values else None
        # Below a dispatch mode compiled code is not what it is without.
        self.weighs = watched.memory and not has_compiled(module for _, module in located)
        self._gauge = gauge_for(tensors, self._clock) if self.weighs else None
        self._watching = contextlib.ExitStack()
        self._fence = Fence("some of the inspection was lost")
        self._watch = Watch(self._clock, self._wait, self._reader, self._gauge, self._fence)
        self._graph = Graph(self._watch, tensors) if watched.backward else None
        self._open: list[Call] = []
        self._tick = tick

    @property
    def gradient_bytes(self) -> Mapping[int, int]:
        """What the gradients of parameters took when they came, by the ids of the parameters."""
        return self._watch.gradient_bytes

    def rest(self) -> None:
        """Say that what comes next has nothing to do with what was last."""
        if not is_in_backward():
            self._watch.rest()

    def finish_reading(self) -> None:
        """Work out all statistics that were put off."""
        if self._reader is not None:
            self._reader.finish()

    def close(self) -> None:
        """Let go of the models and of all graphs, once no more calls will be shown."""
        self._stop_watching()
        with self._fence:
            self._watch.rest()
        self._watch.is_active = False
        if self._graph is not None:
            surely(self._graph.close)
        with self._fence:
            self.finish_reading()
        if self._reader is not None:
            self._reader.forget()
        self._modules.clear()
        self._open.clear()

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
        """A call begins; how deep it is."""
        depth = len(self._open)
        try:
            with self._clock:
                call = self._entered(module, args, kwargs)
                if call is not None:
                    self._open.append(call)
                    self._wait()
            if call is not None:
                call.start_ns = self._clock.now()
        except Exception as problem:  # noqa: BLE001 - our errors must not stop a forward
            self.missed(problem)
        return depth

    def leave(self, depth: int, output: Any = None, error: BaseException | None = None) -> None:
        """The call at a depth returned or raised."""
        if len(self._open) <= depth:
            return
        call = self._open[depth]
        # Whatever is deeper never got to its own end, as when an interrupt came in between.
        del self._open[depth:]
        try:
            self._wait()
            end_ns = self._clock.now()
            with self._clock:
                if not depth:
                    self._stop_watching()
                self._end(call, end_ns, output, error)
        except Exception as problem:  # noqa: BLE001 - our errors must not stop a forward
            self.missed(problem)
        finally:
            if not depth:
                self._stop_watching()

    def _stop_watching(self) -> None:
        with uninterrupted():
            surely(self._watching.close)

    def missed(self, problem: Exception) -> None:
        """An error of ours: something is missing."""
        self._fence.caught(problem)

    def _entered(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Call | None:
        """The call that begins, with what it is given; None if the module is not watched."""
        home = self._home(module)
        if home is None:
            return None
        call = self._begin(home)
        located = list(tensors_of_call(args, kwargs))
        if self.watched.forward:
            call.inputs = self._read(located)
        if self._graph is not None:
            self._graph.enter(call, located)
        if self._gauge is not None:
            if not self._open:
                with uninterrupted():
                    self._watching.enter_context(self._gauge.watching())
            call.start_bytes = self._gauge.total_bytes
        return call

    def _begin(self, home: Home) -> Call:
        parent = self._open[-1] if self._open else None
        recomputed = parent.recomputed if parent else is_in_backward()
        if parent is None and not recomputed:
            self.passes[home.model] += 1
            self._watch.rest()
            if self._reader is not None:
                self._reader.forget()
        forward_pass = self.passes[home.model]
        if parent is None and recomputed and home.calls:
            # Autograd runs it again: it is still part of whoever called it in the forward.
            before = next((c for c in reversed(home.calls) if not c.recomputed), home.calls[-1])
            parent, forward_pass = before.parent, before.forward_pass
        call = Call(home, parent, forward_pass)
        call.recomputed = recomputed
        return call

    def _end(self, call: Call, end_ns: int, output: Any, error: BaseException | None) -> None:
        outer = self._open[-1] if self._open else None
        call.total_ns = end_ns - call.start_ns
        call.error = "" if error is None else type(error).__name__
        if outer is not None:
            outer.children_ns += call.total_ns
        elif call.recomputed:
            self._watch.spend_inside(call.total_ns)
        if call.recomputed:
            call.charge_time(call.self_ns)
        if self.watched.forward:
            if self._gauge is not None:
                call.added_bytes = self._gauge.total_bytes - call.start_bytes
            call.outputs = self._read(named_tensors(output))
        call.home.add(call)
        if self._graph is not None:
            self._graph.leave(call, outer, output)
        if self._tick is not None:
            self._tick()

    def _read(self, located: Iterable[tuple[str, torch.Tensor]]) -> Located:
        if self._reader is None:
            return {}
        with quietly():
            return {place: self._reader.read(tensor) for place, tensor in located}

    def _home(self, module: nn.Module) -> Home | None:
        """Where a module is, or who called it if it is in no model; None if it is not watched."""
        inside = self._open[-1].home if self._open else None
        _, places = self._modules.get(id(module), (None, {}))
        if places:
            model = inside.model if inside and inside.model in places else next(iter(places))
            path = places[model]
        elif inside is not None:
            model, path = inside.model, join_path(inside.path, f"<{type(module).__name__}>")
        else:
            return None
        limit = self.watched.depth
        if limit is not None and depth_of(path) > limit:
            return None
        home = self.homes.get((model, path))
        if home is None:
            kind = class_name(module).rpartition(".")[2]
            home = self.homes[model, path] = Home(model, path, kind, self.watched.keep)
        return home


def _no_wait() -> None:
    return None


def depth_of(path: str) -> int:
    """How many levels below the model a path is."""
    return path.count(".") + 1 if path else 0

"""The graph of a training: each new kind of pass is traced once, as it runs.

Whether a pass took a new path is known only when it is over. The next passes are traced until one
takes that path. The graph is the union of all traced passes, and counts all observed ones.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from torchglass.analyse.call_graph import call_graph, union
from torchglass.analyse.signatures import facts_of
from torchglass.capture.torch_modes import fused_paths_kept, mode_on
from torchglass.capture.trace.assemble import Assembly, finish
from torchglass.capture.trace.op_mode import OpEvent, OpMode
from torchglass.capture.trace.pass_recorder import Event, PassRecorder
from torchglass.capture.trace.saved_tensors import Snapshots
from torchglass.errors import deferred_signals, undo_reliably
from torchglass.records.model import Model
from torchglass.records.trace import Graph, OpId, TraceRecord

Shape = tuple[tuple[int, str, tuple[str, ...]], ...]
"""For each call: its depth, its path and the positions of its input tensors."""

_MOST_SHAPES = 32
"""The most different paths that are traced; a model may take a new path every time."""
_MOST_TRIES = 32
"""The most passes that are traced to find one path again."""


class _Tracing:
    """A pass that is being traced."""

    def __init__(self, model: nn.Module, probe: Callable[[OpEvent], None] | None) -> None:
        self._assembly = Assembly(model, lambda op, calls: False)
        self._probe = probe
        self.recorder = PassRecorder(model, keep=self._keep)
        # No tensor is kept, so nothing must be copied before it is overwritten.
        self.recorder.snapshots = Snapshots(())
        self.recorder.before_write = _nothing  # type: ignore[method-assign]
        self._attached: dict[OpId, str] = {}
        self._modes = contextlib.ExitStack()
        try:
            self._modes.enter_context(fused_paths_kept())
            self._modes.enter_context(mode_on(OpMode(self.recorder)))
        except BaseException:
            self._modes.close()
            raise

    def _keep(self, number: int, event: Event) -> bool:
        if self._probe is not None and isinstance(event, OpEvent):
            self._probe(event)
        return self._assembly.add(number, event)

    def attached(self, name: str) -> None:
        """The last op created a named tensor."""
        if self._assembly.ops:
            self._attached[self._assembly.ops[-1].id] = name

    def stop(self) -> None:
        """Stop observing ops."""
        self._modes.close()

    def trace(self) -> TraceRecord:
        """What was seen."""
        return finish(self._assembly, self.recorder).trace

    def graph(self, trace: TraceRecord, facts: Mapping[str, Mapping[str, str]]) -> Graph:
        """The graph of what was seen."""
        return call_graph(trace, facts=facts, attached=self._attached)


def _nothing(written: tuple[torch.Tensor, ...]) -> None:
    """A placeholder for copies that are not needed."""


class PassGraphs:
    """Observes the calls of recorded passes, and keeps the graph of a run up to date."""

    def __init__(
        self,
        model: nn.Module,
        record: Model,
        put: Callable[[Graph], None],
        see_trace: Callable[[TraceRecord], None] | None = None,
    ) -> None:
        """`see_trace` gets each traced pass."""
        self._model = weakref.ref(model)
        self._facts = {module.path: facts_of(module.extra) for module in record.modules}
        self._put = put
        self._see_trace = see_trace
        self._graphs: dict[Shape, Graph] = {}
        self._seen: Counter[Shape] = Counter()
        self._untraced: set[Shape] = set()
        self._tracing: _Tracing | None = None
        self._tries = 0
        """How many passes were traced since a new path was found."""
        self._is_stale = False
        self._arguments: set[tuple[str, ...]] = set()
        """The positions of the input tensors of traced passes."""

    def begin(
        self,
        *,
        training: bool,
        arguments: tuple[str, ...] = (),
        probe: Callable[[OpEvent], None] | None = None,
        is_wanted: bool = False,
    ) -> bool:
        """A pass begins with tensors at these places; whether its calls are to be shown.

        If it is wanted or has a `probe`, which is given each operation, it is traced in any case.
        """
        self.stop()
        self._tracing = None
        model = self._model()
        is_new = self._wants_to_trace(arguments)
        if model is not None and (is_new or is_wanted or probe is not None):
            self._arguments.add(arguments)
            self._tries += is_new
            with deferred_signals():
                self._tracing = _Tracing(model, probe)
        return self._tracing is not None

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
        """A call of the traced pass begins."""
        return self._tracing.recorder.enter(module, args, kwargs) if self._tracing else 0

    def leave(self, depth: int, output: Any = None, error: BaseException | None = None) -> None:
        """A call of the traced pass ended; the outermost one ends the tracing."""
        if self._tracing is not None:
            try:
                self._tracing.recorder.leave(depth, output, error)
            finally:
                if depth == 0:
                    self.stop()

    def stop(self) -> None:
        """Stop observing ops of the traced pass."""
        if self._tracing is not None:
            with deferred_signals():
                undo_reliably(self._tracing.stop)

    def attached(self, name: str) -> None:
        """The last created tensor got a name."""
        if self._tracing is not None:
            self._tracing.attached(name)

    def end(self, shape: Shape | None) -> None:
        """The pass ended and took this path; None if it raised."""
        self.stop()
        tracing, self._tracing = self._tracing, None
        if shape is None:
            return
        self._seen[shape] += 1
        self._is_stale = True
        if tracing is not None:
            trace = tracing.trace()
            if self._see_trace is not None:
                self._see_trace(trace)
            if shape in self._graphs:
                return
            self._graphs[shape] = tracing.graph(trace, self._facts)
            self._untraced.discard(shape)
            self.write()
        elif shape not in self._graphs and len(self._untraced) < _MOST_SHAPES:
            self._untraced.add(shape)
            self._tries = 0

    def write(self) -> None:
        """Write the graph as it is now."""
        self._is_stale = False
        whole: Graph | None = None
        for shape, graph in self._graphs.items():
            whole = union(whole, graph, times=self._seen[shape])
        if whole is not None:
            self._put(whole)

    def close(self) -> None:
        """Write the final graph."""
        self.stop()
        if self._is_stale:
            self.write()

    def _wants_to_trace(self, arguments: tuple[str, ...]) -> bool:
        has_new = bool(self._untraced) and self._tries < _MOST_TRIES
        # The inputs of a pass are known when it begins, so it need not occur twice.
        has_new = has_new or arguments not in self._arguments
        return (has_new or not self._graphs) and len(self._graphs) < _MOST_SHAPES

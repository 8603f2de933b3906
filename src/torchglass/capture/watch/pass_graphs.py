"""The graph of a training: each new kind of pass is traced once, as it runs.

That a pass has a new shape is known when it is over. The passes after it are traced until one of
them has that shape; the graph is the union of all that were traced, and counts all that were seen.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from torchglass.analyse.graph.call_graph import call_graph, union
from torchglass.analyse.signatures import facts_of
from torchglass.blocks import deferred_signals, undo_reliably
from torchglass.capture.torch_modes import fused_paths_kept, mode_on
from torchglass.capture.trace.assemble import Assembly, finish
from torchglass.capture.trace.op_mode import OpEvent, OpMode
from torchglass.capture.trace.pass_recorder import Event, PassRecorder
from torchglass.capture.trace.saved_tensors import Snapshots
from torchglass.records.graph import Graph
from torchglass.records.model import Model
from torchglass.records.trace import OpId, TraceRecord

Shape = tuple[tuple[int, str, tuple[str, ...]], ...]
"""The depth, the path and the places of the tensors that were given, of each call."""

_MOST_SHAPES = 32
"""So many shapes of passes are traced; a model that always takes another way has no end of them."""
_MOST_TRIES = 32
"""So many passes are traced to meet one shape again."""


class _Tracing:
    """A pass that is being traced."""

    def __init__(self, model: nn.Module, probe: Callable[[OpEvent], None] | None) -> None:
        self._assembly = Assembly(model, lambda op, calls: False)
        self._probe = probe
        self.recorder = PassRecorder(model, keep=self._keep)
        # No tensor is kept, so there is nothing to be saved from being written over.
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
        """The last op made a tensor that has a name."""
        if self._assembly.ops:
            self._attached[self._assembly.ops[-1].id] = name

    def stop(self) -> None:
        """See no more ops."""
        self._modes.close()

    def trace(self) -> TraceRecord:
        """What was seen."""
        return finish(self._assembly, self.recorder).trace

    def graph(self, trace: TraceRecord, facts: Mapping[str, Mapping[str, str]]) -> Graph:
        """The graph of what was seen."""
        return call_graph(trace, facts=facts, attached=self._attached)


def _nothing(written: tuple[torch.Tensor, ...]) -> None:
    """Takes the place of copies that nobody wants."""


class PassGraphs:
    """Looks at the calls of recorded passes, and keeps the graph of a run up to date."""

    def __init__(
        self,
        model: nn.Module,
        record: Model,
        put: Callable[[Graph], None],
        see_trace: Callable[[TraceRecord], None] | None = None,
    ) -> None:
        """`see_trace` is given each pass that was traced."""
        self._model = weakref.ref(model)
        self._facts = {module.path: facts_of(module.extra) for module in record.modules}
        self._put = put
        self._see_trace = see_trace
        self._graphs: dict[Shape, Graph] = {}
        self._seen: Counter[Shape] = Counter()
        self._untraced: set[Shape] = set()
        self._tracing: _Tracing | None = None
        self._tries = 0
        """How many passes were traced since a new shape was found."""
        self._is_stale = False
        self._arguments: set[tuple[str, ...]] = set()
        """The places of the tensors that traced passes were given."""

    def begin(
        self,
        *,
        training: bool,
        arguments: tuple[str, ...] = (),
        probe: Callable[[OpEvent], None] | None = None,
    ) -> bool:
        """A pass begins with tensors at these places; whether its calls are to be shown.

        With a `probe` it is traced in any case, and the probe is given each operation.
        """
        self.stop()
        self._tracing = None
        model = self._model()
        is_new = self._wants_to_trace(arguments)
        if model is not None and (is_new or probe is not None):
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
        """See no more ops of the pass that is traced."""
        if self._tracing is not None:
            with deferred_signals():
                undo_reliably(self._tracing.stop)

    def attached(self, name: str) -> None:
        """The tensor that was made last was given a name."""
        if self._tracing is not None:
            self._tracing.attached(name)

    def end(self, shape: Shape | None) -> None:
        """The pass ended, and had this shape; None if it raised."""
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
        """Write what the graph has become."""
        self.stop()
        if self._is_stale:
            self.write()

    def _wants_to_trace(self, arguments: tuple[str, ...]) -> bool:
        has_new = bool(self._untraced) and self._tries < _MOST_TRIES
        # What a pass is given is known as it begins, so it need not come a second time.
        has_new = has_new or arguments not in self._arguments
        return (has_new or not self._graphs) and len(self._graphs) < _MOST_SHAPES

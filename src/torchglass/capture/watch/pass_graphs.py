"""The graph of a training: each new kind of pass is traced once, as it runs.

Whether a pass took a new path is known only when it is over. The next passes are traced until one
takes that path. The graph is the union of all traced passes, and counts all observed ones.

The operations of a pass can be probed without a trace. If they are other ones than before, the next
pass is traced.
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
from torchglass.capture.torch_internals import DisableTorchFunction
from torchglass.capture.torch_modes import fused_paths_kept, mode_on
from torchglass.capture.trace.assemble import Assembly, finish
from torchglass.capture.trace.op_mode import OpEvent, OpListener, OpMode
from torchglass.capture.trace.pass_recorder import Event, PassRecorder
from torchglass.capture.trace.saved_tensors import Snapshots
from torchglass.errors import Fence, deferred_signals, undo_reliably
from torchglass.records.model import Model
from torchglass.records.trace import Graph, OpId, TraceRecord

Shape = tuple[tuple[int, str, tuple[str, ...]], ...]
"""For each call: its depth, its path and the positions of its input tensors."""

_MOST_SHAPES = 32
"""The most different paths that are traced; a model may take a new path every time."""
_MOST_TRIES = 32
"""The most passes that are traced to find one path again."""

_fence = Fence("some operations were not measured")

Probe = Callable[[OpEvent], None]
"""Is given each operation of a pass."""


class _OpSequence:
    """The operations of a pass, by their functions, autograd nodes and dtypes.

    It is also the listener of a pass that is probed and not traced: no records are made.
    """

    current = None

    def __init__(self, probe: Probe | None) -> None:
        self._probe = probe
        self._kinds: list[tuple[object, ...]] = []

    def note(self, event: OpEvent) -> None:
        """An op ran."""
        self._kinds.append((event.function, event.grad_fn, getattr(event.output, "dtype", None)))
        if self._probe is not None:
            self._probe(event)

    def seen(self, event: OpEvent) -> Any:
        """An op ran; returns what its caller gets."""
        with DisableTorchFunction():
            self.note(event)
        return event.output

    def before_write(self, written: tuple[torch.Tensor, ...]) -> None:
        """No tensor is kept, so nothing must be copied before it is overwritten."""

    def failed(self, event: OpEvent, error: BaseException) -> None:
        """The pass ends with the exception."""

    def missed(self, problem: Exception) -> None:
        """Our own error at an op, which runs anyway."""
        _fence.caught(problem)

    def key(self) -> int:
        """The same for the same sequence."""
        return hash(tuple(self._kinds))


class _Tracing:
    """A pass that is being traced."""

    def __init__(self, model: nn.Module, sequence: _OpSequence) -> None:
        self._assembly = Assembly(model, lambda op, calls: False)
        self._sequence = sequence
        self.recorder = PassRecorder(model, keep=self._keep)
        # No tensor is kept, so nothing must be copied before it is overwritten.
        self.recorder.snapshots = Snapshots(())
        self.recorder.before_write = sequence.before_write  # type: ignore[method-assign]
        self._attached: dict[OpId, str] = {}

    def _keep(self, number: int, event: Event) -> bool:
        if isinstance(event, OpEvent):
            self._sequence.note(event)
        return self._assembly.add(number, event)

    def attached(self, name: str) -> None:
        """The last op created a named tensor."""
        if self._assembly.ops:
            self._attached[self._assembly.ops[-1].id] = name

    def trace(self) -> TraceRecord:
        """What was seen."""
        return finish(self._assembly, self.recorder).trace

    def graph(self, trace: TraceRecord, facts: Mapping[str, Mapping[str, str]]) -> Graph:
        """The graph of what was seen."""
        return call_graph(trace, facts=facts, attached=self._attached)


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
        self._sequence: _OpSequence | None = None
        self._sequences: set[int] = set()
        """The sequences of operations that were seen."""
        self._is_new_sequence = False
        """Whether one of them was not traced."""
        self._modes = contextlib.ExitStack()
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
        probe: Probe | None = None,
        is_wanted: bool = False,
    ) -> bool:
        """A pass begins with tensors at these places; whether its calls are to be shown.

        `probe` is given each operation. A pass with one is traced if it is wanted, or if the last
        such pass had operations that no pass had before.
        """
        self.stop()
        self._tracing = self._sequence = None
        model = self._model()
        is_new = self._wants_to_trace(arguments)
        is_traced = is_new or is_wanted or self._is_new_sequence
        if model is None or not (is_traced or probe is not None):
            return False
        self._sequence = _OpSequence(probe)
        if is_traced:
            self._arguments.add(arguments)
            self._tries += is_new
            self._is_new_sequence = False
            self._tracing = _Tracing(model, self._sequence)
        self._observe_ops(self._sequence if self._tracing is None else self._tracing.recorder)
        return is_traced

    def _observe_ops(self, listener: OpListener) -> None:
        with deferred_signals():
            try:
                self._modes.enter_context(fused_paths_kept())
                self._modes.enter_context(mode_on(OpMode(listener)))
            except BaseException:
                self._modes.close()
                raise

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
        """Stop observing the operations of the pass."""
        if self._sequence is not None:
            with deferred_signals():
                undo_reliably(self._modes.close)

    def attached(self, name: str) -> None:
        """The last created tensor got a name."""
        if self._tracing is not None:
            self._tracing.attached(name)

    def end(self, shape: Shape | None) -> None:
        """The pass ended and took this path; None if it raised."""
        self.stop()
        tracing, self._tracing = self._tracing, None
        sequence, self._sequence = self._sequence, None
        if shape is None:
            return
        if sequence is not None:
            self._learn_sequence(sequence.key(), is_traced=tracing is not None)
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

    def _learn_sequence(self, key: int, *, is_traced: bool) -> None:
        if key not in self._sequences and len(self._sequences) < _MOST_SHAPES:
            self._sequences.add(key)
            self._is_new_sequence = not is_traced

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

"""Captures a pass: turns what was recorded into calls and ops, and keeps the selected tensors."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import nn

from torchglass.analyse.trace import TraceStructure
from torchglass.capture.isolated_run import leave_unchanged
from torchglass.capture.tensor.description import (
    Args,
    Kwargs,
    named_tensors,
    tensors_by_argument,
    tensors_of_call,
)
from torchglass.capture.tensor.device_reads import HostCopies
from torchglass.capture.torch_modes import (
    TorchRandomState,
    has_compiled,
    quietly,
    running_uncompiled,
)
from torchglass.capture.trace.op_mode import OpEvent
from torchglass.capture.trace.pass_recorder import (
    CallEnd,
    Event,
    Level,
    PassRecorder,
    TracedCall,
    tracing,
)
from torchglass.capture.trace.producers import Located, OpLinker, quick_records
from torchglass.capture.trace.saved_tensors import (
    ByOp,
    Key,
    Output,
    Rerun,
    RerunBuilder,
    SavedOutputs,
)
from torchglass.errors import CaptureError, LookupFailedError, collector_paused, combined_blocks
from torchglass.records.model import join_path
from torchglass.records.trace import (
    CallId,
    CallRecord,
    Operand,
    OpId,
    OpRecord,
    SourceLine,
    TraceRecord,
    Value,
)


@dataclass(frozen=True, kw_only=True)
class CapturedPass:
    """A pass: its record and its tensors."""

    trace: TraceRecord
    tensors: Mapping[Output, torch.Tensor]
    """The outputs of each op, as they were then."""
    gradients: Mapping[Output, torch.Tensor]
    """The gradients of each op's outputs, as far as a backward has computed them."""
    events: Sequence[Rerun | None]
    """What is needed to rerun each op; None if impossible or not requested."""
    sources: Mapping[OpId, tuple[torch.Tensor, ...]]
    """The tensors themselves of the ops that have no event: the inputs."""
    before_writes: Callable[[torch.Tensor], torch.Tensor]
    """A tensor from outside the pass, as it was before the pass wrote into it."""
    out_of_sight: Mapping[int, torch.Tensor]
    """Gradients that a backward in the pass has added to, by id: a backward is not an op."""
    lazy: Mapping[int, torch.Tensor]
    """Parameters and buffers of the model that had no shape when the pass began, by id."""
    random_state: TorchRandomState
    """torch's random state at the beginning of the pass."""
    held_tensors: Mapping[str, torch.Tensor]
    """The parameters and buffers of the model, by dotted name."""
    ran: Collection[OpId]
    """The ops that ran: all except inputs, outputs and calls whose ops are not visible."""

    @cached_property
    def ordinals(self) -> Mapping[OpId, int]:
        """The numbers of ops among those that ran; a recorder's `edits` use them."""
        return {op: number for number, op in enumerate(self.ran)}

    def held(self, name: str) -> torch.Tensor | None:
        tensor = self.held_tensors.get(name)
        return None if tensor is None else self.before_writes(tensor)


class _CallPlace(NamedTuple):
    """The place of a call: its record's id, its path, and its location in the code.

    The location is the first call made from the same place in the code.
    """

    call: CallId
    path: str
    location: CallId
    source: SourceLine | None


_OUTSIDE = _CallPlace(CallId(-1), "", CallId(-1), None)


@collector_paused()
def assemble(recorder: PassRecorder) -> CapturedPass:
    """The records of a recorder's events. The events are released, because most data is in both."""
    assembly = Assembly(recorder.model)
    events = recorder.events
    events.reverse()
    for number in range(len(events)):
        assembly.add(number, events.pop())
    return finish(assembly, recorder)


def finish(assembly: Assembly, recorder: PassRecorder) -> CapturedPass:
    """The pass that an assembly has built from a recorder's events."""
    failed = assembly.failed(recorder.failure) if recorder.failure else None
    if assembly.copies is not None:
        assembly.copies.wait()
    calls, ops = assembly.end()
    trace = TraceRecord(
        model=type(recorder.model).__name__,
        calls=calls,
        ops=ops,
        start_ns=recorder.start_ns,
        end_ns=recorder.end_ns,
        error=recorder.error,
        notes=tuple(recorder.notes),
        failed=failed,
    )
    copies = recorder.snapshots.overwritten
    return CapturedPass(
        trace=trace,
        tensors=SavedOutputs(
            trace.ops,
            assembly.events,
            {output: copies.get(key, tensor) for output, (key, tensor) in assembly.given.items()},
            ByOp(copies, assembly.ran),
        ),
        gradients=ByOp(recorder.gradients, assembly.ran),
        events=assembly.events,
        sources=assembly.sources,
        before_writes=recorder.snapshots.originals.before_writes,
        out_of_sight=recorder.added_to,
        lazy=recorder.snapshots.lazy,
        random_state=recorder.random_state,
        held_tensors=assembly.held_tensors,
        ran=assembly.ran,
    )


class Assembly:
    """The records of a pass so far. Only the tensors of ops that `wanted` selects are kept.

    With `copies`, copies on the host are kept instead, and no tensor of a device.
    """

    def __init__(
        self,
        model: nn.Module,
        wanted: Callable[[OpRecord, Sequence[CallRecord]], bool] | None = None,
        copies: HostCopies | None = None,
    ) -> None:
        self.copies = copies
        self.ops: list[OpRecord] = []
        self.calls: list[CallRecord] = []
        self.events: list[Rerun | None] = []
        self.given: dict[Output, tuple[Key, torch.Tensor]] = {}
        """The tensors of the ops that have no event, with the recorder's keys."""
        self.ran: dict[OpId, int] = {}
        """The number of the event of each op that ran."""
        self.sources: dict[OpId, tuple[torch.Tensor, ...]] = {}
        self.held_tensors: dict[str, torch.Tensor] = {}
        self._wanted = wanted
        self._new_call = quick_records().call
        self._reruns = RerunBuilder()
        self._known: dict[int, str | CallId] = {}
        """The path of each module of the model by id, or its last call once it was called."""
        self._unknown: Counter[str] = Counter()
        """The number of calls of modules that are not part of the model, by path."""
        self._arguments_of: dict[type[nn.Module], Sequence[str]] = {}
        self._linker = self._linker_for(model, all_kept=wanted is None)

    def add(self, number: int, event: Event) -> bool:
        """Add the next event; returns whether its tensors are kept."""
        if isinstance(event, OpEvent):
            return self._add_op(number, event)
        if isinstance(event, TracedCall):
            return self._begin(number, event)
        return isinstance(event, CallEnd) and self._end(number, event.call)

    def _add_op(self, number: int, event: OpEvent) -> bool:
        op = self._record(event)
        self.ran[op.id] = number
        held = self._append(op)
        if held and self.copies is not None:
            results = enumerate(event.results)
            return self._offload(op, [((number, result), one) for result, one in results])
        if held:
            self.events[op.id] = self._reruns.of(event)
        return held

    def _offload(self, op: OpRecord, results: Iterable[tuple[Key, torch.Tensor]]) -> bool:
        """Keep copies of the results of an op on the host; the originals are released."""
        assert self.copies is not None
        with quietly():
            for output, (key, tensor) in enumerate(results):
                self.given[op.id, output] = key, self.copies.copy(tensor)
        return False

    def end(self) -> tuple[tuple[CallRecord, ...], tuple[OpRecord, ...]]:
        """All records; data that only further events would need is released first."""
        del self._linker, self._known, self._unknown
        records = tuple(self.calls), tuple(self.ops)
        self.calls.clear()
        self.ops.clear()
        return records

    def failed(self, event: OpEvent) -> OpRecord:
        return self._record(event)

    def _record(self, event: OpEvent) -> OpRecord:
        place = self._place(event.call)
        call = place.call if place is not _OUTSIDE else None
        return self._linker.op(self._next, event, call, place.location, place.source)

    def _begin(self, event: int, call: TracedCall) -> bool:
        inputs = list(tensors_of_call(call.args, call.kwargs))
        held = call.parent is None and self._bring_in(event, call, inputs)
        parent = self._place(call.parent)
        this = CallId(len(self.calls))
        path, number = self._next_call(call.module, parent, this)
        way = self._linker.way(call.chain)
        location = self._linker.location(parent.location, way.number, path, this)
        call.place = _CallPlace(this, path, location, way.source or parent.source)
        self.calls.append(
            self._new_call(
                id=this,
                parent=None if call.parent is None else parent.call,
                path=path,
                number=number,
                inputs=self._arguments(call.module, inputs),
                start_ns=call.start_ns,
                end_ns=call.end_ns,
            )
        )
        return held

    def _bring_in(
        self, number: int, call: TracedCall, inputs: Sequence[tuple[str, torch.Tensor]]
    ) -> bool:
        """Create ops for the new tensors among the inputs of the outermost call."""
        by_name = tensors_by_argument(call.module, call.args, call.kwargs)
        names = {id(tensor): name for name, tensor in by_name}
        held = False
        for result, (place, tensor) in enumerate(inputs):
            if self._linker.is_input(tensor):
                op = self._linker.source_op(self._next, names.get(id(tensor), place), tensor)
                held |= self._append_given(op, [((number, result), tensor)])
                self.sources[op.id] = (tensor,)
        return held

    def _end(self, number: int, call: TracedCall) -> bool:
        outputs = list(named_tensors(call.output))
        record = self.calls[self._place(call).call]
        held = self._make_seen(number, call, record.id, outputs)
        # Nobody has seen this record yet, and another one would take ten times as long.
        object.__setattr__(record, "outputs", self._values(outputs))
        object.__setattr__(record, "end_ns", call.end_ns)
        if call.parent is None:
            for result, (address, tensor) in enumerate(outputs):
                op = self._linker.final_op(self._next, address, tensor)
                held |= self._append_given(op, [((number, result), tensor)])
        return held

    def _make_seen(
        self,
        number: int,
        call: TracedCall,
        record: CallId,
        outputs: Sequence[tuple[str, torch.Tensor]],
    ) -> bool:
        """Create one op for a call whose ops are not visible, such as a scripted module's."""
        made = [at for at, (_, tensor) in enumerate(outputs) if not self._linker.knows(tensor)]
        if not made:
            return False
        inputs = tensors_of_call(call.args, call.kwargs)
        function = getattr(call.module, "original_name", type(call.module).__name__)
        unseen = [outputs[at] for at in made]
        op = self._linker.opaque_op(self._next, str(function), record, inputs, unseen)
        if self.copies is None:
            self.sources[op.id] = tuple(tensor for _, tensor in unseen)
        return self._append_given(op, [((number, at), outputs[at][1]) for at in made])

    def _append(self, op: OpRecord) -> bool:
        self.ops.append(op)
        self.events.append(None)
        return self._wanted is None or self._wanted(op, self.calls)

    def _append_given(self, op: OpRecord, given: Iterable[tuple[Key, torch.Tensor]]) -> bool:
        """Add an op without an event, and its tensors by the recorder's keys."""
        held = self._append(op)
        if held and self.copies is not None:
            return self._offload(op, given)
        if held:
            self.given.update(((op.id, output), one) for output, one in enumerate(given))
        return held

    def _place(self, call: TracedCall | None) -> _CallPlace:
        return call.place if call is not None else _OUTSIDE

    def _linker_for(self, model: nn.Module, *, all_kept: bool) -> OpLinker:
        """A linker that knows the first name of every tensor of the model."""
        parameters: dict[int, str | Operand] = {}
        buffers: dict[int, str] = {}
        for path, module in model.named_modules():
            self._known[id(module)] = path
            self._learn(parameters, path, module._parameters)
            self._learn(buffers, path, module._buffers)
        return OpLinker(parameters, buffers, self.ops, all_kept=all_kept)

    def _learn(
        self, names: dict[int, Any], path: str, tensors: Mapping[str, torch.Tensor | None]
    ) -> None:
        start = path and path + "."
        for name, tensor in tensors.items():
            if tensor is not None and id(tensor) not in names:
                names[id(tensor)] = full = start + name
                self.held_tensors[full] = tensor

    def _next_call(self, module: nn.Module, parent: _CallPlace, this: CallId) -> tuple[str, int]:
        """The path of a module, and the number of this call."""
        known = self._known.get(id(module))
        if known is None:
            path = join_path(parent.path, f"<{type(module).__name__}>")
            self._unknown[path] += 1
            return path, self._unknown[path]
        self._known[id(module)] = this
        if isinstance(known, str):
            return known, 1
        last = self.calls[known]
        return last.path, last.number + 1

    @property
    def _next(self) -> OpId:
        return OpId(len(self.ops))

    def _arguments(self, module: nn.Module, located: Located) -> tuple[Value, ...]:
        names = self._arguments_of.get(type(module))
        if names is None or "forward" in module.__dict__:
            names = argument_names(module)
            self._arguments_of.setdefault(type(module), names)
        value = self._linker.value
        return tuple(value(place, tensor, named(place, names)) for place, tensor in located)

    def _values(self, located: Located) -> tuple[Value, ...]:
        return tuple(self._linker.value(place, tensor) for place, tensor in located)


def argument_names(module: nn.Module) -> list[str]:
    """The names of the positional arguments of `forward`."""
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return []
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter.name for parameter in parameters if parameter.kind in by_place]


def named(place: str, names: Sequence[str]) -> str:
    """The place of an argument by name instead of number: "1.hidden" is "state.hidden"."""
    first, dot, rest = place.partition(".")
    if not first.isdecimal() or int(first) >= len(names):
        return place
    return f"{names[int(first)]}{dot}{rest}"


Selection = Any
"""Which ops to keep:

    "all", None                 everything, nothing
    7, -1                       by index
    "conv2d_3_7", "conv2d_3"    a layer, with all its passes
    "linear_1_1:2"              one pass
    "features.3", "features.3:2"  what a module returned, in all its calls or in one
    "relu"                      every op with that in its name
    lambda op: op.type == "relu"
    [any, of, these]
"""


def at_once(selection: Selection) -> Callable[[OpRecord], bool] | None:
    """The predicate to apply during the pass; None if it needs names, known only later."""
    if selection is None or selection == "none" or _is_empty(selection):
        return lambda op: False
    return selection if callable(selection) else None


def select(selection: Selection, anatomy: TraceStructure) -> frozenset[OpId]:
    """The ops of a selection."""
    return frozenset(_selected(selection, anatomy))


def is_everything(selection: Selection) -> bool:
    """Whether a selection includes all ops."""
    return selection is True or selection == "all"


def _selected(selection: Selection, anatomy: TraceStructure) -> Iterable[OpId]:
    if is_everything(selection):
        return [op.id for op in anatomy.record.ops]
    if selection is None or selection == "none":
        return ()
    if isinstance(selection, str):
        return _named(selection.lower(), anatomy)
    if isinstance(selection, int):
        return [anatomy.lookup.find(selection)]
    if callable(selection):
        return [op.id for op in anatomy.record.ops if selection(op)]
    return [op for part in selection for op in _selected(part, anatomy)]


def _named(name: str, anatomy: TraceStructure) -> tuple[OpId, ...]:
    if name in anatomy.layers:
        return anatomy.layers[name]
    returned = tuple(dict.fromkeys(_returned_by(name, anatomy)))
    if returned:
        return returned
    try:
        return (anatomy.lookup.find(name),)
    except LookupFailedError:
        labels = zip(anatomy.record.ops, anatomy.labels, strict=True)
        parts = tuple(op.id for op, label in labels if name in str(label))
        if parts:
            return parts
        raise


def _returned_by(name: str, anatomy: TraceStructure) -> Iterator[OpId]:
    for call in anatomy.record.calls:
        if name in (call.path.lower(), f"{call.path}:{call.number}".lower()):
            yield from (value.op for value in call.outputs if value.op is not None)


def _is_empty(selection: Selection) -> bool:
    return isinstance(selection, (list, tuple, set, frozenset)) and not selection


_UNCOMPILED = "compiled modules were run uncompiled"

OpSelector = int | str
Change = Callable[[torch.Tensor], torch.Tensor]


class PassCapture:
    """A pass that is being recorded, and can be read when it has ended."""

    def __init__(
        self, model: nn.Module, save: Selection, change: Change | None, *, offload: bool = False
    ) -> None:
        self._save = save
        self._change = change
        self._test = at_once(save)
        self._assembly: Assembly | None = None
        if self._test is not None or offload:
            wanted = _wanted_by(self._test or (lambda op: True))
            self._assembly = Assembly(model, wanted, HostCopies() if offload else None)
        self.recorder: PassRecorder | None = None
        self.failure: OpEvent | None = None
        self.ended = False

    @property
    def keep(self) -> Callable[..., bool] | None:
        """Whether the recorder keeps an event; None if it keeps all until the end."""
        return self._assembly.add if self._assembly is not None else None

    @cached_property
    def captured(self) -> CapturedPass:
        if not self.ended or self.recorder is None:
            raise CaptureError("the trace can only be read after its with-block has ended")
        if self._assembly is not None:
            captured = finish(self._assembly, self.recorder)
        else:
            captured = assemble(self.recorder)
        if self._test is None and not is_everything(self._save):
            captured = _only(self._save, captured)
        return captured if self._change is None else _changed(self._change, captured)

    def end(self) -> None:
        """Release what was not requested; that is known only with the names."""
        self.ended = True
        self.failure = self.recorder.failure if self.recorder else None
        if self.recorder is None:
            # An exception came before the pass began.
            return
        if not is_everything(self._save) or self._change is not None:
            _ = self.captured
            self.recorder = None


def _wanted_by(
    test: Callable[[OpRecord], bool],
) -> Callable[[OpRecord, Sequence[CallRecord]], bool]:
    return lambda op, calls: bool(test(op))


@contextlib.contextmanager
def capturing(
    model: nn.Module,
    *,
    save: Selection = "all",
    change: Change | None = None,
    offload: bool = False,
    **options: Any,
) -> Iterator[PassCapture]:
    """Record what runs until the block ends; the other options are those of `PassRecorder`.

    `change` is applied to each tensor that `save` selects, and its result is kept. With `offload`,
    copies on the host are kept.
    """
    capture = PassCapture(model, save, change, offload=offload)
    compiled = has_compiled(model.modules())
    try:
        with (
            running_uncompiled() if compiled else contextlib.nullcontext(),
            tracing(model, keep=capture.keep, **options) as capture.recorder,
        ):
            if compiled:
                capture.recorder.notes.append(_UNCOMPILED)
            yield capture
    finally:
        capture.end()


def op_numbers(
    model: nn.Module, args: Args, kwargs: Kwargs, keys: Sequence[OpSelector], level: Level = "torch"
) -> dict[OpSelector, int]:
    """The numbers of the ops with these names among all ops of a forward.

    Names are known only after a pass, so one runs in advance and the model is restored.
    """
    if not keys:
        return {}
    with combined_blocks(
        leave_unchanged(model.modules()), capturing(model, save=None, level=level)
    ) as (_, capture):
        model(*args, **kwargs)
    lookup = TraceStructure(capture.captured.trace).lookup
    return {key: _number(capture.captured, lookup.find(key), key) for key in keys}


def _number(captured: CapturedPass, op: OpId, key: OpSelector) -> int:
    if op not in captured.ordinals:
        raise CaptureError(f"{key!r} is an input or output of the pass, not an op")
    return captured.ordinals[op]


def _only(save: Selection, captured: CapturedPass) -> CapturedPass:
    chosen = select(save, TraceStructure(captured.trace))
    return dataclasses.replace(
        captured,
        tensors={at: captured.tensors[at] for at in captured.tensors if at[0] in chosen},
        events=[event if op in chosen else None for op, event in enumerate(captured.events)],
        sources={op: made for op, made in captured.sources.items() if op in chosen},
    )


def _changed(change: Change, captured: CapturedPass) -> CapturedPass:
    tensors = {output: change(tensor) for output, tensor in captured.tensors.items()}
    return dataclasses.replace(captured, tensors=tensors)

"""From the stream of a pass to its records: calls, ops, and the tensors that were saved."""

from __future__ import annotations

import dataclasses
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from torchglass.capture.places import tensors_in, tensors_of_call
from torchglass.capture.trace.linking import Held, Linker, Located
from torchglass.capture.trace.ops import OpEvent
from torchglass.capture.trace.recording import Ended, Event, PassRecorder, Running
from torchglass.capture.trace.snapshots import Key
from torchglass.records.model import join_path
from torchglass.records.trace import Call, CallId, Op, OpId, Source, Trace, Value

Output = tuple[OpId, int]
"""An op, and which of its outputs."""


@dataclass(frozen=True, kw_only=True)
class Captured:
    """A pass: the record of it, and the tensors that flowed."""

    trace: Trace
    tensors: Mapping[Output, torch.Tensor]
    """What each op made, as it was then."""
    gradients: Mapping[Output, torch.Tensor]
    """The gradients of what each op made, as far as a backward has come."""
    events: Mapping[OpId, OpEvent]
    """What is needed to run an op again."""
    sources: Mapping[OpId, tuple[torch.Tensor, ...]]
    """The tensors themselves of the ops that have no event: the inputs."""
    before_writes: Callable[[torch.Tensor], torch.Tensor]
    """A tensor from outside the pass, as it was before the pass wrote into it."""
    random_state: torch.Tensor
    """torch's, at the beginning of the pass."""
    held_tensors: Mapping[str, torch.Tensor]
    """The parameters and buffers of the model, by dotted name."""
    ordinals: Mapping[OpId, int]
    """The numbers of the ops among all that ran, by which a recorder's `edits` name them."""

    def held(self, name: str) -> torch.Tensor | None:
        """A parameter or buffer, as it was before the pass wrote into it."""
        tensor = self.held_tensors.get(name)
        return None if tensor is None else self.before_writes(tensor)


@dataclass(frozen=True)
class _Place:
    """Where a call stands: its record's id, its path, and where in the code it was made."""

    call: CallId
    path: str
    location: int
    source: Source | None


_OUTSIDE = _Place(CallId(-1), "", -1, None)


def assemble(recorder: PassRecorder) -> Captured:
    """The records of all that a recorder took down."""
    assembly = Assembly(recorder.model)
    for number, event in enumerate(recorder.events):
        assembly.add(number, event)
    return finish(assembly, recorder)


def finish(assembly: Assembly, recorder: PassRecorder) -> Captured:
    """What an assembly has made of the events of a recorder."""
    as_made = recorder.snapshots.tensor
    return Captured(
        trace=Trace(
            model=type(recorder.model).__name__,
            calls=tuple(assembly.calls),
            ops=tuple(assembly.ops),
            start_ns=recorder.start_ns,
            end_ns=recorder.end_ns,
            error=recorder.error,
            notes=tuple(recorder.notes),
            failed=assembly.failed(recorder.failure) if recorder.failure else None,
        ),
        tensors={output: as_made(*kept) for output, kept in assembly.kept.items()},
        gradients=_Gradients(recorder.gradients, assembly.numbers),
        events=assembly.events,
        sources=assembly.sources,
        before_writes=recorder.snapshots.before_writes,
        random_state=recorder.random_state,
        held_tensors={
            **dict(recorder.model.named_buffers()),
            **dict(recorder.model.named_parameters()),
        },
        ordinals={op: number for number, op in enumerate(assembly.numbers.values())},
    )


class _Gradients(Mapping[Output, torch.Tensor]):
    """The gradients that a recorder has been given so far, by op instead of by event."""

    def __init__(self, gradients: Mapping[Key, torch.Tensor], ops: Mapping[int, OpId]) -> None:
        self._gradients = gradients
        self._ops = ops
        self._numbers = {op: number for number, op in ops.items()}

    def __getitem__(self, output: Output) -> torch.Tensor:
        op, result = output
        return self._gradients[self._numbers[op], result]

    def __iter__(self) -> Iterator[Output]:
        return ((self._ops[number], result) for number, result in self._gradients)

    def __len__(self) -> int:
        return len(self._gradients)


class Assembly:
    """The records of a pass so far. Only the tensors of ops that `wanted` wants are held."""

    def __init__(
        self, model: nn.Module, wanted: Callable[[Op, Sequence[Call]], bool] | None = None
    ) -> None:
        self.ops: list[Op] = []
        self.calls: list[Call] = []
        self.kept: dict[Output, tuple[Key, torch.Tensor]] = {}
        self.events: dict[OpId, OpEvent] = {}
        self.numbers: dict[int, OpId] = {}
        self.sources: dict[OpId, tuple[torch.Tensor, ...]] = {}
        self._wanted = wanted
        self._linker = Linker(_held_by(model))
        self._paths = {id(module): path for path, module in model.named_modules()}
        self._places: dict[Running, _Place] = {}
        self._numbers: Counter[str] = Counter()

    def add(self, number: int, event: Event) -> bool:
        """The next event of the stream; whether anything of it is held."""
        if isinstance(event, OpEvent):
            return self._add_op(number, event)
        if isinstance(event, Running):
            return self._begin(number, event)
        if isinstance(event, Ended):
            self._end(number, event.call)
        return False

    def _add_op(self, number: int, event: OpEvent) -> bool:
        place = self._place(event.call)
        call = place.call if place is not _OUTSIDE else None
        op = self._linker.op(self._next, event, call, place.location, place.source)
        self.numbers[number] = op.id
        held = self._append(op, [((number, i), tensor) for i, tensor in enumerate(event.results)])
        if held:
            self.events[op.id] = event
        return held

    def failed(self, event: OpEvent) -> Op:
        """The record of an op that raised."""
        place = self._place(event.call)
        call = place.call if place is not _OUTSIDE else None
        return self._linker.op(self._next, event, call, place.location, place.source)

    def _begin(self, number: int, call: Running) -> bool:
        inputs = list(tensors_of_call(call.args, call.kwargs))
        held = call.parent is None and self._bring_in(number, call, inputs)
        parent = self._place(call.parent)
        path = self._path(call.module, parent)
        self._numbers[path] += 1
        place = self._places[call] = _Place(
            CallId(len(self.calls)),
            path,
            self._linker.location(parent.location, path, call.chain),
            self._linker.source(call.chain) or parent.source,
        )
        self.calls.append(
            Call(
                id=place.call,
                parent=None if call.parent is None else parent.call,
                path=path,
                number=self._numbers[path],
                inputs=self._values(inputs),
                start_ns=call.start_ns,
                end_ns=call.end_ns,
            )
        )
        return held

    def _bring_in(
        self, number: int, call: Running, inputs: Sequence[tuple[str, torch.Tensor]]
    ) -> bool:
        """Make ops of the tensors that the outermost call was given and that are new."""
        names = _names_of_inputs(call)
        held = False
        for result, (place, tensor) in enumerate(inputs):
            if not self._linker.knows(tensor):
                op = self._linker.source_op(self._next, names.get(id(tensor), place), tensor)
                held |= self._append(op, [((number, result), tensor)])
                self.sources[op.id] = (tensor,)
        return held

    def _end(self, number: int, call: Running) -> None:
        outputs = list(tensors_in(call.output))
        record = self.calls[self._place(call).call]
        self._make_seen(number, call, record.id, outputs)
        self.calls[record.id] = dataclasses.replace(
            record, outputs=self._values(outputs), end_ns=call.end_ns
        )
        if call.parent is None:
            for result, (address, tensor) in enumerate(outputs):
                op = self._linker.final_op(self._next, address, tensor)
                self._append(op, [((number, result), tensor)])

    def _make_seen(
        self,
        number: int,
        call: Running,
        record: CallId,
        outputs: Sequence[tuple[str, torch.Tensor]],
    ) -> None:
        """Let a call whose ops are out of sight, as a scripted module's are, be one op itself."""
        unseen = [(place, tensor) for place, tensor in outputs if not self._linker.knows(tensor)]
        if unseen:
            inputs = tensors_of_call(call.args, call.kwargs)
            function = getattr(call.module, "original_name", type(call.module).__name__)
            op = self._linker.opaque_op(self._next, str(function), record, inputs, unseen)
            tensors = tuple(tensor for _, tensor in unseen)
            self._append(op, [((number, i), tensor) for i, tensor in enumerate(tensors)])
            self.sources[op.id] = tensors

    def _append(self, op: Op, results: Iterable[tuple[Key, torch.Tensor]]) -> bool:
        self.ops.append(op)
        held = self._wanted is None or self._wanted(op, self.calls)
        if held:
            self.kept.update(((op.id, i), result) for i, result in enumerate(results))
        return held

    def _place(self, call: Running | None) -> _Place:
        return self._places[call] if call is not None else _OUTSIDE

    def _path(self, module: nn.Module, parent: _Place) -> str:
        known = self._paths.get(id(module))
        return known if known is not None else join_path(parent.path, f"<{type(module).__name__}>")

    @property
    def _next(self) -> OpId:
        return OpId(len(self.ops))

    def _values(self, located: Located) -> tuple[Value, ...]:
        return tuple(self._linker.value(place, tensor) for place, tensor in located)


def _held_by(model: nn.Module) -> Held:
    return Held(
        {id(tensor): name for name, tensor in model.named_parameters()},
        {id(tensor): name for name, tensor in model.named_buffers()},
    )


def _names_of_inputs(call: Running) -> dict[int, str]:
    """The addresses of a call's tensors by the names that forward gives them: "x", "pair.0"."""
    try:
        bound = inspect.signature(call.module.forward).bind(*call.args, **call.kwargs)
    except (TypeError, ValueError):
        return {}
    return {id(tensor): address for address, tensor in tensors_in(dict(bound.arguments))}

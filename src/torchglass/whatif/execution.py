"""Runs a model and keeps each value that it computes, and how far rounding carries it.

    execution = execute(model, inputs)
    execution.noise = rounding_noise(execution, model, inputs, eps)

The noise is measured: the model runs once more, and what each op returns is changed by about one
unit in the last place. How far a value moves then is how far rounding alone can move it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from torchglass.analyse.op_repeats import is_view_op
from torchglass.analyse.signatures import plain_name
from torchglass.analyse.trace import TraceStructure
from torchglass.capture.isolated_run import leave_unchanged
from torchglass.capture.tensor.description import iter_tensors
from torchglass.capture.torch_internals import tree_map_only
from torchglass.capture.trace.assemble import CapturedPass, assemble
from torchglass.capture.trace.pass_recorder import Edit, tracing
from torchglass.capture.trace.saved_tensors import Output
from torchglass.records.comparison import ExecutedOp, ExecutionGraph, ValueId
from torchglass.records.trace import OpId, OpRecord, TraceRecord
from torchglass.whatif.fused_steps import FusedStep

_POOL = 1 << 20
"""Random values that are drawn once and used for all tensors."""
_COPIES = frozenset({"clone"})
_CASTS = frozenset({"to", "float", "half", "bfloat16", "double", "type", "typeas"})
_COARSEST = 2.0**-6
"""The relative step of 8-bit quantization, roughly."""


Rerun = Callable[[Mapping[ValueId, torch.Tensor]], Any]


@dataclass(frozen=True, slots=True)
class CallArguments:
    """What an op was called with."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    values: Mapping[int, ValueId]
    """By id of a tensor among them: its value."""


@dataclass(kw_only=True)
class Execution:
    """One forward: its graph, and the tensor of each value."""

    graph: ExecutionGraph
    values: list[torch.Tensor]
    eps: float
    """The relative step of the coarsest dtype that it computes in."""
    rerun: Mapping[int, Rerun] = field(default_factory=dict)
    """By op: runs it again on other tensors in place of the values it read."""
    arguments: Mapping[int, CallArguments] = field(default_factory=dict)
    """By op: its arguments, tensors included."""
    noise: Mapping[ValueId, float] = field(default_factory=dict)
    """By value: how far rounding moves it, relative to its norm."""
    ordinals: Mapping[int, int] = field(default_factory=dict)
    """The op of each number that a recorder counts."""
    is_measured: bool = True
    """Whether the noise was measured, not estimated."""
    record: TraceRecord | None = None
    """The pass that it was read from."""
    op_ids: Sequence[OpId] = ()
    """By op: its number in that pass."""
    notes: tuple[str, ...] = ()

    def label(self, op: ExecutedOp) -> str:
        """The name that the op has in a trace, such as "linear_3_7"."""
        if op.label or self._structure is None:
            return op.label or op.function
        return str(self._structure.labels[self.op_ids[op.id]])

    def replace_op(self, op: ExecutedOp, steps: Sequence[FusedStep]) -> None:
        """Put the steps of a fused op in its place."""
        called = self.arguments[op.id]
        values = dict(called.values)
        reruns, arguments, noise = dict(self.rerun), dict(self.arguments), dict(self.noise)
        read = max((noise.get(one, 0.0) for one in op.inputs), default=0.0)
        first = 1 + max(one.id for one in self.graph.ops)
        new: list[ExecutedOp] = []
        for number, step in enumerate(steps, first):
            inputs = tuple(values[id(one)] for one in step.inputs if id(one) in values)
            outputs = op.outputs[:1]
            if step is not steps[-1]:
                start = len(self.values)
                self.values += [one.detach() for one in step.results]
                outputs = tuple(range(start, len(self.values)))
                values.update((id(one), start + at) for at, one in enumerate(step.results))
                noise.update(dict.fromkeys(outputs, read))
            arguments[number] = CallArguments(step.args, step.kwargs, dict(values))
            reruns[number] = rerun_of(step.run, arguments[number])
            new.append(
                replace(
                    op,
                    id=number,
                    label=self.label(op),
                    function=step.function,
                    settings=(),
                    inputs=inputs,
                    outputs=outputs,
                    is_layout=step.is_layout and len(inputs) == 1,
                    step_of=op.step_of or op.function,
                    completes="" if step is not steps[-1] else op.completes or op.function,
                )
            )
        at = self.graph.position[op.id]
        ops = (*self.graph.ops[:at], *new, *self.graph.ops[at + 1 :])
        shapes = tuple(tuple(one.shape) for one in self.values)
        self.graph = replace(self.graph, ops=ops, shapes=shapes)
        self.noise, self.rerun, self.arguments = noise, reruns, arguments

    @cached_property
    def _structure(self) -> TraceStructure | None:
        return None if self.record is None else TraceStructure(self.record)


@contextlib.contextmanager
def _apart(model: nn.Module) -> Iterator[None]:
    """Run without gradients; random state and buffers are as before afterwards."""
    with torch.no_grad(), leave_unchanged(model.modules()):
        yield


def execute(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Execution:
    """Run a model once and keep every value."""
    with _apart(model):
        with tracing(model) as recorder:
            model(*args, **kwargs)
        captured = assemble(recorder)
    return execution_of(captured.trace, captured.tensors, captured)


def execution_of(
    record: TraceRecord, tensors: Mapping[Output, torch.Tensor], captured: CapturedPass | None
) -> Execution:
    """The values of a recorded pass; of one from a file, `captured` is None."""
    reading = _PassReading(record, tensors, captured)
    for op in record.ops:
        reading.add(op)
    graph = ExecutionGraph(
        name=record.model,
        ops=tuple(reading.ops),
        shapes=tuple(tuple(value.shape) for value in reading.values),
        inputs=tuple(reading.inputs),
        outputs=tuple(reading.outputs),
        names=reading.names,
    )
    return Execution(
        graph=graph,
        values=reading.values,
        eps=coarsest_step(graph, reading.values),
        rerun=reading.reruns,
        arguments=reading.arguments,
        ordinals=reading.ordinals,
        record=record,
        op_ids=reading.op_ids,
        notes=record.notes,
    )


class _PassReading:
    """Numbers the values of a captured pass."""

    def __init__(
        self,
        record: TraceRecord,
        tensors: Mapping[Output, torch.Tensor],
        captured: CapturedPass | None,
    ) -> None:
        self.record, self.tensors, self.captured = record, tensors, captured
        self.values: list[torch.Tensor] = []
        self.names: dict[ValueId, str] = {}
        self.ops: list[ExecutedOp] = []
        self.inputs: list[ValueId] = []
        self.outputs: list[ValueId] = []
        self.reruns: dict[int, Rerun] = {}
        self.arguments: dict[int, CallArguments] = {}
        self.ordinals: dict[int, int] = {}
        self.op_ids: list[OpId] = []
        self._by_output: dict[tuple[OpId, int], ValueId] = {}
        self._by_name: dict[str, ValueId] = {}
        self._by_id: dict[int, ValueId] = {}

    def add(self, op: OpRecord) -> None:
        if op.kind == "output":
            self.outputs += [value for _, value in self._read(op) if value >= 0]
            return
        read = [(place, value) for place, value in self._read(op) if value >= 0]
        inputs = tuple(value for _, value in read)
        made = [self._made(op, place) for place in range(len(op.outputs))]
        outputs = tuple(value for value in made if value is not None)
        if op.kind == "input":
            self.inputs += outputs
            return
        call = None if op.call is None else self.record.calls[op.call]
        number = len(self.ops)
        self.op_ids.append(op.id)
        if self.captured is not None and op.id in self.captured.ordinals:
            self.ordinals[self.captured.ordinals[op.id]] = number
        self.ops.append(
            ExecutedOp(
                id=number,
                function=plain_name(op.function),
                path="" if call is None else call.path,
                source=op.source,
                settings=op.settings,
                inputs=inputs,
                outputs=outputs,
                is_layout=self._keeps_values(op, outputs) and len(inputs) == 1,
            )
        )
        self._keep_rerun(number, op, read)

    def _keeps_values(self, op: OpRecord, outputs: Sequence[ValueId]) -> bool:
        if op.type in _CASTS:
            return all(self.values[one].is_floating_point() for one in outputs)
        return is_view_op(op) or op.type in _COPIES

    def _keep_rerun(self, number: int, op: OpRecord, read: Sequence[tuple[str, ValueId]]) -> None:
        event = None if self.captured is None else self.captured.events[op.id]
        if event is None or op.writes:
            return

        values = {id(_argument(event.args, event.kwargs, place)): value for place, value in read}
        arguments = self.arguments[number] = CallArguments(event.args, event.kwargs, values)
        self.reruns[number] = rerun_of(event.function, arguments)

    def _read(self, op: OpRecord) -> Iterator[tuple[str, ValueId]]:
        """The values that an op read, with their places, and what was written into them."""
        for operand in op.operands:
            name = operand.parameter or operand.buffer
            if operand.op is not None:
                yield operand.place, self._by_output.get((operand.op, operand.output), -1)
            elif name:
                yield operand.place, self._held(name)
            else:
                yield operand.place, self._constant(op, operand.place)
            for writer in operand.writers:
                yield "", self._by_output.get((writer, 0), -1)

    def _made(self, op: OpRecord, place: int) -> ValueId | None:
        tensor = self.tensors.get((op.id, place))
        if tensor is None or not _is_comparable(tensor):
            return None
        value = self._by_output[op.id, place] = self._number(tensor)
        return value

    def _held(self, name: str) -> ValueId:
        if name not in self._by_name:
            tensor = None if self.captured is None else self.captured.held(name)
            if tensor is None or not _is_comparable(tensor):
                return -1
            value = self._by_name[name] = self._number(tensor)
            self.names[value] = name
        return self._by_name[name]

    def _constant(self, op: OpRecord, place: str) -> ValueId:
        """A tensor that was made outside of the forward and is not registered."""
        event = None if self.captured is None else self.captured.events[op.id]
        tensor = None if event is None else _argument(event.args, event.kwargs, place)
        if tensor is None or not _is_comparable(tensor):
            return -1
        if id(tensor) not in self._by_id:
            self._by_id[id(tensor)] = self._number(tensor)
        return self._by_id[id(tensor)]

    def _number(self, tensor: torch.Tensor) -> ValueId:
        self.values.append(tensor.detach())
        return len(self.values) - 1


def rerun_of(function: Callable[..., Any], arguments: CallArguments) -> Rerun:
    """What runs an op again with other tensors in place of some of its values."""

    def rerun(replaced: Mapping[ValueId, torch.Tensor]) -> Any:
        def other(tensor: torch.Tensor) -> torch.Tensor:
            value = arguments.values.get(id(tensor), -1)
            return replaced.get(value, tensor)

        args, kwargs = tree_map_only(torch.Tensor, other, (arguments.args, dict(arguments.kwargs)))
        with torch.no_grad():
            return function(*args, **kwargs)

    return rerun


def _argument(args: Sequence[Any], kwargs: Mapping[str, Any], place: str) -> torch.Tensor | None:
    """The tensor at a place such as "0", "weight" or "tensors.1"."""
    first, *rest = place.split(".")
    try:
        found: Any = args[int(first)] if first.isdecimal() else kwargs[first]
        for part in rest:
            found = found[int(part)]
    except (LookupError, ValueError, TypeError):
        return None
    return found if isinstance(found, torch.Tensor) else None


def _is_comparable(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_meta


def coarsest_step(graph: ExecutionGraph, values: Sequence[torch.Tensor]) -> float:
    """The relative step of the coarsest dtype of what ops return."""
    steps = [
        torch.finfo(values[value].dtype).eps
        for op in graph.ops
        for value in op.outputs
        if values[value].is_floating_point()
    ]
    if any("quantize" in op.function or "dynamic" in op.function for op in graph.ops):
        steps.append(_COARSEST)
    return max(steps, default=torch.finfo(torch.float32).eps)


def rounding_noise(
    execution: Execution,
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    eps: float,
) -> dict[ValueId, float]:
    """How far each value moves if each op's result is changed by about `eps` of itself."""
    edits = _Perturb(execution, eps)
    changed = tree_map_only(torch.Tensor, edits.perturb, (tuple(args), dict(kwargs)))
    with _apart(model), tracing(model, edits=edits, keep=lambda number, event: False):
        model(*changed[0], **changed[1])
    return edits.moved


class _Perturb(Mapping[int, Edit]):
    """Changes what each op of a pass returns, and measures how far that is from the first pass."""

    def __init__(self, execution: Execution, eps: float) -> None:
        self.moved: dict[ValueId, float] = {}
        self._execution = execution
        self._ops = execution.ordinals
        generator = torch.Generator().manual_seed(0)
        self._factors = torch.rand(_POOL, generator=generator).mul_(2).sub_(1).mul_(eps).add_(1)
        self._drawn = 0

    def __contains__(self, number: object) -> bool:
        return number in self._ops

    def __getitem__(self, number: int) -> Edit:
        op = self._execution.graph.ops[self._ops[number]]

        def edit(output: Any) -> Any:
            if not op.is_layout or op.function in _CASTS:
                output = tree_map_only(torch.Tensor, self.perturb, output)
            for value, tensor in zip(op.outputs, iter_tensors(output), strict=False):
                if op.is_layout and op.inputs[0] in self.moved:
                    self.moved[value] = self.moved[op.inputs[0]]
                else:
                    self.moved[value] = self._distance(value, tensor)
            return output

        return edit

    def __iter__(self) -> Iterator[int]:
        return iter(self._ops)

    def __len__(self) -> int:
        return len(self._ops)

    def perturb(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point() or not _is_comparable(tensor) or not tensor.numel():
            return tensor
        # A tensor of whole numbers, such as a mask, was not rounded.
        if _is_whole(tensor):
            return tensor
        count = tensor.numel()
        factors = self._factors.to(tensor.device)
        self._drawn = (self._drawn + 7919) % (_POOL // 2)
        factors = factors[self._drawn :]
        if count > len(factors):
            factors = factors.repeat(count // len(factors) + 1)
        # In the wider of both dtypes: factors near 1 cannot be written in a half.
        return (tensor.detach() * factors[:count].view(tensor.shape)).to(tensor.dtype)

    def _distance(self, value: ValueId, tensor: torch.Tensor) -> float:
        before = self._execution.values[value]
        if before.shape != tensor.shape:
            return float("inf")
        if not before.is_floating_point():
            return float("inf") if not torch.equal(before, tensor) else 0.0
        size = torch.linalg.vector_norm(before, dtype=torch.float32)
        moved = torch.linalg.vector_norm(tensor.detach() - before, dtype=torch.float32)
        found = float(moved / size) if size else float(moved)
        return found if found == found else 0.0


def _is_whole(tensor: torch.Tensor) -> bool:
    few = tensor.detach().flatten()[:64] if tensor.is_contiguous() else tensor.detach()
    return torch.equal(few, few.round()) and torch.equal(tensor, tensor.round())


def estimated_noise(execution: Execution, eps: float) -> dict[ValueId, float]:
    """The noise of a pass that cannot be run again: each op adds about `eps`."""
    noise: dict[ValueId, float] = {}
    for op in execution.graph.ops:
        read = math.sqrt(sum(noise.get(value, 0.0) ** 2 for value in op.inputs))
        for value in op.outputs:
            noise[value] = read if op.is_layout else math.hypot(read, 2 * eps)
    return noise

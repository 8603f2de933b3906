"""What two models have in common: their tensors, the ops that ran, and where they diverge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from torchglass.records.model import Stats, TensorSpec
from torchglass.records.trace import SourceLine

ValueId = int
"""The number of a tensor of an execution: an input, a weight, or what an op returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutedOp:
    """One operation: what it read and what it returned."""

    id: int
    """Its number; `ExecutionGraph.position` is its place."""
    function: str
    label: str = ""
    """Its name, if it has one other than the function."""
    path: str = ""
    """The module that it ran in."""
    source: SourceLine | None = None
    settings: tuple[tuple[str, str], ...] = ()
    """Its arguments that are not tensors."""
    inputs: tuple[ValueId, ...] = ()
    outputs: tuple[ValueId, ...] = ()
    is_layout: bool = False
    """Whether it only changes the view of a tensor, not its values."""
    step_of: str = ""
    """The fused function that it is a step of, if it is one."""
    completes: str = ""
    """That function, if it is its last step."""


@dataclass(frozen=True, kw_only=True)
class ExecutionGraph:
    """The ops of one forward in order, and where each value comes from."""

    name: str
    """The class of the model, or its file."""
    ops: tuple[ExecutedOp, ...]
    shapes: tuple[tuple[int, ...], ...]
    """By value."""
    inputs: tuple[ValueId, ...] = ()
    outputs: tuple[ValueId, ...] = ()
    names: Mapping[ValueId, str] = field(default_factory=dict)
    """The dotted names of parameters and buffers."""

    @cached_property
    def producer(self) -> Mapping[ValueId, ExecutedOp]:
        """The op that returned each value; inputs and weights have none."""
        return {value: op for op in self.ops for value in op.outputs}

    @cached_property
    def position(self) -> Mapping[int, int]:
        """By number of an op: its place in the order in which they ran."""
        return {op.id: place for place, op in enumerate(self.ops)}

    @cached_property
    def consumers(self) -> Mapping[ValueId, list[ExecutedOp]]:
        """The ops that read each value, in order."""
        found: dict[ValueId, list[ExecutedOp]] = {}
        for op in self.ops:
            for value in dict.fromkeys(op.inputs):
                found.setdefault(value, []).append(op)
        return found

    @cached_property
    def from_inputs(self) -> frozenset[ValueId]:
        """The values that depend on the inputs of the model, not on its weights alone."""
        found = set(self.inputs)
        for op in self.ops:
            if any(value in found for value in op.inputs):
                found.update(op.outputs)
        return frozenset(found)

    def base(self, value: ValueId) -> ValueId:
        """The value that this one is a view of; itself if it is not one."""
        op = self.producer.get(value)
        while op is not None and op.is_layout and op.inputs:
            value = op.inputs[0]
            op = self.producer.get(value)
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class BothHistograms:
    """How many old and new values are in each of the same bins, of a sample of the values."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    low: float
    high: float
    """The ends of the first and of the last bin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorChange:
    """One tensor of two models, by values."""

    name: str
    """Its dotted name in the new model."""
    name_before: str
    before: TensorSpec
    after: TensorSpec
    distance: float | None = None
    """The norm of the change over the old norm; None where the shapes differ."""
    cosine: float | None = None
    """Between old and new values; None if one is all zeros."""
    largest: float | None = None
    """The largest change of one value."""
    nan_before: int = 0
    nan_after: int = 0
    rank: int | None = None
    """The rank of the change, if it is low as that of a LoRA."""
    histograms: BothHistograms | None = None
    """Of the old and the new values; None if they are equal, or if very many tensors changed."""

    @property
    def is_equal(self) -> bool:
        """Whether all values are the same, the NaN at the same places included."""
        return self.distance == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandStats:
    """A tensor that an op read or returned."""

    name: str
    """The op that made it, or the name of the weight."""
    shape: tuple[int, ...]
    dtype: str
    stats: Stats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first op of two executions whose results differ by more than rounding."""

    kind: str
    a: ExecutedOp | None
    b: ExecutedOp | None
    reason: str
    """What is different there, as a sentence."""
    distance: float | None = None
    """Between both results, relative; None if they have different shapes."""
    rounding: float | None = None
    """The part of it that rounding explains."""
    operands_a: tuple[OperandStats, ...] = ()
    operands_b: tuple[OperandStats, ...] = ()
    result_a: OperandStats | None = None
    result_b: OperandStats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputChange:
    """One output of two models."""

    distance: float
    rounding: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionComparison:
    """Two forwards on the same inputs."""

    divergence: Divergence | None = None
    outputs: tuple[OutputChange, ...] = ()
    same_ops: int = 0
    """The ops of `b` before the first difference that compute what `a` computes."""
    ops_a: int = 0
    ops_b: int = 0
    eps: float = 0.0
    """The relative step of the coarsest dtype of both."""
    measured: bool = True
    """Whether rounding was measured; False where nothing can be run again."""
    notes: tuple[str, ...] = field(default=())

"""What a model costs to run: FLOPs and memory per module, block and op."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NewType

from torchglass.records.tensors import TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleMeasure:
    """One module in one pass, all its calls together. What was not measured is None.

    `total_` includes the modules inside, `self_` does not.
    """

    path: str
    calls: int = 0
    total_forward_ns: int | None = None
    self_forward_ns: int | None = None
    total_backward_ns: int | None = None
    self_backward_ns: int | None = None
    total_forward_flops: int | None = None
    self_forward_flops: int | None = None
    total_backward_flops: int | None = None
    self_backward_flops: int | None = None
    total_activation_bytes: int | None = None
    """What is kept of it for the backward pass."""
    self_activation_bytes: int | None = None
    total_peak_bytes: int | None = None
    """The most that was allocated at once while it ran, above what there was before."""
    gradient_bytes: int | None = None
    output_shapes: tuple[tuple[int, ...], ...] = ()
    """Of the tensors that its last call returned."""


@dataclass(frozen=True, kw_only=True)
class Measures:
    """The rows of all modules that ran, and how they were measured."""

    rows: tuple[ModuleMeasure, ...] = ()
    notes: tuple[str, ...] = ()


FlopStage = Literal["forward", "backward", "recompute"]
FlopStatus = Literal["counted", "free", "uncounted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPath:
    """A module as another one called it: what is called from two places is there twice."""

    path: str
    """Dotted path of the module in the model; "" is the model itself."""
    parent: int | None = None
    """The place that it was called from, by its index; always a smaller one."""
    calls: int = 0
    """How often it was called here, without what a checkpoint ran again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpFlopRecord:
    """What all calls of one op computed in one place and stage."""

    op: str
    """torch's name with its namespace: "aten.addmm"."""
    place: int | None
    """Where it ran, or where the op ran whose gradient it takes; None outside of all modules."""
    stage: FlopStage
    """"recompute" is a forward that a checkpoint runs again in the backward."""
    nature: FlopStatus
    """"free" of products, as an addition is; or "uncounted", because no formula is known."""
    calls: int
    flops: int = 0
    bytes: int = 0
    """All arguments read and all results written once."""
    time_ns: int | None = None
    """What they took; None where it was not measured."""


@dataclass(frozen=True, kw_only=True)
class FlopRecord:
    """All that one step of a model computes."""

    places: tuple[CallPath, ...]
    ops: tuple[OpFlopRecord, ...]
    backward: bool = False
    """Whether there was a backward."""
    fake: bool = False
    """Whether it was worked out on tensors without numbers."""
    total_ns: int | None = None
    """What the step took in which the ops were timed; None where they were not."""
    notes: tuple[str, ...] = ()
    """What the reader should know of how it was counted."""


BlockId = NewType("BlockId", int)
StepPhase = Literal["forward", "loss", "backward", "optimizer"]
BlockKind = Literal[
    "parameter",
    "buffer",
    "input",
    "optimizer",
    "activation",
    "output",
    "gradient",
    "temporary",
]
"""What a block is for. Those up to "optimizer" are there before the step begins.

An "activation" was made on the way forward and is still there when the backward begins; an
"output" is its like where there is no backward. What is none of all these is "temporary".
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saver:
    """Who keeps a block for the backward: a node of autograd, and the module that made it."""

    node: str
    """torch's name of it: "AddmmBackward0"."""
    path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBlock:
    """A piece of memory, from when it is taken until it is freed. All views of it are one block.

    One whose size changes ends, and another takes its place.
    """

    id: BlockId
    """Its index in `Footprint.blocks`."""
    kind: BlockKind
    bytes: int
    spec: TensorSpec
    """The tensor that it was first seen as, which may be smaller than the block."""
    phase: StepPhase | None = None
    """When it was taken; None for what was there before the step."""
    path: str | None = None
    """The module that made it, or whose parameter it belongs to; None where no module did."""
    op: str = ""
    """The kernel that made it: "addmm"; "" for what was there before the step."""
    name: str = ""
    """The dotted name of the parameter or buffer that it holds, or whose gradient or state."""
    saved_by: tuple[Saver, ...] = ()
    """In the order of the forward; nobody, for one that is merely still held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryChange:
    """Memory that is taken or freed at a moment of the step."""

    time_ns: int
    """Since the step began."""
    block: BlockId
    bytes: int
    """More than 0 when it is taken, less when it is freed."""
    phase: StepPhase
    path: str | None = None
    """The module that the kernel belongs to; in a backward the one whose gradient it takes."""
    op: str = ""
    """The kernel that took it, or that ran last before it was freed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPart:
    """A part of a step."""

    phase: StepPhase
    start: int
    """Where it begins in `Footprint.changes`."""
    start_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorPeak:
    """What an allocator itself tells of a step, run once more with nobody looking."""

    device: str
    peak_bytes: int
    """The most that it had given out beyond what was there before; unlike the blocks, this has in
    it what kernels take and free inside of themselves."""
    op: str = ""
    """The op in which that was, where the allocator knows."""


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """What one step of a model takes of memory, on all devices."""

    blocks: tuple[MemoryBlock, ...]
    changes: tuple[MemoryChange, ...]
    """In the order in which they happened."""
    parts: tuple[StepPart, ...]
    allocations: tuple[AllocatorPeak, ...] = ()
    """One for each device that can be asked; none where nothing was really allocated."""
    fake: bool = False
    """Whether it was predicted, on tensors that hold nothing."""
    optimizer: str = ""
    """The class of the optimizer that stepped. Its state is there before the step, as it is from
    the second step on."""
    notes: tuple[str, ...] = ()
    """What the reader should know of how it was measured."""

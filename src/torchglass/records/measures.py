"""What a model costs to run: time, FLOPs and memory per module, block and op."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, NewType

from torchglass.records.model import TensorSpec


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
    """Tensors that it keeps for the backward."""
    self_activation_bytes: int | None = None
    total_peak_bytes: int | None = None
    """The most memory allocated at once while it ran, beyond what was allocated before."""
    gradient_bytes: int | None = None
    output_shapes: tuple[tuple[int, ...], ...] = ()
    """The shapes of the outputs of its last call."""


@dataclass(frozen=True, kw_only=True)
class Measures:
    """The measurements of all modules that ran."""

    rows: tuple[ModuleMeasure, ...] = ()
    notes: tuple[str, ...] = ()


FlopStage = Literal["forward", "backward", "recompute"]
FlopStatus = Literal["counted", "free", "uncounted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPath:
    """A module as called by one parent; a module with two callers has two of these."""

    path: str
    """Dotted path of the module in the model; "" is the model itself."""
    parent: int | None = None
    """The index of its caller, which is always smaller."""
    calls: int = 0
    """The number of calls, without recomputation by activation checkpointing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpFlopRecord:
    """The work of all calls of one op, in one module and stage."""

    op: str
    """torch's name with its namespace: "aten.addmm"."""
    place: int | None
    """The index of the module it ran in, for a backward op that of its forward; None if outside."""
    stage: FlopStage
    """"recompute" is a forward that activation checkpointing runs again in the backward."""
    nature: FlopStatus
    """"free" ops, such as an addition, have no products; "uncounted" ops have no known formula."""
    calls: int
    flops: int = 0
    bytes: int = 0
    """All inputs read and all outputs written once."""
    time_ns: int | None = None
    """Their time; None if not measured."""


@dataclass(frozen=True, kw_only=True)
class FlopRecord:
    """The FLOPs of one step of a model, per op and module."""

    places: tuple[CallPath, ...]
    ops: tuple[OpFlopRecord, ...]
    backward: bool = False
    """Whether the step had a backward."""
    fake: bool = False
    """Whether it was counted on fake tensors."""
    total_ns: int | None = None
    """The time of the step in which ops were timed; None if they were not."""
    notes: tuple[str, ...] = ()
    """Notes on how it was counted."""


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
"""What a block is for. Kinds up to "optimizer" exist before the step starts.

An "activation" was created in the forward and still exists when the backward starts; an
"output" is the same without a backward. Everything else is "temporary".
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saver:
    """An autograd node that keeps a block for the backward, and the module that created it."""

    node: str
    """torch's name of the node: "AddmmBackward0"."""
    path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBlock:
    """A block of memory, from allocation until it is freed. All views of it are one block.

    A block whose size changes ends, and a new one replaces it.
    """

    id: BlockId
    """Its index in `Footprint.blocks`."""
    kind: BlockKind
    bytes: int
    spec: TensorSpec
    """The first tensor seen in it, which may be smaller than the block."""
    phase: StepPhase | None = None
    """The phase that allocated it; None for blocks from before the step."""
    path: str | None = None
    """The module that allocated it, or whose parameter it belongs to; None if no module did."""
    op: str = ""
    """The kernel that allocated it: "addmm"; "" for blocks from before the step."""
    name: str = ""
    """The dotted name of its parameter or buffer, also for a gradient or optimizer state."""
    saved_by: tuple[Saver, ...] = ()
    """In the order of the forward; empty if only Python code keeps it alive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryChange:
    """An allocation or a release of memory during the step."""

    time_ns: int
    """Since the start of the step."""
    block: BlockId
    bytes: int
    """Positive for an allocation, negative for a release."""
    phase: StepPhase
    path: str | None = None
    """The module of the kernel; in a backward that of the forward op."""
    op: str = ""
    """The kernel that allocated it, or the last one before it was freed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPart:
    """One phase of a step."""

    phase: StepPhase
    start: int
    """The index of its first change in `Footprint.changes`."""
    start_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorPool:
    """What a caching allocator says about one of its pools at the end of a step."""

    pool: str
    """ "small" (blocks up to 1 MB on CUDA), "large", or "all" for both together."""
    segments: int
    """Pieces that the allocator got from the device in one call."""
    reserved_bytes: int
    """Taken from the device."""
    peak_reserved_bytes: int
    """The most during the step, as all peaks here."""
    allocated_bytes: int
    """Used by tensors."""
    peak_allocated_bytes: int
    requested_bytes: int
    """What was asked for, before it was rounded up."""
    pending_bytes: int
    """Freed, but another stream may still use it."""
    split_bytes: int
    """Free, in segments that also contain used blocks: fragmentation."""
    peak_split_bytes: int

    @property
    def unused_bytes(self) -> int:
        """In segments without a used block, which `empty_cache()` returns to the device."""
        taken = self.allocated_bytes + self.pending_bytes + self.split_bytes
        return max(self.reserved_bytes - taken, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorPeak:
    """The peak that an allocator reports for an unobserved run of the step."""

    device: str
    peak_bytes: int
    """The most memory allocated beyond what was allocated before. Unlike the blocks, it includes
    memory that kernels allocate and free internally."""
    op: str = ""
    """The op with the peak, if the allocator knows."""
    pools: tuple[AllocatorPool, ...] = ()
    """All together first; empty for an allocator without pools, such as that of the CPU."""
    retries: int = 0
    """Allocations of the step that only succeeded after the cache was emptied."""
    ooms: int = 0
    """Allocations of the step that failed."""


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """The memory of one step of a model, on all devices."""

    blocks: tuple[MemoryBlock, ...]
    changes: tuple[MemoryChange, ...]
    """In order of time."""
    parts: tuple[StepPart, ...]
    allocations: tuple[AllocatorPeak, ...] = ()
    """One per device that reports it; empty if nothing was really allocated."""
    fake: bool = False
    """Whether it was predicted on fake tensors."""
    optimizer: str = ""
    """The class of the optimizer that stepped. Its state exists before the step, as from the
    second step on."""
    notes: tuple[str, ...] = ()
    """Notes on how it was measured."""


SpanKind = Literal["stage", "module", "op", "node"]
Stage = Literal["forward", "loss", "backward"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The time interval of one stage, module call, op or autograd node."""

    kind: SpanKind
    """"node" is an autograd node, which computes the gradient of an op."""
    name: str
    """The stage, the dotted path of the module, or torch's name of the op or node."""
    parent: int | None = None
    """The index of the span around it; spans are ordered by start.
    """
    owner: int | None = None
    """The span that its time is attributed to: its parent, or for a node its forward op or call."""
    start_ns: int
    end_ns: int
    cpu_ns: int = 0

    @property
    def total_ns(self) -> int:
        """Its duration, including inner spans."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """The calls and time of a module or op in one stage of one run."""

    calls: int = 0
    self_ns: int = 0
    total_ns: int = 0
    self_cpu_ns: int = 0
    total_cpu_ns: int = 0


class ModuleKey(NamedTuple):
    """A module in a stage. The path None stands for time outside of all modules."""

    path: str | None
    stage: Stage


class OpKey(NamedTuple):
    """All calls of one op in one module and stage. The op "" is the time between ops."""

    path: str | None
    op: str
    stage: Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimes:
    """The time of one run. The self times of all modules add up to it, as do those of all ops."""

    modules: Mapping[ModuleKey, StageTime]
    ops: Mapping[OpKey, StageTime]

    def root(self, stage: Stage) -> StageTime:
        """The time of the whole model in a stage."""
        return self.modules.get(ModuleKey("", stage), StageTime())

    @property
    def total_ns(self) -> int:
        """Forward and backward together, without the loss."""
        return self.root("forward").total_ns + self.root("backward").total_ns

    @property
    def total_cpu_ns(self) -> int:
        """The same in CPU time."""
        return self.root("forward").total_cpu_ns + self.root("backward").total_cpu_ns


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Several timed runs of one model on the same inputs."""

    runs: tuple[RunTimes, ...]
    published: int
    """The index of the run with the lowest total, which is reported because its times add up."""
    spans: tuple[Span, ...]
    """The spans of the reported run."""
    plain_cpu_ns: tuple[int, ...] = ()
    """The CPU time of runs in which only the whole forward and backward were timed."""
    warmup: int = 0
    clock: str = ""
    """The clock: "host", or the device whose events were used."""
    threads: int = 1
    """The number of CPU threads per op."""
    notes: tuple[str, ...] = field(default=())
    """Notes on how it was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTrial:
    """A batch size, and the memory that a training step with it would take."""

    batch: int
    peak_bytes: int
    """The most in tensors at one time."""
    scratch_bytes: int = 0
    """Memory that kernels take inside, extrapolated from real steps; 0 if none was run."""
    reserved_bytes: int | None = None
    """What the allocator of CUDA would take for them, by a model; None on other devices."""
    fixed_bytes: int = 0
    """The part that does not depend on the batch: weights, buffers and optimizer state."""
    fits: bool = True
    checkpoint: bool = False
    """Whether the repeated blocks recompute their activations in the backward."""

    @property
    def taken_bytes(self) -> int:
        """What it takes from the device."""
        if self.reserved_bytes is not None:
            return self.reserved_bytes
        return self.peak_bytes + self.scratch_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCheck:
    """A real step beside its prediction."""

    batch: int
    predicted_bytes: int
    measured_bytes: int

    @property
    def error(self) -> float:
        """The difference as a share of what was measured."""
        return self.predicted_bytes / max(self.measured_bytes, 1) - 1


QuantizationScale = Literal["tensor", "channel"]
"""Whether a weight has one scale, or one for each output channel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerQuantization:
    """One weight in a low-precision format, and what that does to the outputs of the model."""

    name: str
    """The dotted name of the parameter."""
    shape: tuple[int, ...]
    format: str
    """"int8", "int4" or "fp8"."""
    scale: QuantizationScale
    sqnr_db: float
    """Signal to quantization noise at the outputs of the model."""
    weight_sqnr_db: float
    """The same of the weight itself."""
    metric: float | None = None
    """The user's metric; None without one."""
    original_bytes: int
    bytes: int
    """With its scales."""
    outlier_channels: int = 0
    """Output channels with weights far above those of the others."""
    outlier_inputs: int = 0
    """Input features with activations far above those of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionMix:
    """A format for each layer, measured with all of them at once."""

    layers: tuple[LayerQuantization, ...]
    """The quantized ones, each in its format."""
    kept: tuple[str, ...]
    """The parameters that stay as they are."""
    original_bytes: int
    bytes: int
    sqnr_db: float
    metric: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPruning:
    """A share of the coupled channels of some layers removed, and what that does to the outputs."""

    group: int
    """The number of the group, in the order of the model."""
    layers: tuple[str, ...]
    """The layers that make the channels; all of them lose the same number."""
    channels: int
    removed: int
    sqnr_db: float
    """Signal to noise at the outputs of the model."""
    metric: float | None = None
    """The user's metric; None without one."""
    saved_flops: int
    """FLOPs of a forward saved by pruning this group alone; an estimate by proportion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedSpeed:
    """The shortest time of a forward out of some, in seconds."""

    plain_s: float
    zeroed_s: float
    """With the weights of the channels set to zero, which saves nothing."""
    cut_s: float
    """With the channels cut out of all layers."""
    repeats: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportCell:
    """One value of a report."""

    text: str = ""
    value: float | str | None = None
    """What it is sorted by; None without a value."""
    share: float | None = None
    """How hot its color is, from 0 to 1; None for no color."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportColumn:
    """The heading of some cells of a report."""

    title: str
    name: str = ""
    """A longer title, where there is room for it."""
    right: bool = True
    """Whether its cells are aligned right, as numbers are."""
    spare: int = 0
    """Without enough room, columns with the highest number are left out first; 0 never is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportEntry:
    """One row of a report."""

    paths: tuple[str, ...]
    """The modules that it is about; none if it is about the whole model."""
    cells: tuple[ReportCell, ...]
    is_suggested: bool = False
    """Whether the report suggests to do what it is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSection:
    """Some lines of a report."""

    title: str
    lines: tuple[str, ...]
    paths: tuple[str | None, ...] = ()
    """The module that each line is about."""


@dataclass(frozen=True, kw_only=True)
class ReportRecord:
    """A report as a view lays it over the tree of modules."""

    kind: str
    """What was done: "Batch size"."""
    answer: str
    sections: tuple[ReportSection, ...] = ()
    """What comes before the rows."""
    module_columns: tuple[ReportColumn, ...] = ()
    modules: Mapping[str, tuple[ReportCell, ...]] = field(default_factory=dict)
    """The cells beside each module, by path: a summary of the rows about it and those below."""
    columns: tuple[ReportColumn, ...] = ()
    entries: tuple[ReportEntry, ...] = ()
    """All rows, the most important first."""
    facts: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

"""What is told of the memory of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torchglass.records.memory import BlockId, BlockKind, StepPhase


class Moment(NamedTuple):
    """A change in the memory of a step, and how much there is of it right after."""

    time_ns: int
    live_bytes: int
    bytes: int
    """More than 0 where it was taken, less where it was freed."""
    phase: StepPhase
    op: str
    path: str | None
    block: BlockId


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What belongs to a module."""

    parameter_bytes: int = 0
    buffer_bytes: int = 0
    gradient_bytes: int = 0
    optimizer_bytes: int = 0
    activation_bytes: int = 0
    """Of activations that it made and somebody keeps for the backward."""
    saved_bytes: int = 0
    """Of activations and inputs that it keeps for the backward, whoever made them; what several
    keep is the first one's."""
    temporary_peak_bytes: int = 0
    """The most that it had at one time of what was neither kept nor a gradient."""
    peak_bytes: int = 0
    """Its part of the peak of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleMemory:
    """What one module takes: itself, and with all modules below it."""

    path: str | None
    """None for what no module made: the loss, and the temporaries of an optimizer."""
    own: Held
    total: Held


@dataclass(frozen=True, slots=True, kw_only=True)
class OpMemory:
    """What all calls of one kernel take in one module and one phase."""

    op: str
    path: str | None
    phase: StepPhase
    blocks: int
    taken_bytes: int
    """All that it took, also what was freed in between."""
    activation_bytes: int
    gradient_bytes: int
    most_bytes: int
    """The most that it had at one time."""
    peak_bytes: int
    """Its part of the peak of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Blocks of one kind and one maker that were there at the peak."""

    path: str | None
    kind: BlockKind
    op: str
    blocks: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class MemoryReport:
    """What a step takes on one device."""

    device: str
    modules: Mapping[str, ModuleMemory]
    """All that there are, by path; those below "" add up to the whole step."""
    unattributed: ModuleMemory
    ops: tuple[OpMemory, ...]
    """Those that hold most of the peak first, then those that took most."""
    timeline: tuple[Moment, ...]
    sizes: Mapping[BlockKind, int]
    """All blocks of each kind; of those that are temporary, the most at one time."""
    before_bytes: int
    """What was there before the step."""
    peak: Moment | None
    """The moment of the peak; None for a step that took nothing."""
    peak_holders: tuple[Holder, ...]
    """Who holds what at the peak, most first."""
    allocator_peak_bytes: int | None
    """The peak by the allocator itself, which knows what kernels take inside of themselves."""

    @property
    def root(self) -> ModuleMemory:
        """The whole step."""
        return self.modules[""]

    @property
    def peak_bytes(self) -> int:
        """The most that there was at one time."""
        return self.before_bytes if self.peak is None else self.peak.live_bytes

"""The time of a model: the spans of a run, and the time per module and op."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

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
    """Of the reported run."""
    plain_cpu_ns: tuple[int, ...] = ()
    """The CPU time of runs in which only the whole forward and backward were timed."""
    warmup: int = 0
    clock: str = ""
    """The clock: "host", or the device whose events were used."""
    threads: int = 1
    """The number of CPU threads per op."""
    notes: tuple[str, ...] = field(default=())
    """Notes on how it was measured."""

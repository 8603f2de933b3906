"""What a model takes: the spans of a run, and what they cost each module and op."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

SpanKind = Literal["stage", "module", "op", "node"]
Stage = Literal["forward", "loss", "backward"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of a run in which one thing was at work."""

    kind: SpanKind
    """"node" is a node of autograd, which takes a gradient backward through an op."""
    name: str
    """The stage, the dotted path of the module, or torch's name of the op or node."""
    parent: int | None = None
    """The span that it lies in, by its place in the run; spans stand in the order of their start.
    """
    owner: int | None = None
    """The span that it is charged to: its parent, or for a node the op or call that made it."""
    start_ns: int
    end_ns: int
    cpu_ns: int = 0

    @property
    def total_ns(self) -> int:
        """How long it lasted, inner spans included."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """What a module or an op took in one stage of one run."""

    calls: int = 0
    self_ns: int = 0
    total_ns: int = 0
    self_cpu_ns: int = 0
    total_cpu_ns: int = 0


class ModuleKey(NamedTuple):
    """A module in a stage. The path None stands for what no module owns."""

    path: str | None
    stage: Stage


class OpKey(NamedTuple):
    """All calls of one op in one module in a stage. The op "" is what lies between the others."""

    path: str | None
    op: str
    stage: Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimes:
    """What one run cost. The self times of all modules add up to it, as do those of all ops."""

    modules: Mapping[ModuleKey, StageTime]
    ops: Mapping[OpKey, StageTime]

    def root(self, stage: Stage) -> StageTime:
        """What the whole model took in a stage."""
        return self.modules.get(ModuleKey("", stage), StageTime())

    @property
    def total_ns(self) -> int:
        """Forward and backward together; the loss is not the model's."""
        return self.root("forward").total_ns + self.root("backward").total_ns

    @property
    def total_cpu_ns(self) -> int:
        """The same in CPU time."""
        return self.root("forward").total_cpu_ns + self.root("backward").total_cpu_ns


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Several runs of one model on the same inputs, timed alike."""

    runs: tuple[RunTimes, ...]
    published: int
    """The run with the lowest total: its numbers stand for all, because those of one run add up."""
    spans: tuple[Span, ...]
    """Of the published run."""
    plain_cpu_ns: tuple[int, ...] = ()
    """The CPU time of runs in which only forward and backward as wholes were timed."""
    warmup: int = 0
    clock: str = ""
    """What told the time: "host", or the device whose events did."""
    threads: int = 1
    """How many threads one op may use on the CPU."""
    notes: tuple[str, ...] = field(default=())
    """What the reader should know of how it was measured."""

"""Where the time of several runs went, module by module and op by op.

The times are those of one run, the published one, so that they add up. The spread over all runs
is beside them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from torchglass.records.timing import ModuleKey, OpKey, StageTime, Timing

Key = TypeVar("Key")

_HOST = "host"
_BUSY = 1.5
"""Above this ratio of wall time to CPU time the machine is busy, or the model waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """How long a module or op took in one stage, run by run."""

    runs: tuple[StageTime, ...]
    published: int

    @property
    def cost(self) -> StageTime:
        """What it took in the published run."""
        return self.runs[self.published]

    @property
    def self_ns(self) -> int:
        """The time it took itself, in the published run."""
        return self.cost.self_ns

    @property
    def total_ns(self) -> int:
        """The time it took with all inside of it, in the published run."""
        return self.cost.total_ns

    @property
    def median_ns(self) -> float:
        """The median of the totals of all runs."""
        return statistics.median(cost.total_ns for cost in self.runs)

    @property
    def spread_ns(self) -> tuple[float, float]:
        """The quartiles of the totals."""
        return middle_half([cost.total_ns for cost in self.runs])

    @property
    def median_self_ns(self) -> float:
        """The median of the self times of all runs."""
        return statistics.median(cost.self_ns for cost in self.runs)

    @property
    def self_spread_ns(self) -> tuple[float, float]:
        """The quartiles of the self times."""
        return middle_half([cost.self_ns for cost in self.runs])


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleTime:
    """How long one module took. A stage that it had no part in is None."""

    path: str | None
    """None for what no module owns: autograd's own work, and the backward of the loss."""
    forward: Times | None = None
    backward: Times | None = None

    @property
    def stages(self) -> list[Times]:
        """The stages that it had a part in."""
        return [times for times in (self.forward, self.backward) if times is not None]

    @property
    def total_ns(self) -> int:
        """Forward and backward together, in the published run."""
        return sum(times.total_ns for times in self.stages)

    @property
    def self_ns(self) -> int:
        """The same without what ran inside."""
        return sum(times.self_ns for times in self.stages)

    @property
    def calls(self) -> int:
        """How often it was called in a forward."""
        return self.forward.cost.calls if self.forward else 0

    @property
    def spread(self) -> float | None:
        """The distance of the quartiles of all runs, as a share of their median."""
        costs = zip(*(times.runs for times in self.stages), strict=True)
        totals = [sum(cost.total_ns for cost in run) for run in costs]
        median = statistics.median(totals) if totals else 0
        if not median:
            return None
        low, high = middle_half(totals)
        return (high - low) / median


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTime(ModuleTime):
    """How long all calls of one op in one module took."""

    op: str
    """torch's name of it; "" for the time between ops: Python and our own measuring."""


@dataclass(frozen=True, kw_only=True)
class Latency:
    """How long each module and each op of a model took."""

    modules: Mapping[str, ModuleTime]
    """All that took time, by path, uncalled containers included."""
    unattributed: ModuleTime
    ops: tuple[OpTime, ...]
    """Slowest first. Their self times add up to the root's total, as those of the modules do."""
    loss_ns: int
    busy: float | None
    """Wall time divided by CPU time where that is too much, else None."""
    overhead: float | None
    """CPU time of a timed run divided by that of a plain one; None where not measured."""

    @property
    def root(self) -> ModuleTime:
        """The whole model."""
        return self.modules[""]


def latency(timing: Timing) -> Latency:
    """All runs of a model together, with the times of the published one."""
    modules = _times((run.modules for run in timing.runs), timing.published)
    paths = dict.fromkeys(key.path for key in modules)
    by_path = {
        path: ModuleTime(
            path=path,
            forward=modules.get(ModuleKey(path, "forward")),
            backward=modules.get(ModuleKey(path, "backward")),
        )
        for path in paths
    }
    unattributed = by_path.pop(None, ModuleTime(path=None))
    published = timing.runs[timing.published]
    return Latency(
        modules={path: time for path, time in by_path.items() if path is not None},
        unattributed=unattributed,
        ops=_op_times(timing),
        loss_ns=published.modules.get(ModuleKey(None, "loss"), StageTime()).total_ns,
        busy=_busy(timing),
        overhead=_overhead(timing),
    )


def middle_half(values: Sequence[float]) -> tuple[float, float]:
    """The lower and the upper quartile."""
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def _times(runs: Iterable[Mapping[Key, StageTime]], published: int) -> dict[Key, Times]:
    """The costs of each key, run by run; one that a run did not have cost nothing in it."""
    every = list(runs)
    keys = dict.fromkeys(key for run in (every[published], *every) for key in run)
    nothing = StageTime()
    return {
        key: Times(runs=tuple(run.get(key, nothing) for run in every), published=published)
        for key in keys
    }


def _op_times(timing: Timing) -> tuple[OpTime, ...]:
    ops = _times((run.ops for run in timing.runs), timing.published)
    keys = dict.fromkeys((key.path, key.op) for key in ops if key.stage != "loss")
    times = (
        OpTime(
            path=path,
            op=op,
            forward=ops.get(OpKey(path, op, "forward")),
            backward=ops.get(OpKey(path, op, "backward")),
        )
        for path, op in keys
    )
    return tuple(sorted(times, key=lambda time: -time.self_ns))


def _busy(timing: Timing) -> float | None:
    """Only the host's clock goes on while other processes have the CPU."""
    run = timing.runs[timing.published]
    if timing.clock != _HOST or not run.total_cpu_ns:
        return None
    ratio = run.total_ns / run.total_cpu_ns
    return ratio if ratio > _BUSY else None


def _overhead(timing: Timing) -> float | None:
    plain = min(timing.plain_cpu_ns, default=0)
    return min(run.total_cpu_ns for run in timing.runs) / plain if plain else None

"""Where the time of several runs went: self time and total time per module and op.

The times are those of one run, the published one, so that they add up. The spread over all runs
is given too.

Self time is the total time without inner calls. Backward does not run module by module: there a
module's time is that of the autograd nodes that its ops created.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TypeVar

from torchglass.records.measures import ModuleKey, OpKey, RunTimes, Span, Stage, StageTime, Timing
from torchglass.records.model import paths_above

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
        """The self time of the published run."""
        return self.cost.self_ns

    @property
    def total_ns(self) -> int:
        """The total time of the published run."""
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
    """How long one module took. A stage that it did not run in is None."""

    path: str | None
    """None for what belongs to no module: autograd itself, and the backward of the loss."""
    forward: Times | None = None
    backward: Times | None = None

    @property
    def stages(self) -> list[Times]:
        """The stages that it ran in."""
        return [times for times in (self.forward, self.backward) if times is not None]

    @property
    def total_ns(self) -> int:
        """Forward and backward together, in the published run."""
        return sum(times.total_ns for times in self.stages)

    @property
    def self_ns(self) -> int:
        """The same without inner calls."""
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
    """torch's name of it; "" for the time between ops: Python code and our own timers."""


@dataclass(frozen=True, kw_only=True)
class Latency:
    """How long each module and each op of a model took."""

    modules: Mapping[str, ModuleTime]
    """All that took time, by path, including containers that are never called."""
    unattributed: ModuleTime
    ops: tuple[OpTime, ...]
    """Slowest first. Their self times add up to the root's total, as those of the modules do."""
    loss_ns: int
    busy: float | None
    """Wall time divided by CPU time if that is far above 1, else None."""
    overhead: float | None
    """CPU time of a timed run divided by that of an untimed one; None if not measured."""

    @property
    def root(self) -> ModuleTime:
        """The whole model."""
        return self.modules[""]


def latency(timing: Timing) -> Latency:
    """The times of the published run, with the spread over all runs."""
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
    """The times of each key, run by run; 0 in a run without the key."""
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
    run = timing.runs[timing.published]
    # Only the host's clock runs on while other processes have the CPU.
    if timing.clock != _HOST or not run.total_cpu_ns:
        return None
    ratio = run.total_ns / run.total_cpu_ns
    return ratio if ratio > _BUSY else None


def _overhead(timing: Timing) -> float | None:
    plain = min(timing.plain_cpu_ns, default=0)
    return min(run.total_cpu_ns for run in timing.runs) / plain if plain else None


_STAGES: tuple[Stage, ...] = ("forward", "loss", "backward")
_ENOUGH = 8
"""The fewest gaps between nodes that define the usual gap."""


def attribute_time(spans: Sequence[Span]) -> RunTimes:
    """The time of each module and op per stage, from the spans of one run."""
    times = _SpanTimes(spans)
    return RunTimes(modules=times.of_modules(), ops=times.of_ops())


class _SpanTimes:
    """The spans of one run, each with its self time, its stage and the path of its module."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = spans
        self._self_ns = [span.total_ns for span in spans]
        self._self_cpu_ns = [span.cpu_ns for span in spans]
        self._stages: list[Stage] = []
        self._paths: list[str | None] = []
        for span in spans:
            if span.parent is None:
                self._stages.append(next(stage for stage in _STAGES if stage == span.name))
            else:
                self._self_ns[span.parent] -= span.total_ns
                self._self_cpu_ns[span.parent] -= span.cpu_ns
                self._stages.append(self._stages[span.parent])
            self._paths.append(self._path(span))
        for index, span in enumerate(spans):
            if span.kind == "stage" and span.name == "backward":
                self._attribute_gaps(index)

    def _attribute_gaps(self, backward: int) -> None:
        """Attribute to a node the part of the gap after it that is longer than usual.

        In that gap autograd sums the gradients of a tensor that several nodes used. The usual gap
        is the time of autograd itself and of the hooks that time the nodes.
        """
        nodes = [index for index, span in enumerate(self._spans) if span.parent == backward]
        gaps = [
            (self._spans[after].start_ns - self._spans[before].end_ns, before)
            for before, after in pairwise(nodes)
        ]
        if len(gaps) < _ENOUGH:
            return
        usual = int(median(gap for gap, _ in gaps))
        whole, cpu = self._self_ns[backward], self._self_cpu_ns[backward]
        for gap, before in gaps:
            more = min(gap - usual, self._self_ns[backward])
            if more > usual:
                more_cpu = more * cpu // whole
                self._self_ns[before] += more
                self._self_cpu_ns[before] += more_cpu
                self._self_ns[backward] -= more
                self._self_cpu_ns[backward] -= more_cpu

    def _path(self, span: Span) -> str | None:
        """The path of the module that a span is attributed to."""
        if span.kind == "module":
            return span.name
        if span.kind == "stage":
            return "" if span.name == "forward" else None
        return None if span.owner is None else self._paths[span.owner]

    def of_modules(self) -> dict[ModuleKey, StageTime]:
        own: dict[ModuleKey, list[int]] = defaultdict(list)
        for index, path in enumerate(self._paths):
            own[ModuleKey(path, self._stages[index])].append(index)
        inside = self._inside()
        outermost = {path: self._outermost(group) for path, group in self._groups().items()}
        costs = {}
        for stage in _STAGES:
            for path in (None, *outermost):
                key = ModuleKey(path, stage)
                mine = own.get(key, [])
                ns, cpu_ns = self._sum(mine)
                # Time outside of all modules has no inner calls, so all of it is self time.
                total = ns, cpu_ns
                if path is not None:
                    parts = [inside[stage][index] for index in outermost[path]]
                    total = sum(part[0] for part in parts), sum(part[1] for part in parts)
                if mine or any(total):
                    costs[key] = StageTime(
                        calls=sum(self._spans[index].kind == "module" for index in mine),
                        self_ns=ns,
                        total_ns=total[0],
                        self_cpu_ns=cpu_ns,
                        total_cpu_ns=total[1],
                    )
        return costs

    def _inside(self) -> dict[Stage, list[tuple[int, int]]]:
        """The time of each span including all below it, per stage."""
        inside = {stage: [(0, 0)] * len(self._spans) for stage in _STAGES}
        for index in reversed(range(len(self._spans))):
            stage, owner = self._stages[index], self._spans[index].owner
            ns, cpu_ns = inside[stage][index]
            inside[stage][index] = ns + self._self_ns[index], cpu_ns + self._self_cpu_ns[index]
            if owner is not None:
                for sums in inside.values():
                    sums[owner] = sums[owner][0] + sums[index][0], sums[owner][1] + sums[index][1]
        return inside

    def _groups(self) -> dict[str, list[int]]:
        """The spans of each module; an uncalled container has the spans of all modules below it."""
        groups: dict[str, list[int]] = {"": []}
        for index, span in enumerate(self._spans):
            if span.kind == "module":
                groups.setdefault(span.name, []).append(index)
            elif span.kind == "stage":
                groups[""].append(index)
        containers: dict[str, list[int]] = defaultdict(list)
        for path, group in groups.items():
            for above in paths_above(path):
                if above not in groups:
                    containers[above] += group
        return {**groups, **containers}

    def _outermost(self, group: Sequence[int]) -> list[int]:
        """The spans that are not inside another one of the group: recursion counts once."""
        if len(group) == 1:
            return list(group)
        members = set(group)
        return [index for index in group if members.isdisjoint(self._owners(index))]

    def _owners(self, index: int) -> Iterator[int]:
        owner = self._spans[index].owner
        while owner is not None:
            yield owner
            owner = self._spans[owner].owner

    def of_ops(self) -> dict[OpKey, StageTime]:
        groups: dict[OpKey, list[int]] = defaultdict(list)
        for index, stage in enumerate(self._stages):
            groups[OpKey(self._paths[index], self._op(index), stage)].append(index)
        costs = {}
        for key, group in groups.items():
            ns, cpu = self._sum(group)
            costs[key] = StageTime(
                calls=len(group), self_ns=ns, total_ns=ns, self_cpu_ns=cpu, total_cpu_ns=cpu
            )
        return costs

    def _op(self, index: int) -> str:
        """The op that a span is part of; an autograd node belongs to its forward op."""
        span = self._spans[index]
        if span.kind == "node" and span.owner is not None:
            return self._op(span.owner) or span.name
        return span.name if span.kind in ("op", "node") else ""

    def _sum(self, indices: Iterable[int]) -> tuple[int, int]:
        found = list(indices)
        return sum(self._self_ns[at] for at in found), sum(self._self_cpu_ns[at] for at in found)

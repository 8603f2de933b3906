"""Attributes the time of one run to modules and ops: own time and total time.

Self time is the total without what ran inside. A backward does not run in the order of modules:
there a module is charged for the nodes that its ops made, and those inside of it for theirs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import median

from torchglass.records.timing import ModuleKey, OpKey, RunTimes, Span, Stage, StageTime

_STAGES: tuple[Stage, ...] = ("forward", "loss", "backward")
_ENOUGH = 8
"""The fewest gaps between nodes that define the usual gap."""


def charge(spans: Sequence[Span]) -> RunTimes:
    """The time of each module and op per stage, from the spans of one run."""
    return _Charging(spans).charges()


class _Charging:
    """The spans of one run, each with its own time and the span it is attributed to."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = spans
        self._self_ns = [span.total_ns for span in spans]
        self._self_cpu_ns = [span.cpu_ns for span in spans]
        self._stages: list[Stage] = []
        self._homes: list[str | None] = []
        for span in spans:
            if span.parent is not None:
                self._self_ns[span.parent] -= span.total_ns
                self._self_cpu_ns[span.parent] -= span.cpu_ns
            self._stages.append(self._stage(span))
            self._homes.append(self._home(span))
        for index, span in enumerate(spans):
            if span.kind == "stage" and span.name == "backward":
                self._charge_sums(index)

    def _charge_sums(self, backward: int) -> None:
        """Attribute the gap after a node to that node, as far as it is longer than usual.

        Autograd adds a node's gradient there to those that others gave the same tensor. The usual
        time between two nodes is autograd's own, and that of the hooks which time the nodes.
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

    def charges(self) -> RunTimes:
        return RunTimes(modules=self._of_modules(), ops=self._of_ops())

    def _stage(self, span: Span) -> Stage:
        if span.parent is not None:
            return self._stages[span.parent]
        return next(stage for stage in _STAGES if stage == span.name)

    def _home(self, span: Span) -> str | None:
        """The path of the module that a span is attributed to."""
        if span.kind == "module":
            return span.name
        if span.kind == "stage":
            return "" if span.name == "forward" else None
        return None if span.owner is None else self._homes[span.owner]

    def _of_modules(self) -> dict[ModuleKey, StageTime]:
        own: dict[ModuleKey, list[int]] = defaultdict(list)
        for index, home in enumerate(self._homes):
            own[ModuleKey(home, self._stages[index])].append(index)
        inside = self._inside()
        outermost = {path: self._outermost(group) for path, group in self._groups().items()}
        costs = {}
        for stage in _STAGES:
            for path in (None, *outermost):
                key = ModuleKey(path, stage)
                mine = own.get(key, [])
                ns, cpu_ns = self._sum(mine)
                # Time outside of all modules has nothing inside, so it is all own time.
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
        """The spans of each module; for a container that is never called, those of all below it."""
        groups: dict[str, list[int]] = {"": []}
        for index, span in enumerate(self._spans):
            if span.kind == "module":
                groups.setdefault(span.name, []).append(index)
            elif span.kind == "stage":
                groups[""].append(index)
        containers: dict[str, list[int]] = defaultdict(list)
        for path, group in groups.items():
            for above in _paths_above(path):
                if above not in groups:
                    containers[above] += group
        return {**groups, **containers}

    def _outermost(self, group: Sequence[int]) -> list[int]:
        """The spans that are inside none of the others: recursion counts once."""
        if len(group) == 1:
            return list(group)
        members = set(group)
        return [index for index in group if members.isdisjoint(self._owners(index))]

    def _owners(self, index: int) -> Iterator[int]:
        owner = self._spans[index].owner
        while owner is not None:
            yield owner
            owner = self._spans[owner].owner

    def _of_ops(self) -> dict[OpKey, StageTime]:
        groups: dict[OpKey, list[int]] = defaultdict(list)
        for index, stage in enumerate(self._stages):
            groups[OpKey(self._homes[index], self._op(index), stage)].append(index)
        costs = {}
        for key, group in groups.items():
            ns, cpu_ns = self._sum(group)
            costs[key] = StageTime(
                calls=len(group),
                self_ns=ns,
                total_ns=ns,
                self_cpu_ns=cpu_ns,
                total_cpu_ns=cpu_ns,
            )
        return costs

    def _op(self, index: int) -> str:
        """The op that a span is part of; an autograd node belongs to its forward op."""
        span = self._spans[index]
        if span.kind == "node" and span.owner is not None:
            return self._op(span.owner) or span.name
        return span.name if span.kind in ("op", "node") else ""

    def _sum(self, indices: Iterable[int]) -> tuple[int, int]:
        ns = cpu_ns = 0
        for index in indices:
            ns += self._self_ns[index]
            cpu_ns += self._self_cpu_ns[index]
        return ns, cpu_ns


def _paths_above(path: str) -> Iterator[str]:
    above = path.rpartition(".")[0]
    while above:
        yield above
        above = above.rpartition(".")[0]

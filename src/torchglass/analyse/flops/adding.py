"""What each module and each op of a model computes, added up from the work that was counted.

A module's total is the work of all that it called. What a checkpoint runs again counts as backward,
where it happens; how much that is stands beside it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from torchglass.records.flops import Nature, OpWork, Place, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """How much was computed in one direction, without and with what was called inside."""

    self_flops: int = 0
    total_flops: int = 0
    self_bytes: int = 0
    total_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OpFlops:
    """What all calls of one op computed."""

    op: str
    """torch's name with its namespace: "aten.addmm"."""
    nature: Nature
    calls: int
    forward_flops: int = 0
    backward_flops: int = 0
    bytes: int = 0
    time_ns: int | None = None
    """None where ops were not timed."""

    @property
    def total_flops(self) -> int:
        """Forward and backward together."""
        return self.forward_flops + self.backward_flops

    @property
    def intensity(self) -> float | None:
        """Operations for each byte that it moves."""
        return self.total_flops / self.bytes if self.bytes else None

    @property
    def flops_per_second(self) -> float | None:
        """How fast it went; None where it was not timed."""
        return 1e9 * self.total_flops / self.time_ns if self.time_ns else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleFlops:
    """What one module computes."""

    path: str | None
    """None for what ran outside of all modules, as a loss does."""
    calls: int = 0
    forward: Amount = field(default_factory=Amount)
    backward: Amount = field(default_factory=Amount)
    recomputed_flops: int = 0
    """What of its backward a checkpoint ran again, all inside included."""
    uncounted_calls: int = 0
    """How many ops in it, all inside included, have no formula."""
    ops: tuple[OpFlops, ...] = ()
    """Its own, without those of what it called; the largest first."""

    @property
    def self_flops(self) -> int:
        """Both directions, without what it called."""
        return self.forward.self_flops + self.backward.self_flops

    @property
    def total_flops(self) -> int:
        """Both directions, with all that it called."""
        return self.forward.total_flops + self.backward.total_flops

    @property
    def total_bytes(self) -> int:
        """What all its ops read and write."""
        return self.forward.total_bytes + self.backward.total_bytes

    @property
    def intensity(self) -> float | None:
        """Operations for each byte that is moved in it."""
        return self.total_flops / self.total_bytes if self.total_bytes else None


class Sums(NamedTuple):
    """The work of a step for each module and each op."""

    modules: Mapping[str, ModuleFlops]
    """All that were called, by path, and the containers of such; the model itself is ""."""
    unattributed: ModuleFlops
    ops: tuple[OpFlops, ...]
    """Over the whole model, the largest first."""


def add_up(work: Work) -> Sums:
    """The work of a step, added up for each module and each op."""
    own: dict[int | None, list[OpWork]] = defaultdict(list)
    for op in work.ops:
        own[op.place].append(op)
    calls: dict[str, int] = {"": 0}
    for place in work.places:
        calls[place.path] = calls.get(place.path, 0) + place.calls
    selves: dict[str, list[OpWork]] = defaultdict(list)
    totals: dict[str, list[OpWork]] = defaultdict(list)
    for index, place in enumerate(work.places):
        selves[place.path] += own[index]
        for path in _holders(work.places, index, calls):
            totals[path] += own[index]
    return Sums(
        modules={
            path: _module(path, calls.get(path, 0), selves[path], totals[path])
            for path in dict.fromkeys([*calls, *totals])
        },
        unattributed=_module(None, 0, own[None], own[None]),
        ops=_ops(work.ops),
    )


def _holders(places: tuple[Place, ...], index: int, called: Mapping[str, int]) -> Iterable[str]:
    """The paths whose totals have a part in what runs in a place, each once."""
    found: dict[str, None] = {"": None}
    place: int | None = index
    while place is not None:
        path = places[place].path
        found[path] = None
        above = path.rpartition(".")[0]
        while above:
            # A container that nobody calls, as a ModuleList, has what its modules have.
            if above not in called:
                found[above] = None
            above = above.rpartition(".")[0]
        place = places[place].parent
    return found


def _module(
    path: str | None, calls: int, selves: list[OpWork], totals: list[OpWork]
) -> ModuleFlops:
    return ModuleFlops(
        path=path,
        calls=calls,
        forward=_amount(selves, totals, backward=False),
        backward=_amount(selves, totals, backward=True),
        recomputed_flops=sum(op.flops for op in totals if op.stage == "recompute"),
        uncounted_calls=sum(op.calls for op in totals if op.nature == "uncounted"),
        ops=_ops(selves),
    )


def _amount(selves: list[OpWork], totals: list[OpWork], *, backward: bool) -> Amount:
    own = [op for op in selves if (op.stage != "forward") == backward]
    every = [op for op in totals if (op.stage != "forward") == backward]
    return Amount(
        self_flops=sum(op.flops for op in own),
        total_flops=sum(op.flops for op in every),
        self_bytes=sum(op.bytes for op in own),
        total_bytes=sum(op.bytes for op in every),
    )


def _ops(work: Iterable[OpWork]) -> tuple[OpFlops, ...]:
    groups: dict[tuple[str, Nature], list[OpWork]] = defaultdict(list)
    for op in work:
        groups[op.op, op.nature].append(op)
    found = [
        OpFlops(
            op=name,
            nature=nature,
            calls=sum(op.calls for op in group),
            forward_flops=sum(op.flops for op in group if op.stage == "forward"),
            backward_flops=sum(op.flops for op in group if op.stage != "forward"),
            bytes=sum(op.bytes for op in group),
            time_ns=_time(group),
        )
        for (name, nature), group in groups.items()
    ]
    return tuple(sorted(found, key=lambda op: (-op.total_flops, -op.bytes)))


def _time(group: Iterable[OpWork]) -> int | None:
    times = [op.time_ns for op in group if op.time_ns is not None]
    return sum(times) if times else None

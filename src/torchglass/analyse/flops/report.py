"""All that is known of what a model computes, and of how fast."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from torchglass.analyse.flops.adding import ModuleFlops, OpFlops, Sums, add_up
from torchglass.analyse.latency import Latency, ModuleTime, latency
from torchglass.records.flops import Work
from torchglass.records.model import Model
from torchglass.records.timing import Timing


class FlopReport:
    """What each module and op of a model computes in one step.

    A multiplication and the addition of its product are two operations, and one MAC. Matrix
    products, convolutions and attention are counted, and all that is made of them. What an
    elementwise op, a norm, a softmax or a pooling computes is not.
    """

    def __init__(self, model: Model, work: Work, timing: Timing | None = None) -> None:
        self.model = model
        self.work = work
        self.timing = timing

    @cached_property
    def _sums(self) -> Sums:
        return add_up(self.work)

    @cached_property
    def latency(self) -> Latency | None:
        """What each module took; None where it was not timed."""
        return None if self.timing is None else latency(self.timing)

    @property
    def rows(self) -> Mapping[str, ModuleFlops]:
        """What each module that ran computes, by its path; the model itself is ""."""
        return self._sums.modules

    @property
    def root(self) -> ModuleFlops:
        """What the whole model computes."""
        return self.rows[""]

    @property
    def unattributed(self) -> ModuleFlops:
        """What ran outside of all modules, as a loss does."""
        return self._sums.unattributed

    @property
    def ops(self) -> tuple[OpFlops, ...]:
        """What each op computes over the whole model, the largest first."""
        return self._sums.ops

    @property
    def free(self) -> tuple[OpFlops, ...]:
        """The ops that have no products, and so count as nothing."""
        return tuple(op for op in self.ops if op.nature == "free")

    @property
    def uncounted(self) -> tuple[OpFlops, ...]:
        """The ops that compute something and have no formula, those that take most first."""
        found = (op for op in self.ops if op.nature == "uncounted")
        return tuple(sorted(found, key=lambda op: (-(op.time_ns or 0), -op.calls)))

    @property
    def is_lower_bound(self) -> bool:
        """Whether some ops have no formula, so that there is more than was counted."""
        return bool(self.uncounted)

    @property
    def total_flops(self) -> int:
        """All that the step computes."""
        return self.forward_flops + self.backward_flops

    @property
    def total_macs(self) -> int:
        """The same in multiplications, each with its addition."""
        return self.total_flops // 2

    @property
    def forward_flops(self) -> int:
        """What the forward and the loss compute."""
        return self.root.forward.total_flops + self.unattributed.forward.total_flops

    @property
    def backward_flops(self) -> int:
        """What the backward computes, with what a checkpoint runs again in it."""
        return self.root.backward.total_flops + self.unattributed.backward.total_flops

    @property
    def recomputed_flops(self) -> int:
        """What of the backward is a forward run again, because of a checkpoint."""
        return self.root.recomputed_flops + self.unattributed.recomputed_flops

    @property
    def total_bytes(self) -> int:
        """What all ops read and write, as if nothing stayed in a cache."""
        return self.root.total_bytes + self.unattributed.total_bytes

    @property
    def intensity(self) -> float | None:
        """Operations for each byte that is moved."""
        return self.total_flops / self.total_bytes if self.total_bytes else None

    @property
    def flops_per_second(self) -> float | None:
        """How fast the model computed; None where it was not timed."""
        return self.speed(self.root)

    @property
    def uncounted_share(self) -> float | None:
        """What share of the time the uncounted ops took; None where it was not measured."""
        return self.share(self.uncounted)

    def share(self, ops: Iterable[OpFlops]) -> float | None:
        """What share of the time some ops took; None where ops were not timed."""
        if not self.work.total_ns:
            return None
        return sum(op.time_ns or 0 for op in ops) / self.work.total_ns

    def time_ns(self, module: ModuleFlops) -> int | None:
        """What a module took with all that it called; None where it was not timed."""
        if self.latency is None:
            return None
        if module.path is None:
            return self.latency.unattributed.total_ns
        return self.latency.modules.get(module.path, ModuleTime(path="")).total_ns

    def speed(self, module: ModuleFlops) -> float | None:
        """The operations a second of a module; None where it was not timed."""
        time_ns = self.time_ns(module)
        return 1e9 * module.total_flops / time_ns if time_ns else None

"""The results of `estimate` and `batch_size`: what a training would take elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from torchglass.analyse.accelerators import (
    Accelerator,
    ModuleCost,
    RankMemory,
    StepCost,
    rank_memory,
    step_costs,
)
from torchglass.analyse.memory import MemoryReport, Reserved, devices_of, reserved_for
from torchglass.analyse.sibling_order import MeasureSort
from torchglass.records.measures import BatchTrial, BlockKind, FlopRecord, Footprint, StepCheck
from torchglass.records.model import Model
from torchglass.results.memory import KIND_NAMES
from torchglass.results.report import ListReport, ModuleReport, RowsByPath, largest
from torchglass.tables.text import (
    Column,
    Fact,
    format_bytes,
    format_flops,
    format_share,
    format_time,
    number_column,
    share_text,
    table_text,
    wrapped,
)

_NO_COST = StepCost()
_BOUND = "times are lower bounds at the data sheet's rates: no launch overhead, no communication"
_MODEL = "reserved memory is a model of torch's CUDA allocator, without context and workspaces"


class Estimate(ModuleReport[ModuleCost]):
    """What a step of a model takes on an accelerator; print it or export it.

    Nothing was run: FLOPs, bytes and memory come from shapes, the times from the data sheet.
    """

    _total_size, _self_size = "total.flops", "own.flops"

    def __init__(
        self,
        model: Model,
        work: FlopRecord,
        footprint: Footprint,
        *,
        device: Accelerator,
        precision: str,
        blocks: Sequence[str] = (),
        world_sizes: Sequence[int] = (),
    ) -> None:
        self.model = model
        self.work = work
        self.device = device
        self.precision = precision
        self.blocks = blocks
        self.world_sizes = world_sizes
        costs = step_costs(work, device, precision)
        self.rows = RowsByPath(costs.modules)
        self.root = costs.modules[""]
        self.unattributed = costs.unattributed
        on = devices_of(footprint)[0]
        self.memory = MemoryReport(footprint, model, on)
        """The predicted memory of the step, on one device."""
        self.reserved: Reserved = reserved_for(footprint, on)
        """What torch's CUDA allocator would take, according to a model of it."""

    @property
    def total_flops(self) -> int:
        """Forward, loss and backward."""
        return self.root.total.flops + self.unattributed.total.flops

    @property
    def forward_s(self) -> float:
        """The least time of the forward and the loss, in seconds."""
        return self.root.total.forward_s + self.unattributed.total.forward_s

    @property
    def backward_s(self) -> float:
        """The least time of the backward, in seconds."""
        return self.root.total.backward_s + self.unattributed.total.backward_s

    @property
    def optimizer_s(self) -> float:
        """The least time of the update: it reads weights, gradients and state, and writes them."""
        if not self.memory.footprint.optimizer:
            return 0.0
        sizes = self.memory.sizes
        kept = sizes.get("parameter", 0) + sizes.get("optimizer", 0)
        return (2 * kept + sizes.get("gradient", 0)) / self.device.bandwidth

    @property
    def step_s(self) -> float:
        """The least time of the whole step, in seconds."""
        return self.forward_s + self.backward_s + self.optimizer_s

    @property
    def compute_s(self) -> float:
        """The time of the products alone, at the peak rate."""
        return self.total_flops / self.device.rate(self.precision)

    @property
    def fits(self) -> bool:
        """Whether the step fits into the memory of one accelerator."""
        return self.reserved.reserved_bytes <= self.device.memory_bytes

    @property
    def answer(self) -> str:
        """Whether it fits and how long it takes at least, in one sentence."""
        step = "A training step" if self.work.backward else "A forward"
        need, has = format_bytes(self.reserved.reserved_bytes), self.device.memory_bytes
        fit = "fits" if self.fits else "does not fit"
        return (
            f"{step} of {self.model.name} needs {need} and {fit} in one {self.device.name} "
            f"({format_bytes(has)}). It takes at least {format_time(self.step_s)} in "
            f"{self.precision}."
        )

    def ranks(self, world_size: int) -> list[RankMemory]:
        """The memory per rank on this many devices, for each way to spread the model."""
        return list(rank_memory(self.memory, self.blocks, world_size))

    def rank_table(self, *, width: int | None = None) -> str:
        """The memory per rank for the world sizes that were asked for."""

        def fits(row: RankMemory) -> str:
            return "yes" if row.total_bytes <= self.device.memory_bytes else "no"

        columns: list[Column[RankMemory]] = [
            Column("strategy", "Per rank", lambda row: row.strategy, right=False),
            Column("ranks", "Ranks", lambda row: f"{row.world_size:,}"),
            _size("Parameters", "parameter_bytes", spare=2),
            _size("Gradients", "gradient_bytes", spare=3),
            _size("Optimizer", "optimizer_bytes", spare=4),
            _size("Activations", "activation_bytes", spare=1),
            _size("Gathered", "gathered_bytes", spare=5),
            _size("Total", "total_bytes"),
            Column("fits", "Fits", fits, right=False),
        ]
        rows = [row for size in self.world_sizes for row in self.ranks(size)]
        return table_text(columns, rows, room=width)

    def op_table(self, count: int | None = 20, *, width: int | None = None) -> str:
        """The ops that take longest at least; a `count` of None shows all."""
        rate, bandwidth = self.device.rate(self.precision), self.device.bandwidth
        ops = [(op, max(op.flops / rate, op.bytes / bandwidth)) for op in self.work.ops]
        ops.sort(key=lambda one: -one[1])
        columns: list[Column[Any]] = [
            Column("op", "Op", lambda one: one[0].op, right=False),
            Column("stage", "Stage", lambda one: one[0].stage, right=False, spare=2),
            Column("calls", "Calls", lambda one: f"{one[0].calls:,}", spare=3),
            number_column("flops", "FLOPs", lambda one: one[0].flops, format_flops),
            number_column("bytes", "Moved", lambda one: one[0].bytes, format_bytes, spare=1),
            number_column("time", "At least", lambda one: one[1], format_time),
            Column(
                "limit",
                "Limited by",
                lambda one: (
                    "bandwidth" if one[0].bytes / bandwidth > one[0].flops / rate else "compute"
                ),
                right=False,
            ),
        ]
        return largest(columns, ops, count, width)

    def table(self, *, width: int | None = None, **options: Any) -> str:
        """The answer, then the modules as a table; options as of other reports."""
        parts = [*wrapped(self.answer, width), super().table(width=width, **options)]
        if self.world_sizes:
            parts.append(self.rank_table(width=width))
        return "\n".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """The report as dicts, lists, strings and numbers."""
        return {
            "model": self.model.name,
            "answer": self.answer,
            "device": dataclasses.asdict(self.device),
            "precision": self.precision,
            "fits": self.fits,
            "peak_bytes": self.memory.peak_bytes,
            "reserved_bytes": self.reserved.reserved_bytes,
            "sizes": dict(self.memory.sizes),
            "total_flops": self.total_flops,
            "forward_s": self.forward_s,
            "backward_s": self.backward_s,
            "optimizer_s": self.optimizer_s,
            "step_s": self.step_s,
            "modules": [dataclasses.asdict(row) for row in self.rows.values()],
            "ranks": [
                {**dataclasses.asdict(row), "total_bytes": row.total_bytes}
                for size in self.world_sizes
                for row in self.ranks(size)
            ],
            "notes": self._notes(),
        }

    def _columns(self) -> Sequence[Column[ModuleCost]]:
        whole = self.forward_s + self.backward_s
        return [
            *self._first_columns(spare=3),
            number_column(
                "flops", "FLOPs", lambda row: row.total.flops, format_flops, csv="total_flops"
            ),
            number_column("bytes", "Moved", lambda row: row.total.bytes, format_bytes, csv="bytes"),
            number_column(
                "forward",
                "Forward ≥",
                lambda row: row.total.forward_s,
                format_time,
                csv="forward_s",
                spare=2,
            ),
            number_column(
                "backward",
                "Backward ≥" if self.work.backward else "",
                lambda row: row.total.backward_s,
                format_time,
                csv="backward_s",
                spare=2,
            ),
            Column("share", "share", lambda row: share_text(row.total.seconds, whole), spare=1),
            Column(
                "bandwidth",
                "On bandwidth",
                lambda row: share_text(row.total.bandwidth_s, row.total.seconds),
                spare=4,
                csv="bandwidth_s",
                value=lambda row: row.total.bandwidth_s,
            ),
        ]

    def _facts(self) -> list[Fact]:
        sizes = self.memory.sizes
        kinds: tuple[BlockKind, ...] = ("parameter", "gradient", "optimizer", "activation")
        shown = [
            f"{format_bytes(sizes[kind])} {KIND_NAMES[kind]}" for kind in kinds if sizes.get(kind)
        ]
        parts = [f"forward {format_time(self.forward_s)}"]
        if self.work.backward:
            parts.append(f"backward {format_time(self.backward_s)}")
        if self.optimizer_s:
            parts.append(f"{self.memory.footprint.optimizer} {format_time(self.optimizer_s)}")
        share = format_share(self.compute_s, self.step_s)
        return [
            Fact("Time", f"at least {format_time(self.step_s)}: {', '.join(parts)}"),
            Fact("Compute", f"{format_flops(self.total_flops)}FLOPs, {share} of that time"),
            Fact("Memory", f"peak {format_bytes(self.memory.peak_bytes)}: {', '.join(shown)}"),
            Fact("Device", self._device_fact()),
        ]

    def _device_fact(self) -> str:
        one = self.device
        rate = format_flops(one.rate(self.precision))
        return (
            f"{one.name}: {rate}FLOP/s in {self.precision}, "
            f"{format_bytes(one.bandwidth, step=1000)}/s, {format_bytes(one.memory_bytes)}"
            + (f" ({one.source})" if one.source else "")
        )

    def _notes(self) -> list[str]:
        return [_BOUND, _MODEL, *dict.fromkeys([*self.work.notes, *self.memory.footprint.notes])]

    def _is_listed(self, row: ModuleCost, sort: MeasureSort | None) -> bool:
        return (row.own if sort == "self" else row.total) != _NO_COST


def _size(heading: str, field: str, spare: int = 0) -> Column[RankMemory]:
    def size(row: RankMemory) -> int:
        value: int = getattr(row, field)
        return value

    return number_column(heading.lower(), heading, size, format_bytes, spare=spare)


class BatchSize(ListReport[BatchTrial]):
    """The largest batch size that fits into memory; print it or export it."""

    def __init__(
        self,
        model: Model,
        trials: Sequence[BatchTrial],
        *,
        memory_bytes: int,
        margin: float,
        checkpointed: Sequence[BatchTrial] = (),
        recompute_cost: float = 1.0,
        check: StepCheck | None = None,
        optimizer: str = "",
        precision: str = "",
        real_batches: Sequence[int] = (),
    ) -> None:
        self.model = model
        """The structure of the model."""
        self.name = model.name
        self.real_batches = tuple(real_batches)
        """The batch sizes of real steps, from which the memory inside kernels is extrapolated."""
        self.trials = tuple(trials)
        """Every batch size that was tried, the smallest first."""
        self.checkpointed = tuple(checkpointed)
        """The same with the repeated blocks checkpointed."""
        self.entries = (*self.trials, *self.checkpointed)
        self.memory_bytes = memory_bytes
        self.margin = margin
        self.recompute_cost = recompute_cost
        """What a step with checkpointing computes, in plain steps."""
        self.check = check
        """A real step beside its prediction; None if none was run."""
        self.optimizer = optimizer
        self.precision = precision

    @property
    def title(self) -> str:
        """The name of the model."""
        return self.name

    @property
    def limit_bytes(self) -> int:
        """The memory that a step may take: what is there without the margin."""
        return int(self.memory_bytes * (1 - self.margin))

    @property
    def batch(self) -> int:
        """The largest batch size that fits; 0 if none does."""
        return _largest(self.trials)

    @property
    def checkpointed_batch(self) -> int:
        """The largest batch size that fits with checkpointing; 0 if none does."""
        return _largest(self.checkpointed)

    @property
    def answer(self) -> str:
        """The largest batch size, in one sentence."""
        room = format_bytes(self.memory_bytes)
        if not self.batch:
            least = min(self.trials, key=lambda one: one.batch)
            need = format_bytes(least.taken_bytes)
            fixed = format_bytes(least.fixed_bytes)
            more = (
                f" With checkpointing batch size {self.checkpointed_batch:,} fits."
                if self.checkpointed_batch
                else ""
            )
            return (
                f"{self.name} does not fit in {room}: batch size {least.batch} takes {need}, of "
                f"which {fixed} are weights and optimizer state.{more}"
            )
        found = next(one for one in self.trials if one.batch == self.batch)
        over = [one.batch for one in self.trials if not one.fits]
        limit = f" ({min(over):,} does not)" if over else ""
        return (
            f"Batch size {self.batch:,} fits in {room}{limit}. A step takes "
            f"{format_bytes(found.taken_bytes)}; {self.margin:.0%} is kept free."
        )

    def to_dict(self) -> dict[str, Any]:
        """The report as dicts, lists, strings and numbers."""
        return {
            **super().to_dict(),
            "batch": self.batch,
            "checkpointed_batch": self.checkpointed_batch,
            "recompute_cost": self.recompute_cost,
            "memory_bytes": self.memory_bytes,
            "margin": self.margin,
            "check": None if self.check is None else dataclasses.asdict(self.check),
        }

    def _columns(self) -> Sequence[Column[BatchTrial]]:
        return [
            Column("batch", "Batch", lambda one: f"{one.batch:,}", value=lambda one: one.batch),
            Column(
                "checkpoint",
                "Blocks" if self.checkpointed else "",
                lambda one: "checkpointed" if one.checkpoint else "as they are",
                right=False,
                value=lambda one: one.checkpoint,
            ),
            number_column(
                "peak", "Tensors", lambda one: one.peak_bytes, format_bytes, csv="peak_bytes"
            ),
            number_column(
                "scratch",
                "In kernels" if any(one.scratch_bytes for one in self.entries) else "",
                lambda one: one.scratch_bytes,
                format_bytes,
                csv="scratch_bytes",
            ),
            number_column(
                "reserved",
                "Reserved" if any(one.reserved_bytes for one in self.entries) else "",
                lambda one: one.reserved_bytes,
                format_bytes,
                csv="reserved_bytes",
            ),
            Column(
                "fits",
                "Fits",
                lambda one: "yes" if one.fits else "no",
                right=False,
                value=lambda one: one.fits,
            ),
        ]

    def _facts(self) -> list[Fact]:
        facts = [Fact("Limit", f"{format_bytes(self.limit_bytes)} after the margin")]
        if self.check is not None:
            one = self.check
            facts.append(
                Fact(
                    "Checked",
                    f"a real step with batch size {one.batch:,} took "
                    f"{format_bytes(one.measured_bytes)}, predicted "
                    f"{format_bytes(one.predicted_bytes)} ({one.error:+.1%})",
                )
            )
        if self.checkpointed_batch > self.batch:
            extra = self.recompute_cost - 1
            facts.append(
                Fact(
                    "Checkpointing",
                    f"batch size {self.checkpointed_batch:,} fits if the repeated blocks run under "
                    f"torch.utils.checkpoint; a step computes {extra:.0%} more",
                )
            )
        if self.batch:
            facts.append(
                Fact(
                    "Accumulation",
                    f"for an effective batch of {8 * self.batch:,} run 8 batches before each "
                    "optimizer.step(): the same memory, the same FLOPs per sample",
                )
            )
        return facts

    def _notes(self) -> list[str]:
        notes = [
            f"predicted from shapes in {len(self.entries)} trials"
            + (f" with {self.optimizer}" if self.optimizer else "")
            + (f" in {self.precision}" if self.precision else "")
            + ("" if self.real_batches else ", without scratch memory inside kernels")
        ]
        if self.real_batches:
            steps = " and ".join(f"{one:,}" for one in self.real_batches)
            notes.append(
                f"memory inside kernels is extrapolated from real steps with batch size {steps}"
            )
        if any(one.reserved_bytes for one in self.entries):
            notes.append(_MODEL)
        if self.check is None:
            notes.append("no real step was run to check the prediction")
        return notes


def _largest(trials: Sequence[BatchTrial]) -> int:
    return max((one.batch for one in trials if one.fits), default=0)

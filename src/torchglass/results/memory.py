"""How much memory a step of a model takes and where: what `memory` gives back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from torchglass.analyse.memory import (
    Holder,
    MemoryReport,
    ModuleMemory,
    Moment,
    OpMemory,
    devices_of,
    memory_report,
)
from torchglass.errors import LookupFailedError
from torchglass.export.measurements import memory_csv, memory_dict
from torchglass.records.measures import BlockKind, Footprint, MemoryBlock
from torchglass.records.model import Model
from torchglass.records.trace import CallRecord
from torchglass.results.measurement import Measurement, Rows
from torchglass.tables.column import TableOptions
from torchglass.tables.files import File, written
from torchglass.views.text.memory import (
    Remembered,
    memory_op_table,
    memory_table,
    peak_table,
    timeline_text,
)


class Memory(Measurement[ModuleMemory]):
    """What each module and op of a model takes of memory; print it, or turn it into something else.

    It speaks of one device, that with most of the memory; `on` gives the same for another one. What
    was measured on storages and what `fake=True` predicts are the same to the byte.
    """

    def __init__(
        self,
        model: Model,
        calls: Sequence[CallRecord],
        footprint: Footprint,
        device: str | None = None,
    ) -> None:
        self.model = model
        self.calls = calls
        self.footprint = footprint
        self.devices: list[str] = devices_of(footprint)
        """The devices that memory is taken on, that with most of it first."""
        self.report: MemoryReport = memory_report(footprint, model, device or self.devices[0])
        self._shown = Remembered(model, calls, footprint, self.report)

    def on(self, device: str) -> Memory:
        """The same step on another one of its devices."""
        if device not in self.devices:
            raise LookupFailedError(
                f"nothing was on {device!r}; the step took memory on {', '.join(self.devices)}"
            )
        return Memory(self.model, self.calls, self.footprint, device)

    @cached_property
    def rows(self) -> Mapping[str, ModuleMemory]:
        """What each module takes, by its path."""
        return Rows(self.report.modules)

    @property
    def unattributed(self) -> ModuleMemory:
        """What no module made: the inputs, the loss, the temporaries of an optimizer."""
        return self.report.unattributed

    @property
    def ops(self) -> tuple[OpMemory, ...]:
        """What the kernels take, those that hold most of the peak first."""
        return self.report.ops

    @property
    def timeline(self) -> tuple[Moment, ...]:
        """Every change of the step, with how much there is of memory right after."""
        return self.report.timeline

    @property
    def peak_bytes(self) -> int:
        """The most that there is at one time, with what was there before the step."""
        return self.report.peak_bytes

    @property
    def peak(self) -> Moment | None:
        """The moment of the peak; None for a step that takes nothing."""
        return self.report.peak

    @property
    def peak_holders(self) -> tuple[Holder, ...]:
        """Who holds what at the peak, most first; all of it adds up to the peak."""
        return self.report.peak_holders

    @property
    def before_bytes(self) -> int:
        """What is there before the step: parameters, buffers, inputs, the optimizer's state."""
        return self.report.before_bytes

    @property
    def allocator_peak_bytes(self) -> int | None:
        """The peak as the allocator tells it; None for a prediction.

        It has in it what kernels take and free inside of themselves, which is no tensor's.
        """
        return self.report.allocator_peak_bytes

    @property
    def parameters_bytes(self) -> int:
        """What the parameters take, shared ones once."""
        return self._size("parameter")

    @property
    def buffers_bytes(self) -> int:
        """What the buffers take."""
        return self._size("buffer")

    @property
    def gradients_bytes(self) -> int:
        """What the gradients of parameters and inputs take."""
        return self._size("gradient")

    @property
    def optimizer_bytes(self) -> int:
        """What the optimizer keeps from step to step."""
        return self._size("optimizer")

    @property
    def activations_bytes(self) -> int:
        """What was made on the way forward and is there when the backward begins."""
        return self._size("activation")

    @property
    def temporary_peak_bytes(self) -> int:
        """The most at one time of what is none of all these."""
        return self._size("temporary")

    @property
    def activations(self) -> tuple[MemoryBlock, ...]:
        """The activations one by one: `path` and `op` made it, `saved_by` keeps it."""
        blocks = (block for block in self.footprint.blocks if block.kind == "activation")
        return tuple(block for block in blocks if block.spec.device == self.report.device)

    def peak_table(self, count: int | None = 20, *, width: int | None = None) -> str:
        """Who holds the peak as a table; a `count` of None shows all."""
        return peak_table(self._shown, count, width)

    def curve(self, width: int = 72, height: int = 6) -> str:
        """The memory of the step over its phases, drawn as an area."""
        return timeline_text(self._shown, width, height)

    def to_dict(self) -> dict[str, Any]:
        """All of it as dicts, lists, strings and numbers."""
        return memory_dict(self.model, self.footprint, self.report)

    def to_csv(self, file: File | None = None) -> str:
        """One line for each module, also written to a file if one is named."""
        return written(memory_csv(self.model, self.report), file)

    def _table(self, look: TableOptions) -> str:
        return memory_table(self._shown, look)

    def _op_table(self, count: int | None, room: int | None) -> str:
        return memory_op_table(self._shown, count, room)

    def _size(self, kind: BlockKind) -> int:
        return self.report.sizes.get(kind, 0)

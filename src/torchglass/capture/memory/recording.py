"""The memory of a step, seen by the kernels that take it.

recorder = MemoryRecorder(model.named_modules())
with recorder.watching("forward"):
    model(x)
recorder.ledger.read()
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from torchglass.blocks import unbroken
from torchglass.capture.calls import CallRecorder, recording
from torchglass.capture.forward.keeping import Replace
from torchglass.capture.memory.ledger import Ledger, Place
from torchglass.capture.memory.savers import Makers, saved_tensors
from torchglass.capture.memory.sums import Sums
from torchglass.capture.places import tensors_of_call
from torchglass.capture.timing.backward import Reached
from torchglass.capture.trace.dispatch import mode_on
from torchglass.capture.trace.functions import tensors_in
from torchglass.capture.trace.kernels import KernelMode
from torchglass.capture.trace.ops import OpEvent
from torchglass.errors import Fence
from torchglass.records.memory import BlockKind, StepPhase
from torchglass.records.model import join_path

_MAKES_FROM_DATA = frozenset({torch.ops.aten.lift_fresh.default, torch.ops.aten.lift.default})
"""What `torch.tensor([1, 2])` comes by as: its argument was made right before, out of sight."""


class MemoryRecorder(CallRecorder):
    """Writes into a ledger what each kernel takes, and in which module."""

    def __init__(
        self, modules: Sequence[tuple[str, nn.Module]], fake: Replace | None = None
    ) -> None:
        """`fake` gives the tensor that kernels see instead of a real one, where they see fakes."""
        super().__init__(modules)
        self._fake = fake
        self._located = modules
        self._slots: dict[int, tuple[str, str]] = {}
        self._mode = KernelMode(self)
        self._makers = Makers()
        self._sums = Sums()
        self._uncounted = Fence("some memory was not counted")
        self.has_sparse = False
        """Whether a kernel gave a tensor that is not strided."""
        self.ledger = Ledger()

    @property
    def current(self) -> str | None:
        """The path of the innermost module that is running."""
        return self._open[-1].path if self._open else None

    @unbroken
    def watching(self, phase: StepPhase) -> Iterator[None]:
        """A part of the step runs in this block, and nothing else."""
        if phase == "forward":
            self._hold_model()
        self.ledger.begin(phase)
        with recording(self), mode_on(self._mode):
            yield
        self.ledger.end()

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
        """A call begins; what the outermost one is given was there before the step."""
        if not self._open:
            with self._fence:
                self._hold_inputs(tensor for _, tensor in tensors_of_call(args, kwargs))
        return super().enter(module, args, kwargs)

    def before_write(self, written: tuple[torch.Tensor, ...]) -> None:
        """What a kernel is about to write is none of our business."""

    def failed(self, event: OpEvent, error: BaseException) -> None:
        """Nor is a kernel that raised: it returned nothing."""

    def seen(self, event: OpEvent) -> Any:
        """A kernel ran: write down what it took."""
        try:
            self._makers.note(event.call)
            self._take(event)
        except Exception as problem:  # noqa: BLE001 - no error of ours may stop the user's step
            self.missed(problem)
        return event.output

    def missed(self, problem: Exception) -> None:
        """An error of ours: some kernels or calls are missing."""
        self._uncounted.caught(problem)

    def retain(self, nodes: Iterable[Reached]) -> None:
        """The backward is about to begin: what is still there is kept for it."""
        self.ledger.retain("activation")
        for tensor, saver in saved_tensors(nodes, self._makers):
            self.ledger.saved(tensor, saver)

    def _take(self, event: OpEvent) -> None:
        ledger = self.ledger
        if event.function not in _MAKES_FROM_DATA:
            self._hold_inputs(tensors_in((event.args, dict(event.kwargs))))
        ledger.place = Place(event.call, kernel_name(event.function))
        in_place = self._sums.in_place(event)
        if in_place is not None:
            ledger.replace(*in_place)
        for tensor in (*tensors_in(event.output), *event.written):
            self.has_sparse = self.has_sparse or tensor.layout is not torch.strided
            ledger.take(tensor)

    def _hold_inputs(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            self._hold(tensor, "input")

    def slot_of(self, tensor: torch.Tensor) -> tuple[str | None, str]:
        """The module that holds a parameter, and its dotted name."""
        return self._slots.get(id(tensor), (None, ""))

    def _hold_model(self) -> None:
        for path, module in self._located:
            self._hold_table(path, module._parameters, "parameter")
            self._hold_table(path, module._buffers, "buffer")

    def _hold_table(
        self, path: str, table: Mapping[str, torch.Tensor | None], kind: BlockKind
    ) -> None:
        for name, tensor in table.items():
            if tensor is not None:
                slot = self._slots.setdefault(id(tensor), (path, join_path(path, name)))
                self._hold(tensor, kind, *slot)

    def _hold(
        self, tensor: torch.Tensor, kind: BlockKind, path: str | None = None, name: str = ""
    ) -> None:
        self.ledger.hold(tensor, kind, path, name)
        # Some reach the kernels as they are: those of scripts, and those from outside of the model.
        if self._fake is not None and not isinstance(tensor, FakeTensor):
            self.ledger.stand_in(self._fake(tensor), tensor)


def kernel_name(function: Any) -> str:
    """torch's name of a kernel: "addmm"; with its library if that is another: "mine::nms"."""
    schema = getattr(function, "_schema", None)
    name = str(function) if schema is None else str(schema.name)
    return name.removeprefix("aten::")

"""Records the memory of a step, kernel by kernel.

The nodes tell what they saved right before the backward begins.

Where several gradients come to one tensor, autograd adds each to the sum so far. If nobody else has
that sum it adds in place; while a mode looks on it never does, and takes a new block that a plain
run would not take. Such a block is to be counted as the old one.

    recorder = MemoryRecorder(model.named_modules())
    with recorder.watching("forward"):
        model(x)
    recorder.log.read()
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from torchglass.blocks import uninterruptible
from torchglass.capture.autograd import NodeCreators, Reached, node_name, saved_tensors
from torchglass.capture.measure.storage_log import Place, StorageLog
from torchglass.capture.module_calls import CallRecorder, RecordedCall, observe_calls
from torchglass.capture.restore_state import Replace
from torchglass.capture.tensor.description import Args, Kwargs, iter_tensors, tensors_of_call
from torchglass.capture.tensor.memory_extent import extent_of
from torchglass.capture.torch_internals import (
    BACKWARD_CODE,
    FakeTensor,
    has_saved_tensor_hooks,
    node_number,
    reference_counts,
    running_node,
)
from torchglass.capture.torch_modes import LookingMode, mode_on
from torchglass.capture.trace.kernel_mode import KernelMode
from torchglass.capture.trace.op_mode import OpEvent
from torchglass.records.measures import BlockKind, Saver, StepPhase
from torchglass.records.model import join_path


class _Creator(NamedTuple):
    path: str | None
    hooked: bool
    """Whether hooks of the model's own took what was saved, as those of a checkpoint do."""


def tensors_saved_by(
    nodes: Iterable[Reached], creators: NodeCreators[_Creator]
) -> Iterator[tuple[torch.Tensor, Saver]]:
    """The tensors that nodes keep and who keeps them, in the order of the forward."""
    made = sorted((reached.node for reached in nodes), key=node_number)
    for node in made:
        creator = creators.of(node)
        # Reading what hooks have packed may run a part of the model again.
        if creator is None or creator.hooked:
            continue
        saver = Saver(node=node_name(node), path=creator.path)
        for _, tensor in saved_tensors(node):
            yield tensor, saver


_ADD = torch.ops.aten.add.Tensor


class _Holders(NamedTuple):
    """The reference counts of a tensor and its storage while a kernel is dispatched."""

    tensor: int
    storage: int


class GradientSums:
    """Finds sums of gradients that a plain run would compute in place."""

    def __init__(self) -> None:
        self._lone = _holders_of_lone_sum()

    def in_place(self, event: OpEvent) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The old and the new sum, if a plain run would have added in place."""
        if event.function is not _ADD or event.chain[-2:-1] != (BACKWARD_CODE,):
            return None
        old, new = event.args[0], event.output
        if old.layout is not torch.strided or new.layout is not torch.strided:
            return None
        return (old, new) if _is_dense(old) and _holders_of(old) == self._lone else None


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill a block of memory, each once."""
    extent = extent_of(tensor)
    if extent is None:
        return False
    return extent.last + 1 - extent.first == tensor.numel() * extent.item


def _holders_of(tensor: torch.Tensor) -> _Holders:
    return _Holders(*reference_counts(tensor))


@functools.cache
def _holders_of_lone_sum() -> _Holders:
    """The reference counts, in this version of torch, of a sum that only autograd holds."""
    counting = _Counting()
    with torch.inference_mode(False), torch.enable_grad(), counting:
        x = torch.zeros(2, requires_grad=True)
        y = x * 2
        torch.autograd.backward((y * 3 + y.relu()).sum())
    return counting.seen


class _Counting(LookingMode):  # type: ignore[no-untyped-call]
    """Reads the reference counts where a backward adds."""

    seen: _Holders = _Holders(0, 0)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        if func is _ADD and running_node() is not None:
            self.seen = _holders_of(args[0])
        return func(*args, **(kwargs or {}))


_MAKES_FROM_DATA = frozenset({torch.ops.aten.lift_fresh.default, torch.ops.aten.lift.default})
"""What `torch.tensor([1, 2])` calls: its argument was created right before, unseen."""


class MemoryRecorder(CallRecorder):
    """Logs the memory that each kernel takes, and its module."""

    def __init__(
        self, modules: Sequence[tuple[str, nn.Module]], fake: Replace | None = None
    ) -> None:
        """`fake` gives the fake of a tensor, if kernels see fakes."""
        super().__init__(modules, "some memory was not counted")
        self._fake = fake
        self._model_modules = modules
        self._slots: dict[int, tuple[str, str]] = {}
        self._mode = KernelMode(self)
        self._creators: NodeCreators[_Creator] = NodeCreators()
        self._sums = GradientSums()
        self.has_sparse = False
        """Whether a kernel returned a tensor that is not strided."""
        self.log = StorageLog()

    @uninterruptible
    def watching(self, phase: StepPhase) -> Iterator[None]:
        """Log a part of the step."""
        if phase == "forward":
            self._hold_model()
        self.log.begin(phase)
        with observe_calls(self), mode_on(self._mode):
            yield
        self.log.end()

    def begin(self, module: nn.Module, args: Args, kwargs: Kwargs) -> RecordedCall | None:
        """The inputs of the outermost call existed before the step."""
        if self.current is None:
            self._hold_inputs(tensor for _, tensor in tensors_of_call(args, kwargs))
        return super().begin(module, args, kwargs)

    def before_write(self, written: tuple[torch.Tensor, ...]) -> None:
        """Overwriting takes no memory."""

    def failed(self, event: OpEvent, error: BaseException) -> None:
        """A kernel that raised returned nothing."""

    def seen(self, event: OpEvent) -> Any:
        """Log the memory that a kernel took."""
        try:
            path = None if event.call is None else event.call.path
            if self._creators.has_new:
                self._creators.created(_Creator(path, has_saved_tensor_hooks()))
            self._take(event, path)
        except Exception as problem:  # noqa: BLE001 - no error of ours may stop the user's step
            self.missed(problem)
        return event.output

    def retain(self, nodes: Iterable[Reached]) -> None:
        """What exists when the backward begins is kept for it."""
        self.log.retain("activation")
        for tensor, saver in tensors_saved_by(nodes, self._creators):
            self.log.saved(tensor, saver)

    def _take(self, event: OpEvent, path: str | None) -> None:
        log = self.log
        if event.function not in _MAKES_FROM_DATA:
            self._hold_inputs(iter_tensors((event.args, dict(event.kwargs))))
        log.place = Place(path, kernel_name(event.function))
        in_place = self._sums.in_place(event)
        if in_place is not None:
            log.replace(*in_place)
        for tensor in (*iter_tensors(event.output), *event.written):
            self.has_sparse = self.has_sparse or tensor.layout is not torch.strided
            log.take(tensor)

    def _hold_inputs(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            self._hold(tensor, "input")

    def slot_of(self, tensor: torch.Tensor) -> tuple[str | None, str]:
        """The path of the module that holds a parameter, and its dotted name."""
        return self._slots.get(id(tensor), (None, ""))

    def _hold_model(self) -> None:
        for path, module in self._model_modules:
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
        self.log.hold(tensor, kind, path, name)
        # Kernels see some real tensors: those of scripts, and those from outside the model.
        if self._fake is not None and not isinstance(tensor, FakeTensor):
            self.log.stand_in(self._fake(tensor), tensor)


def kernel_name(function: Any) -> str:
    """torch's name of a kernel: "addmm"; with its library if that is another: "mine::nms"."""
    schema = getattr(function, "_schema", None)
    name = str(function) if schema is None else str(schema.name)
    return name.removeprefix("aten::")

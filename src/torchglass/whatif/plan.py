"""Predicts a training step on another device or with another batch size, without running it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from torchglass.analyse.memory import MemoryReport, devices_of, reserved_for
from torchglass.capture.isolated_run import Loss
from torchglass.capture.measure.flops import CountedFlops, count
from torchglass.capture.measure.memory import (
    MeasuredMemory,
    OptimizerChoice,
    measure,
    optimizer_named,
)
from torchglass.capture.torch_internals import tree_map_only
from torchglass.errors import CaptureError
from torchglass.records.measures import BatchTrial, StepCheck
from torchglass.whatif.valueless_copy import (
    checkpointed,
    repeated_blocks,
    run_in,
    valueless,
    valueless_copy,
)

_AFFORDABLE_FLOPS = 2e11
"""A prediction is not checked with a real step of more FLOPs than this."""
_FINE = 128
"""Below this, batch sizes are tried one by one."""
_LARGEST_BATCH = 1 << 24


class PredictedStep(NamedTuple):
    """What a step computes, and the memory that it takes; nothing of it was run."""

    counted: CountedFlops
    memory: MeasuredMemory
    blocks: tuple[str, ...]
    """The paths of the repeated blocks, such as the layers of a transformer."""


def predict_step(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    precision: str | None,
    backward: bool,
    optimizer: OptimizerChoice | None,
    loss: Loss | None,
    checkpoint: bool = False,
) -> PredictedStep:
    """Predict a step of a model of any size from shapes alone."""
    copy = valueless_copy(model, precision)
    blocks = repeated_blocks(copy)
    if checkpoint:
        if not blocks:
            raise CaptureError(
                f"{type(model).__name__} has no repeated blocks to checkpoint. "
                "Call torch.utils.checkpoint in its forward, and leave out checkpoint=True."
            )
        checkpointed([block for _, block in blocks])
    args, kwargs = valueless((args, kwargs), precision)
    step: Any = {"backward": backward, "loss": loss, "fake": True}
    with run_in(precision):
        counted = count(copy, args, kwargs, **step)
        chosen = on_an_accelerator(optimizer) if backward else None
        memory = measure(copy, args, kwargs, optimizer=chosen, **step)
    return PredictedStep(counted, memory, tuple(path for path, _ in blocks))


def on_an_accelerator(optimizer: OptimizerChoice | None) -> OptimizerChoice | None:
    """An optimizer of torch.optim as it runs on an accelerator: on all parameters at once."""
    if not isinstance(optimizer, str):
        return optimizer
    make = optimizer_named(optimizer)

    def made(parameters: Any) -> Optimizer:
        listed = list(parameters)
        try:
            return make(listed, foreach=True)  # type: ignore[call-arg]
        except TypeError:
            return make(listed)

    return made


def available_memory(model: nn.Module) -> int:
    """The memory of the device that a model is on."""
    device = next((one.device for one in model.parameters()), torch.device("cpu"))
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        raise CaptureError(
            f"the free memory of {device.type!r} is not known here. Pass memory, such as '24GB'."
        ) from None


def batch_of(sample: Any) -> int:
    """The batch size of a sample: the first dimension of its first tensor with dimensions."""
    sizes = [tensor.shape[0] for tensor in _tensors(sample) if tensor.dim()]
    if not sizes or not sizes[0]:
        raise CaptureError("the sample has no batch: the first dimension must be the batch")
    return int(sizes[0])


def with_batch(sample: Any, batch: int) -> Any:
    """The same inputs with another batch size; tensors without it stay as they are."""
    own = batch_of(sample)

    def resized(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dim() or tensor.shape[0] != own:
            return tensor
        repeats = -(-batch // own)
        if tensor.is_meta:
            return tensor.new_empty((batch, *tensor.shape[1:]))
        return tensor.repeat(repeats, *[1] * (tensor.dim() - 1))[:batch]

    return tree_map_only(torch.Tensor, resized, sample)


def _tensors(sample: Any) -> Iterator[torch.Tensor]:
    found: list[torch.Tensor] = []
    tree_map_only(torch.Tensor, found.append, sample)
    return iter(found)


@dataclass(slots=True)
class BatchSearch:
    """Finds the largest batch size whose step fits into memory."""

    model: nn.Module
    sample: tuple[tuple[Any, ...], dict[str, Any]]
    limit: int
    """The memory that a step may take."""
    on_gpu: bool
    """Whether the allocator of CUDA is modeled."""
    precision: str | None = None
    optimizer: OptimizerChoice | None = None
    loss: Loss | None = None
    progress: Callable[[BatchTrial], None] | None = None
    scratch: tuple[tuple[int, int], ...] = ()
    """Batch sizes of real steps, and the memory that kernels took inside, in no tensor."""
    _known: dict[tuple[bool, int], BatchTrial] = field(default_factory=dict)
    """What was tried, without memory inside kernels."""

    def learn_scratch(self, batch: int) -> bool:
        """Run real steps of a quarter and half of a batch, and read what kernels take inside.

        In much smaller steps, weights and optimizer state decide where the peak is.
        """
        own = batch_of(self.sample)
        most = min(batch // 2, int(_AFFORDABLE_FLOPS / 2 / self._cost())) if batch else 0
        if self.on_gpu or not self._can_run() or most < max(own, 2):
            return False
        found = []
        for size in (most // 2, most):
            report = self._real_step(size)
            inside = (report.allocator_peak_bytes or 0) - report.peak_bytes
            found.append((size, max(inside, 0)))
        self.scratch = tuple(found)
        return any(inside for _, inside in found)

    def scratch_bytes(self, batch: int) -> int:
        """What kernels take inside with a batch size, by the line through the real steps."""
        if not self.scratch:
            return 0
        (one, low), (other, high) = self.scratch
        return max(int(low + (high - low) / (other - one) * (batch - one)), 0)

    def search(self, *, checkpoint: bool = False) -> list[BatchTrial]:
        """Every batch size that was tried, in order; empty if there is nothing to checkpoint."""
        copy = valueless_copy(self.model, self.precision)
        if checkpoint:
            blocks = [block for _, block in repeated_blocks(copy)]
            if not blocks:
                return []
            checkpointed(blocks)
        tried: dict[int, BatchTrial] = {}
        run = partial(self._try, copy, tried, checkpoint)
        batch = batch_of(self.sample)
        first = run(batch)
        # A batch norm cannot train on one sample, so the sample's own batch size comes first.
        if not first.fits:
            self._search_down(run, batch)
        else:
            self._search_up(run, batch)
        return [tried[one] for one in sorted(tried)]

    def _search_up(self, run: Callable[[int], BatchTrial], batch: int) -> None:
        low, high = run(batch), run(2 * batch)
        while high.fits and high.batch < _LARGEST_BATCH:
            low, high = high, run(max(2 * high.batch, self._at_limit(low, high)))
        self._close_in(run, low, high)

    def _search_down(self, run: Callable[[int], BatchTrial], batch: int) -> None:
        high = run(batch)
        while high.batch > 1:
            low = run(max(high.batch // 2, 1))
            if low.fits:
                self._close_in(run, low, high)
                return
            high = low

    def _close_in(
        self, run: Callable[[int], BatchTrial], low: BatchTrial, high: BatchTrial
    ) -> None:
        """Narrow down to neighbors. Memory grows about linearly, so few trials are needed."""
        is_guess = True
        while not high.fits and high.batch - low.batch > (grain := _grain(low.batch)):
            middle = self._at_limit(low, high) if is_guess else (low.batch + high.batch) // 2
            middle = min(middle, high.batch - 1)
            trial = run(max(middle - middle % grain, low.batch + grain))
            # A good guess has its neighbor on the other side of the limit.
            beside = trial.batch + (grain if trial.fits else -grain)
            if is_guess and low.batch < beside < high.batch:
                other = run(beside)
                low, high = _narrowed(low, high, other)
            low, high = _narrowed(low, high, trial)
            is_guess = not is_guess

    def _at_limit(self, low: BatchTrial, high: BatchTrial) -> int:
        """The batch size at the limit, by the line through two trials."""
        slope = (high.taken_bytes - low.taken_bytes) / max(high.batch - low.batch, 1)
        if slope <= 0:
            return 0
        batch = int(low.batch + (self.limit - low.taken_bytes) / slope)
        return batch - batch % _grain(batch)

    def _try(
        self, copy: nn.Module, tried: dict[int, BatchTrial], checkpoint: bool, batch: int
    ) -> BatchTrial:
        if batch not in tried:
            known = self._known.get((checkpoint, batch)) or self._predict(copy, batch, checkpoint)
            scratch = self.scratch_bytes(batch)
            tried[batch] = dataclasses.replace(
                known,
                scratch_bytes=scratch,
                fits=known.fits and known.taken_bytes + scratch <= self.limit,
            )
            if self.progress is not None and (checkpoint, batch) not in self._known:
                self.progress(tried[batch])
            self._known[checkpoint, batch] = known
        return tried[batch]

    def _predict(self, copy: nn.Module, batch: int, checkpoint: bool) -> BatchTrial:
        args, kwargs = with_batch(valueless(self.sample, self.precision), batch)
        choice = on_an_accelerator(self.optimizer) if self.on_gpu else self.optimizer
        step: Any = {"loss": self.loss, "optimizer": choice, "fake": True}
        with run_in(self.precision):
            taken = measure(copy, args, kwargs, **step)
        return self._trial(taken, batch, checkpoint)

    def _trial(self, taken: MeasuredMemory, batch: int, checkpoint: bool) -> BatchTrial:
        device = devices_of(taken.footprint)[0]
        report = MemoryReport(taken.footprint, taken.model, device)
        reserved = reserved_for(taken.footprint, device, self.limit) if self.on_gpu else None
        failed = reserved is not None and reserved.is_out_of_memory
        return BatchTrial(
            batch=batch,
            peak_bytes=report.peak_bytes,
            reserved_bytes=None if reserved is None else reserved.reserved_bytes,
            fixed_bytes=sum(
                report.sizes.get(kind, 0) for kind in ("parameter", "buffer", "optimizer")
            ),
            fits=report.peak_bytes <= self.limit and not failed,
            checkpoint=checkpoint,
        )

    def recompute_cost(self) -> float:
        """How much more a step computes if its blocks are checkpointed: 1.33 is a third more."""
        copy = valueless_copy(self.model, self.precision)
        args, kwargs = valueless(self.sample, self.precision)
        step: Any = {"backward": True, "loss": self.loss, "fake": True}
        with run_in(self.precision):
            plain = _flops(count(copy, args, kwargs, **step))
            checkpointed([block for _, block in repeated_blocks(copy)])
            return _flops(count(copy, args, kwargs, **step)) / max(plain, 1)

    def check(self, batch: int) -> StepCheck | None:
        """Run one real step, of as large a batch as is affordable; None if none is."""
        if not self._can_run():
            return None
        own = batch_of(self.sample)
        affordable = min(batch, max(int(_AFFORDABLE_FLOPS / self._cost()), 1))
        if affordable < own and batch >= own:
            return None
        measured = self._real_step(affordable)
        args, kwargs = with_batch(self.sample, affordable)
        options: Any = {"loss": self.loss, "optimizer": self.optimizer, "fake": True}
        fake = measure(self.model, args, kwargs, **options)
        predicted = MemoryReport(fake.footprint, fake.model, devices_of(fake.footprint)[0])
        return StepCheck(
            batch=affordable,
            predicted_bytes=predicted.peak_bytes + self.scratch_bytes(affordable),
            measured_bytes=measured.allocator_peak_bytes or measured.peak_bytes,
        )

    def _can_run(self) -> bool:
        """Whether a step can be run as it is planned: the model has values, in its own dtype."""
        has_values = not any(one.is_meta for one in self.model.parameters())
        return has_values and self.precision is None

    def _cost(self) -> float:
        """The FLOPs of a step for one sample."""
        args, kwargs = self.sample
        step: Any = {"backward": True, "loss": self.loss, "fake": True}
        whole = _flops(count(self.model, args, kwargs, **step))
        return max(whole / batch_of(self.sample), 1.0)

    def _real_step(self, batch: int) -> MemoryReport:
        args, kwargs = with_batch(self.sample, batch)
        real = measure(self.model, args, kwargs, loss=self.loss, optimizer=self.optimizer)
        return MemoryReport(real.footprint, real.model, devices_of(real.footprint)[0])


def _grain(batch: int) -> int:
    """The step between batch sizes that are worth distinguishing: about one percent."""
    return 1 << max((batch // _FINE).bit_length() - 1, 0)


def _narrowed(
    low: BatchTrial, high: BatchTrial, trial: BatchTrial
) -> tuple[BatchTrial, BatchTrial]:
    if trial.fits:
        return max(low, trial, key=lambda one: one.batch), high
    return low, min(high, trial, key=lambda one: one.batch)


def _flops(counted: CountedFlops) -> int:
    return sum(op.flops for op in counted.work.ops)

"""Finds the operation behind the first NaN or Inf of a training, at any `log_freq`.

The inputs, the buffers and the random state of each forward are kept until the next one. Before
each update two small gradients are checked, one of the first and one of the last modules. If one is
not finite, the weights are still as they were: the forward and its backward run again under a
guard, which names the operation. That happens once.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from torchglass.capture.guard.finding_report import FindingReport
from torchglass.capture.guard.guard import (
    ForwardBatch,
    OutputCheck,
    ask_for_gradients,
    keep_batch,
)
from torchglass.capture.tensor.description import Args, Kwargs, named_tensors
from torchglass.capture.torch_modes import quietly
from torchglass.records.findings import Finding

_MOST_BUFFER_BYTES = 64 << 20
"""A model with larger buffers is not followed: copying them would take time at each step."""


class NonFiniteOrigin:
    """Keeps what is needed to run the latest forward again; it keeps no model alive."""

    def __init__(self, model: nn.Module, found: Callable[[Finding], None]) -> None:
        self.is_rerunning = False
        """Whether a forward runs again right now, which is not a pass of the training."""
        self._model = weakref.ref(model)
        self._found = found
        buffers = list(model.buffers())
        size = sum(buffer.nbytes for buffer in buffers if not buffer.is_meta)
        self._is_on = size <= _MOST_BUFFER_BYTES
        # Listed once: finding them takes time at each step.
        self._buffers = [weakref.ref(buffer) for buffer in buffers]
        self._batch: ForwardBatch | None = None
        self._sentinels: list[weakref.ref[torch.Tensor]] = []

    def begin_pass(self, args: Args, kwargs: Kwargs) -> None:
        """A forward of the training begins."""
        self._batch = None
        if self._is_on and torch.is_grad_enabled():
            with quietly():
                buffers = [buffer for one in self._buffers if (buffer := one()) is not None]
                self._batch = keep_batch(args, kwargs, buffers)

    def end_pass(self, output: Any) -> None:
        """It has returned: its backward must be run again from the same gradients."""
        if self._batch is not None:
            with quietly():
                outputs = [tensor for _, tensor in named_tensors(output)]
                ask_for_gradients(outputs, self._batch.gradients)

    def before_update(self, optimizer: Optimizer, *, is_recorded: bool) -> None:
        """An optimizer is about to step: run its forward again if a gradient is not finite."""
        batch, model = self._batch, self._model()
        if batch is None or model is None or self.is_rerunning:
            return
        with quietly():
            is_bad = self._is_bad(optimizer, is_recorded)
        if is_bad:
            self.close()
            self.is_rerunning = True
            try:
                check = OutputCheck(FindingReport(model, self._take), backward=True)
                check.look_at_gradients(optimizer, batch)
            finally:
                self.is_rerunning = False

    def close(self) -> None:
        """Hold nothing of the training any longer."""
        self._is_on = False
        self._batch = None

    def _is_bad(self, optimizer: Optimizer, is_recorded: bool) -> bool:
        gradients = self._gradients()
        if not gradients:
            self._sentinels = [weakref.ref(one) for one in _sentinels(optimizer)]
            gradients = self._gradients()
        return any(
            not torch.isfinite(gradient).all()
            for gradient in gradients
            # On another device the answer is waited for, as at recorded steps all values are.
            if gradient.device.type == "cpu" or is_recorded
        )

    def _gradients(self) -> list[torch.Tensor]:
        parameters = (one() for one in self._sentinels)
        gradients = (one.grad for one in parameters if one is not None)
        return [gradient for gradient in gradients if gradient is not None]

    def _take(self, finding: Finding) -> None:
        if finding.severity == "error":
            self._found(replace(finding, series=finding.series or finding.path))


def _sentinels(optimizer: Optimizer) -> list[torch.Tensor]:
    """A small parameter of the first and of the last modules that have a gradient."""
    trained = [
        parameter
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None and not parameter.grad.is_sparse
    ]
    return [min(end, key=torch.Tensor.numel) for end in (trained[:2], trained[-2:]) if end]

"""Runs a traced pass as its caller asks: which tensors are kept, edited, or end the pass."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import nn

from torchglass.analyse.trace import Selection, TraceStructure, at_once, is_everything, select
from torchglass.blocks import combined_blocks
from torchglass.capture.restore_state import (
    has_compiled,
    keeping_modules,
    keeping_random_state,
    running_uncompiled,
)
from torchglass.capture.trace.assemble import Assembly, CapturedPass, assemble, finish
from torchglass.capture.trace.op_mode import OpEvent
from torchglass.capture.trace.pass_recorder import Level, PassRecorder, tracing
from torchglass.errors import CaptureError
from torchglass.records.trace import CallRecord, OpId, OpRecord

_UNCOMPILED = "compiled modules were run uncompiled"

Key = int | str
Change = Callable[[torch.Tensor], torch.Tensor]


class PassCapture:
    """A pass that is being taken down, and can be read when it has ended."""

    def __init__(self, model: nn.Module, save: Selection, change: Change | None) -> None:
        self._save = save
        self._change = change
        self._test = at_once(save)
        self._assembly = Assembly(model, _wanted_by(self._test)) if self._test is not None else None
        self.recorder: PassRecorder | None = None
        self.failure: OpEvent | None = None
        self.ended = False

    @property
    def keep(self) -> Callable[..., bool] | None:
        """What the recorder asks of each event; None where all is kept until the end."""
        return self._assembly.add if self._assembly is not None else None

    @cached_property
    def captured(self) -> CapturedPass:
        """The records and the tensors that were asked for."""
        if not self.ended or self.recorder is None:
            raise CaptureError("the trace can be read when its with-block has ended")
        if self._assembly is not None:
            captured = finish(self._assembly, self.recorder)
        else:
            captured = assemble(self.recorder)
            if not is_everything(self._save):
                captured = _only(self._save, captured)
        return captured if self._change is None else _changed(self._change, captured)

    def end(self) -> None:
        """Let go of what was not asked for; it is not known before the names are."""
        self.ended = True
        self.failure = self.recorder.failure if self.recorder else None
        if self.recorder is None:
            # Something came in between before the pass began.
            return
        if not is_everything(self._save) or self._change is not None:
            _ = self.captured
            self.recorder = None


def _wanted_by(
    test: Callable[[OpRecord], bool],
) -> Callable[[OpRecord, Sequence[CallRecord]], bool]:
    return lambda op, calls: bool(test(op))


@contextlib.contextmanager
def capturing(
    model: nn.Module, *, save: Selection = "all", change: Change | None = None, **options: Any
) -> Iterator[PassCapture]:
    """Take down what runs until the block ends; the other options are those of `PassRecorder`.

    `change` makes what is kept out of each tensor that `save` selects.
    """
    capture = PassCapture(model, save, change)
    compiled = has_compiled(model.modules())
    try:
        with (
            running_uncompiled() if compiled else contextlib.nullcontext(),
            tracing(model, keep=capture.keep, **options) as capture.recorder,
        ):
            if compiled:
                capture.recorder.notes.append(_UNCOMPILED)
            yield capture
    finally:
        capture.end()


def op_numbers(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    keys: Sequence[Key],
    level: Level = "torch",
) -> dict[Key, int]:
    """The numbers that the ops of these names have among all ops of a forward.

    Names are known only after a pass, so one is run ahead that leaves no trace in the model.
    """
    if not keys:
        return {}
    with combined_blocks(
        keeping_random_state(),
        keeping_modules(model.modules(), {"_buffers": _clone}),
        capturing(model, save=None, level=level),
    ) as (_, _, capture):
        model(*args, **kwargs)
    lookup = TraceStructure(capture.captured.trace).lookup
    return {key: _number(capture.captured, lookup.find(key), key) for key in keys}


def _number(captured: CapturedPass, op: OpId, key: Key) -> int:
    if op not in captured.ordinals:
        raise CaptureError(f"{key!r} is an input or output of the pass, not an op that ran in it")
    return captured.ordinals[op]


def _only(save: Selection, captured: CapturedPass) -> CapturedPass:
    chosen = select(save, TraceStructure(captured.trace))
    return dataclasses.replace(
        captured,
        tensors={at: captured.tensors[at] for at in captured.tensors if at[0] in chosen},
        events=[event if op in chosen else None for op, event in enumerate(captured.events)],
        sources={op: made for op, made in captured.sources.items() if op in chosen},
    )


def _changed(change: Change, captured: CapturedPass) -> CapturedPass:
    tensors = {output: change(tensor) for output, tensor in captured.tensors.items()}
    return dataclasses.replace(captured, tensors=tensors)


def _clone(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()

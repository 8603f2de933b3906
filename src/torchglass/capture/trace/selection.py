"""Runs a traced pass: which tensors are kept or edited, and what an exception tells."""

from __future__ import annotations

import contextlib
import dataclasses
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import nn

from torchglass.analyse.failure.failure import ExceptionContext, is_ours
from torchglass.analyse.trace import Selection, TraceStructure, at_once, is_everything, select
from torchglass.blocks import combined_blocks
from torchglass.capture.module_calls import CALL_CODE
from torchglass.capture.restore_state import (
    leave_unchanged,
    running_uncompiled,
    telling_of_changes,
)
from torchglass.capture.tensor.description import Args, Kwargs, tensors_of_call
from torchglass.capture.tensor.moments import measure
from torchglass.capture.torch_internals import FORWARD_CODE, has_compiled
from torchglass.capture.trace.assemble import Assembly, CapturedPass, assemble, finish
from torchglass.capture.trace.op_mode import OpEvent, user_code
from torchglass.capture.trace.pass_recorder import Level, PassRecorder, tracing
from torchglass.errors import CaptureError
from torchglass.records.tensors import Stats
from torchglass.records.trace import CallRecord, OpId, OpRecord, SourceLine

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
        """Whether the recorder keeps an event; None if it keeps all until the end."""
        return self._assembly.add if self._assembly is not None else None

    @cached_property
    def captured(self) -> CapturedPass:
        if not self.ended or self.recorder is None:
            raise CaptureError("the trace can only be read after its with-block has ended")
        if self._assembly is not None:
            captured = finish(self._assembly, self.recorder)
        else:
            captured = assemble(self.recorder)
            if not is_everything(self._save):
                captured = _only(self._save, captured)
        return captured if self._change is None else _changed(self._change, captured)

    def end(self) -> None:
        """Release what was not requested; that is known only with the names."""
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
    model: nn.Module, args: Args, kwargs: Kwargs, keys: Sequence[Key], level: Level = "torch"
) -> dict[Key, int]:
    """The numbers that the ops of these names have among all ops of a forward.

    Names are known only after a pass, so one is run ahead that leaves no trace in the model.
    """
    if not keys:
        return {}
    with combined_blocks(
        leave_unchanged(model.modules()), capturing(model, save=None, level=level)
    ) as (_, capture):
        model(*args, **kwargs)
    lookup = TraceStructure(capture.captured.trace).lookup
    return {key: _number(capture.captured, lookup.find(key), key) for key in keys}


def _number(captured: CapturedPass, op: OpId, key: Key) -> int:
    if op not in captured.ordinals:
        raise CaptureError(f"{key!r} is an input or output of the pass, not an op")
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


_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


class ForwardAttempt(NamedTuple):
    """One forward, and the exception that ended it, if one did."""

    captured: CapturedPass
    output: Any
    error: Exception | None
    clues: ExceptionContext


def attempt(model: nn.Module, args: Args, kwargs: Kwargs) -> ForwardAttempt:
    """Run a forward; the model's buffers and the random state are afterwards what they were."""
    output, error = None, None
    with leave_unchanged(model.modules()), telling_of_changes(model.modules()):
        try:
            with capturing(model) as capture:
                output = model(*args, **kwargs)
        except Exception as raised:  # noqa: BLE001 - whatever the user's forward raises is the story
            error = raised
        # Buffers are known by name only as long as their stand-ins are in the model.
        captured = capture.captured
    return ForwardAttempt(
        captured, output, error, clues(error, capture.failure) if error else ExceptionContext()
    )


def clues(error: BaseException, failed: OpEvent | None = None) -> ExceptionContext:
    """What an exception that came out of a recorded pass tells, and the op that raised it."""
    every = list(_steps(error.__traceback__))
    steps = [step for step in every if not is_ours(step.tb_frame.f_code.co_filename)]
    users = [step for step in steps if _is_users(step)]
    own = [step for step in users if not step.tb_frame.f_code.co_filename.startswith(_LIBRARIES)]
    innermost = (own or users)[-1:]
    return ExceptionContext(
        source=_source(innermost[0]) if innermost else None,
        torch_source=_source(steps[-1]) if steps and not _is_users(steps[-1]) else None,
        depth=sum(step.tb_frame.f_code is CALL_CODE for step in every),
        stats=_stats(failed) if failed is not None else {},
    )


def failed_module(error: BaseException) -> nn.Module | None:
    """The innermost module that an exception came out of."""
    frames = [step.tb_frame for step in _steps(error.__traceback__)]
    calls = [frame for frame in frames if frame.f_code is FORWARD_CODE]
    module = calls[-1].f_locals.get("self") if calls else None
    return module if isinstance(module, nn.Module) else None


def _steps(traceback: TracebackType | None) -> Iterator[TracebackType]:
    """The frames of a traceback, outermost first."""
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _is_users(step: TracebackType) -> bool:
    return user_code((step.tb_frame.f_code, step.tb_lasti)) is not None


def _source(step: TracebackType) -> SourceLine:
    code = step.tb_frame.f_code
    return SourceLine(file=code.co_filename, line=step.tb_lineno, function=code.co_name)


def _stats(failed: OpEvent) -> dict[str, Stats]:
    tensors = tensors_of_call(failed.args, failed.kwargs)
    measured = ((place, measure(tensor)) for place, tensor in tensors)
    return {place: stats for place, stats in measured if stats is not None}

"""A forward that may raise: run it, and read what its exception tells."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from types import TracebackType
from typing import Any, NamedTuple

from torch import nn

from torchglass.analyse.failure.failure import ExceptionContext, is_ours
from torchglass.capture.isolated_run import leave_unchanged, telling_of_changes
from torchglass.capture.module_calls import CALL_CODE
from torchglass.capture.tensor.description import Args, Kwargs, tensors_of_call
from torchglass.capture.tensor.moments import measure
from torchglass.capture.torch_internals import FORWARD_CODE
from torchglass.capture.trace.assemble import CapturedPass, capturing
from torchglass.capture.trace.op_mode import OpEvent, user_code
from torchglass.records.model import Stats
from torchglass.records.trace import SourceLine

_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


class ForwardAttempt(NamedTuple):
    """One forward, and the exception that ended it, if one did."""

    captured: CapturedPass
    output: Any
    error: Exception | None
    clues: ExceptionContext


def attempt(model: nn.Module, args: Args, kwargs: Kwargs) -> ForwardAttempt:
    """Run a forward, and restore the model's buffers and the random state."""
    output, error = None, None
    with leave_unchanged(model.modules()), telling_of_changes(model.modules()):
        try:
            with capturing(model) as capture:
                output = model(*args, **kwargs)
        except Exception as raised:  # noqa: BLE001 - whatever the user's forward raises is the story
            error = raised
        # Buffers are known by name only while their replacements are in the model.
        captured = capture.captured
    return ForwardAttempt(
        captured, output, error, clues(error, capture.failure) if error else ExceptionContext()
    )


def clues(error: BaseException, failed: OpEvent | None = None) -> ExceptionContext:
    """What an exception of a recorded pass says, and the op that raised it."""
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

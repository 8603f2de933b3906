"""The result of `explain`: what happened in a forward, in particular in one that raised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchglass.analyse.failure.failure import ExceptionContext, Failure
from torchglass.results.trace import Trace
from torchglass.views.failure_text import (
    digest_text,
    failure_fragment,
    failure_note,
    failure_text,
)

if TYPE_CHECKING:
    from os import PathLike

    from torch import nn


class Explanation:
    """What happened in one forward; print it to read what failed, where, and what would fit."""

    def __init__(
        self,
        trace: Trace,
        context: ExceptionContext | None = None,
        error: BaseException | None = None,
    ) -> None:
        self.trace = trace
        """The trace of all ops up to the one that failed."""
        self.error = error
        """The exception itself; None where the forward completed."""
        self.failure = Failure(trace.record, trace.model, context)
        """The facts behind the explanation."""

    @property
    def ok(self) -> bool:
        """Whether the forward completed."""
        return not self.trace.error

    @property
    def note(self) -> str:
        """The note that a trace adds to the exception; "" without one."""
        if self.ok:
            return ""
        return failure_note(self.trace.record, self.trace.model, self.failure.context)

    def draw(self, path: str | PathLike[str], **options: Any) -> bytes:
        """A picture of what ran, with a mark where it failed; the options are `Trace.draw`'s."""
        # A view often created the size that did not fit.
        return self.trace.draw(path, **{"hide_views": False, **options})

    def __str__(self) -> str:
        return digest_text(self.failure) if self.ok else failure_text(self.failure)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return failure_fragment(self.failure)


def explain(model: nn.Module, /, *args: Any, **kwargs: Any) -> Explanation:
    """Run one forward and explain what happened; an exception is caught and explained.

    The model's buffers and the random state are restored.
    """
    from torchglass.capture.model.structure import read_model
    from torchglass.capture.trace.selection import attempt

    captured, output, error, context = attempt(model, args, kwargs)
    returned = {"output": output} if error is None else {}
    trace = Trace(lambda: captured, lambda: read_model(model), **returned)
    return Explanation(trace, context, error)

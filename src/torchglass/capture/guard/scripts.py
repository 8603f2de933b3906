"""Scripted modules, whose ops pass by unseen: each call of one is looked at as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import nn

from torchglass.capture.trace.ops import OpEvent


class Script(NamedTuple):
    """A scripted module, and what it was called with."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def as_op(self, call: Any, output: Any) -> OpEvent:
        """The call as if it were one op, to which parameters and buffers are given as well."""
        held = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        return OpEvent(script, self.args, {**self.kwargs, **held}, output, call, (), 0, 0, (), "")


def script(*args: Any, **kwargs: Any) -> Any:
    """Names what a scripted module does; only its module can run it."""
    raise NotImplementedError("a script is run by its module")

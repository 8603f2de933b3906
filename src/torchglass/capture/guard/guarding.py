"""A with-block in which every op of this thread is looked at."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torchglass.blocks import surely, unbroken
from torchglass.capture.calls import recording
from torchglass.capture.forward.keeping import has_compiled, running_uncompiled
from torchglass.capture.guard.desk import Desk
from torchglass.capture.guard.sentinel import Sentinel
from torchglass.capture.guard.updates import watching_updates
from torchglass.capture.trace.dispatch import mode_on
from torchglass.capture.trace.ops import OpMode
from torchglass.capture.trace.overrides import fused_paths_kept


@unbroken
def guarding(desk: Desk, *, backward: bool) -> Iterator[Sentinel]:
    """Find the origins of NaN and Inf until the block ends, however it ends.

    Compiled modules are run as the Python that they were made of. A backward is looked at if its
    forward ran in the block, and it does, too.
    """
    sentinel = Sentinel(desk, backward=backward)
    with contextlib.ExitStack() as stack:
        if has_compiled(desk.model.modules()):
            stack.enter_context(running_uncompiled())
        stack.enter_context(recording(sentinel))
        stack.enter_context(watching_updates(sentinel, desk))
        stack.enter_context(fused_paths_kept())
        stack.callback(surely, sentinel.forget_waiting)
        stack.enter_context(mode_on(OpMode(sentinel)))
        if sentinel.backward is not None:
            stack.callback(sentinel.backward.end)
        yield sentinel

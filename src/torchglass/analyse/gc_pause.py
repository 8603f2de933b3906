"""Pauses Python's garbage collector while many small objects are created."""

from __future__ import annotations

import gc
from collections.abc import Iterator

from torchglass.blocks import unbroken


@unbroken
def collector_paused() -> Iterator[None]:
    """Make many lasting objects without the collector looking through them time and again.

    It goes on afterwards if it was on before. Where two threads are here at once, it goes on with
    the first that is done.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()

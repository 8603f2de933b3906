"""One recorded session."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Who recorded what, where and when."""

    name: str
    created_ns: int
    """Since the epoch."""
    host: str = ""
    command: str = ""
    """The command line of the process that was recorded."""
    torchglass_version: str = ""
    torch_version: str = ""
    rank: int = 0
    world_size: int = 1

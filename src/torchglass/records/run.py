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
    group: str = ""
    """What all ranks of one training have in common and no other has; "" where that is unknown."""
    sample_n: int | None = 100
    """Of how many numbers of a tensor histograms were made; None where they are of all."""
    reject_outlier_proportion: float = 0.1
    """The share of a histogram's numbers, the most extreme ones, that views leave out at first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One process that wrote to a run: the one that began it, or one that resumed it."""

    number: int
    """From 1, in the order of time."""
    run: Run
    first_step: int | None = None
    """Where it took up the run; None before its first step."""
    last_step: int | None = None
    abandoned_from: int | None = None
    """From which step on a later session has begun again, so that this is a branch that ends there;
    None where the later ones just went on."""

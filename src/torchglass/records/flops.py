"""What one step of a model computes: the work of each op, and the module calls that it was in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

WorkStage = Literal["forward", "backward", "recompute"]
Nature = Literal["counted", "free", "uncounted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A module as another one called it: what is called from two places is there twice."""

    path: str
    """Dotted path of the module in the model; "" is the model itself."""
    parent: int | None = None
    """The place that it was called from, by its index; always a smaller one."""
    calls: int = 0
    """How often it was called here, without what a checkpoint ran again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpWork:
    """What all calls of one op computed in one place and stage."""

    op: str
    """torch's name with its namespace: "aten.addmm"."""
    place: int | None
    """Where it ran, or where the op ran whose gradient it takes; None outside of all modules."""
    stage: WorkStage
    """"recompute" is a forward that a checkpoint runs again in the backward."""
    nature: Nature
    """"free" of products, as an addition is; or "uncounted", because no formula is known."""
    calls: int
    flops: int = 0
    bytes: int = 0
    """All arguments read and all results written once."""
    time_ns: int | None = None
    """What they took; None where it was not measured."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """All that one step of a model computes."""

    places: tuple[Place, ...]
    ops: tuple[OpWork, ...]
    backward: bool = False
    """Whether there was a backward."""
    fake: bool = False
    """Whether it was worked out on tensors without numbers."""
    total_ns: int | None = None
    """What the step took in which the ops were timed; None where they were not."""
    notes: tuple[str, ...] = ()
    """What the reader should know of how it was counted."""

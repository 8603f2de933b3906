"""Timed runs made by hand, so that analyses, views and exports are tested without torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torchglass.analyse.latency import attribute_time
from torchglass.records.measures import Span, SpanKind, Timing


def span(
    kind: SpanKind,
    name: str,
    start: int,
    end: int,
    parent: int | None = None,
    *,
    owner: int | None = None,
    cpu: int | None = None,
) -> Span:
    """A span that kept the processor busy all the time, and is charged to the one it lies in."""
    return Span(
        kind=kind,
        name=name,
        parent=parent,
        owner=parent if owner is None else owner,
        start_ns=start,
        end_ns=end,
        cpu_ns=end - start if cpu is None else cpu,
    )


def run(scale: int = 1, *, cpu: int = 1) -> tuple[Span, ...]:
    """A step of a model with a layer `fc` of one op, and an `act` that is called twice.

    Forward 100, of which fc has 60 and act 2 × 15; loss 10; backward 200, of which fc has 120, act
    30 and the loss 5; the rest of 45 is autograd's own.
    """
    times: list[Any] = [
        ("stage", "forward", 0, 100, None),
        ("module", "", 0, 100, 0),
        ("module", "fc", 5, 65, 1),
        ("op", "linear", 10, 60, 2),
        ("module", "act", 65, 80, 1),
        ("module", "act", 80, 95, 1),
        ("stage", "loss", 100, 110, None),
        ("stage", "backward", 120, 320, None),
        ("node", "SumBackward0", 120, 125, 7, 6),
        ("node", "ReluBackward0", 130, 160, 7, 5),
        ("node", "AddmmBackward0", 160, 280, 7, 3),
    ]
    return tuple(
        span(
            kind,
            name,
            start * scale,
            end * scale,
            parent,
            owner=owner[0] if owner else None,
            cpu=(end - start) * cpu,
        )
        for kind, name, start, end, parent, *owner in times
    )


def timing(scales: Iterable[int] = (2, 1, 3), **fields: Any) -> Timing:
    """Several such runs, each so many times as long; the second is the fastest unless told."""
    runs = [run(scale) for scale in scales]
    charges = tuple(map(attribute_time, runs))
    published = min(range(len(runs)), key=lambda number: charges[number].total_ns)
    return Timing(
        **{
            "runs": charges,
            "published": published,
            "spans": runs[published],
            "warmup": 3,
            "clock": "host",
            **fields,
        }
    )

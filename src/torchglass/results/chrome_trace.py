"""A run as a file for chrome://tracing and Perfetto: its spans on a time axis."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from torchglass.records.timing import Span, Timing

_PROCESS = {"pid": 0, "tid": 0}
_NS_PER_US = 1e3


def chrome_trace(timing: Timing, model: str) -> dict[str, Any]:
    """The published run in Chrome's trace event format; arrows lead from ops to their backwards."""
    return {
        "displayTimeUnit": "ms",
        "otherData": {"model": model, "clock": timing.clock},
        "traceEvents": [*_names(model, timing.clock), *_events(timing.spans, model)],
    }


def chrome_trace_json(timing: Timing, model: str) -> str:
    """The same as JSON text."""
    return json.dumps(chrome_trace(timing, model))


def _names(model: str, clock: str) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "name": "process_name", "args": {"name": model}, **_PROCESS}
    yield {"ph": "M", "name": "thread_name", "args": {"name": clock}, **_PROCESS}


def _events(spans: Sequence[Span], model: str) -> Iterator[dict[str, Any]]:
    origin = min((span.start_ns for span in spans), default=0)
    paths: list[str] = []
    for number, span in enumerate(spans):
        paths.append(_path(span, paths))
        yield {
            "ph": "X",
            "cat": span.kind,
            "name": (span.name or model) if span.kind == "module" else span.name,
            "ts": (span.start_ns - origin) / _NS_PER_US,
            "dur": span.total_ns / _NS_PER_US,
            "args": {"module": paths[-1], "cpu_us": span.cpu_ns / _NS_PER_US},
            **_PROCESS,
        }
        if span.kind == "node" and span.owner is not None and span.owner != span.parent:
            maker = spans[span.owner]
            arrow = {"cat": "backward", "name": "backward of", "id": number, **_PROCESS}
            yield {"ph": "s", "ts": (maker.start_ns - origin) / _NS_PER_US, **arrow}
            yield {"ph": "f", "bp": "e", "ts": (span.start_ns - origin) / _NS_PER_US, **arrow}


def _path(span: Span, paths: Sequence[str]) -> str:
    """The module that a span belongs to."""
    if span.kind == "module":
        return span.name
    return paths[span.owner] if span.owner is not None else ""

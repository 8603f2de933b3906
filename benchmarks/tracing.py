"""Tracing: every op of a forward seen and every result saved, against the forward alone.

TorchLens leaves torch's functions wrapped, which slows the forward that it is compared with. So it
has an interpreter of its own, in which the forward is timed before the first trace.
"""

from __future__ import annotations

import statistics
import time
from functools import partial

import torch

from benchmarks.cases import alone, at_start, beside_baseline, each_alone
from benchmarks.measure import (
    PATIENCE,
    Times,
    cpu_seconds,
    first_run_cost,
    in_turns,
    keep_freed_memory,
    peak_bytes,
    times_baseline,
)
from benchmarks.models import GPT_2, LSTM, MLP, RESNET18, Scale, Spec, build
from benchmarks.rows import OURS, TORCHLENS, Case, Effort, Reading, Topic
from benchmarks.tracers import bytes_of, necessary_bytes, results_kept, tracer

_RAW = "forward alone"
_KEPT = "results kept"
_COPIED = "… with copies"
_WORKED_OUT = "… and all worked out"


@torch.no_grad()
def time_ours(spec: Spec, rounds: int, pages_at_hand: bool = False) -> Times:
    """The forward alone in milliseconds, and how many times that our traces take.

    Between them is what no trace can do without: results held, and copied before a write. With
    `pages_at_hand` the system is not asked for memory while they run.
    """
    if pages_at_hand:
        keep_freed_memory()
    subject, ours = build(spec), tracer(OURS)

    def trace_and_work_out() -> object:
        trace = ours.trace(subject)
        ours.work_out(trace)
        return trace

    times = in_turns(
        {
            _RAW: subject.forward,
            _KEPT: partial(results_kept, subject, copies=False),
            _COPIED: partial(results_kept, subject, copies=True),
            OURS: partial(ours.trace, subject),
            _WORKED_OUT: trace_and_work_out,
        },
        rounds,
    )
    return times_baseline(times, _RAW)


@torch.no_grad()
def time_peer(spec: Spec, contender: str, rounds: int) -> list[float]:
    """How many times the forward alone the trace of a peer takes."""
    subject, peer = build(spec), tracer(contender)
    raw = in_turns({_RAW: subject.forward}, rounds)[_RAW]
    traced = in_turns({contender: partial(peer.trace, subject)}, rounds)[contender]
    return [seconds / statistics.median(raw) for seconds in traced]


@torch.no_grad()
def microseconds_to_work_out(spec: Spec, contender: str, rounds: int) -> list[float]:
    """CPU time per op to find all labels, loops and lookups of a trace."""
    subject, ours = build(spec), tracer(contender)
    started = time.process_time()
    samples: list[float] = []
    while len(samples) < rounds and (not samples or time.process_time() - started < PATIENCE):
        trace = ours.trace(subject)
        seconds = cpu_seconds(partial(ours.work_out, trace))
        samples.append(1e6 * seconds / ours.work_out(trace))
    return samples


@torch.no_grad()
def first_trace_milliseconds(contender: str) -> list[float]:
    """CPU time that a first trace costs over a later one, the package's import included."""
    subject, chosen = build(("mlp", {"layers": 4})), tracer(contender)
    subject.forward()
    return [1e3 * first_run_cost(partial(chosen.trace, subject))]


@torch.no_grad()
def kilobytes_recorded(spec: Spec, contender: str, rounds: int) -> list[float]:
    """The memory per op of a trace that was only taken down, in one round."""
    return [_kilobytes_per_op(spec, contender, work_out=False)]


@torch.no_grad()
def kilobytes_worked_out(spec: Spec, contender: str, rounds: int) -> list[float]:
    """The memory per op of a trace with all labels, loops and lookups found, in one round."""
    return [_kilobytes_per_op(spec, contender, work_out=True)]


def _kilobytes_per_op(spec: Spec, contender: str, *, work_out: bool) -> float:
    """The memory of a trace at its peak, without that of the tensors that it saves."""
    subject, chosen = build(spec), tracer(contender)

    def run() -> object:
        trace = chosen.trace(subject)
        if work_out:
            chosen.work_out(trace)
        return trace

    # What is imported and wrapped once is no memory of the trace's.
    chosen.work_out(chosen.trace(build(("mlp", {"layers": 1}))))
    subject.forward()
    trace, peak = peak_bytes(run)
    return (peak - bytes_of(chosen.saved(trace), subject)) / 1e3 / chosen.work_out(trace)


@torch.no_grad()
def times_necessary_bytes(spec: Spec, contender: str, rounds: int) -> list[float]:
    """How many times the distinct storages and what was overwritten a trace holds, in one round."""
    subject, chosen = build(spec), tracer(contender)
    necessary = necessary_bytes(subject)
    return [bytes_of(chosen.saved(chosen.trace(subject)), subject) / necessary]


def _speed(
    name: str, scale: Scale, goal: float | None = None, *, pages_at_hand: bool = False
) -> Case:
    def measure(effort: Effort) -> dict[str, Reading]:
        spec, rounds = scale.at(effort), effort.rounds
        others = (_KEPT, _COPIED, OURS, _WORKED_OUT)
        found = beside_baseline(
            _RAW, others, time_ours, spec=spec, rounds=rounds, pages_at_hand=pages_at_hand
        )
        if not pages_at_hand:
            found[TORCHLENS] = alone(TORCHLENS, "×", time_peer, spec=spec, rounds=rounds)
        return found

    return Case(name, measure, goal)


def _working_out(ops: str, spec: Spec) -> Case:
    scale = Scale(spec, MLP.small)
    name = f"all worked out, per op of {ops}"
    return each_alone(name, "µs", microseconds_to_work_out, scale, [OURS], goal=60)


_BOTH = (OURS, TORCHLENS)

TOPIC = Topic(
    name="tracing",
    title="Tracing",
    about=(
        "CPU time as a multiple of the plain forward, with everything saved, default "
        "options, under `no_grad`. A trace computes labels, loops and lookups on first use; "
        f"“{_WORKED_OUT}” computes them at once, as TorchLens does. “{_KEPT}” and “{_COPIED}” "
        "of what in-place ops overwrite are the floor: the new memory alone. Memory per op "
        "is the peak over the process before, without the saved tensors. Saved bytes are "
        "relative to the distinct storages plus what in-place ops overwrote."
    ),
    cases=[
        _speed("ResNet-18, 1×3×224×224", RESNET18, goal=1.1),
        _speed("… where malloc keeps what is freed", RESNET18, pages_at_hand=True),
        _speed("GPT-2-small-like, seq 128", GPT_2, goal=1.1),
        _speed("LSTMCell × 200 steps", LSTM, goal=2),
        _speed("MLP of 1000 Linear(64) + ReLU", MLP, goal=3),
        at_start("first trace, import included", "ms", first_trace_milliseconds, _BOTH, goal=100),
        _working_out("2,000 in a row", ("mlp", {"layers": 1_000, "width": 4})),
        _working_out("20,000 in a row", ("mlp", {"layers": 10_000, "width": 4})),
        _working_out("100,000 in a row", ("mlp", {"layers": 50_000, "width": 4})),
        _working_out("100,000 in a loop", ("lstm", {"steps": 50_000, "width": 4})),
        _working_out("2,000 that fill one tensor", ("rows", {"count": 1_000})),
        _working_out("20,000 that fill one tensor", ("rows", {"count": 10_000})),
        each_alone("memory per op, MLP as recorded", "KB", kilobytes_recorded, MLP, _BOTH, goal=2),
        each_alone(
            "memory per op, MLP all worked out", "KB", kilobytes_worked_out, MLP, _BOTH, goal=2
        ),
        each_alone("saved bytes, ResNet-18", "×", times_necessary_bytes, RESNET18, _BOTH, goal=1),
        each_alone("saved bytes, GPT-2-like", "×", times_necessary_bytes, GPT_2, _BOTH, goal=1),
    ],
)

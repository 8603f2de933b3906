"""Summaries: every row of the table made and written, with and without a forward."""

from __future__ import annotations

import io
from collections.abc import Callable

from benchmarks.cases import installed, together
from benchmarks.measure import in_turns
from benchmarks.models import GPT_2, MANY, Scale, Spec, build
from benchmarks.rows import OURS, TORCHINFO, Case, Effort, Reading, Topic

_CONTENDERS = (OURS, TORCHINFO)
_DEEPER_THAN_ANY = 100


def time_summaries(
    spec: Spec, contenders: list[str], rounds: int, *, with_input: bool
) -> dict[str, list[float]]:
    """CPU milliseconds of a printed summary."""
    subject = build(spec)
    inputs = subject.inputs if with_input else None

    def ours() -> None:
        import torchglass as tg

        _print(tg.summary(subject.model, *(inputs or ())))

    def torchinfo() -> None:
        import torchinfo

        # Left alone, it shows three levels; we show all.
        _print(
            torchinfo.summary(subject.model, input_data=inputs, depth=_DEEPER_THAN_ANY, verbose=0)
        )

    runs: dict[str, Callable[[], object]] = {OURS: ours, TORCHINFO: torchinfo}
    times = in_turns({name: runs[name] for name in contenders}, rounds)
    return {name: [1e3 * time for time in of_one] for name, of_one in times.items()}


def _print(summary: object) -> None:
    print(summary, file=io.StringIO())


def _case(name: str, scale: Scale, *, with_input: bool) -> Case:
    def measure(effort: Effort) -> dict[str, Reading]:
        return together(
            _CONTENDERS,
            "ms",
            time_summaries,
            spec=scale.at(effort),
            contenders=installed(_CONTENDERS),
            rounds=effort.rounds,
            with_input=with_input,
        )

    return Case(f"{name}, {'with an input' if with_input else 'no input'}", measure)


TOPIC = Topic(
    name="summary",
    title="Summary",
    about="CPU time to summarize a model and print the table with all levels.",
    cases=[
        _case("20,000 modules", MANY, with_input=False),
        _case("20,000 modules", MANY, with_input=True),
        _case("GPT-2-small-like, seq 128", GPT_2, with_input=False),
        _case("GPT-2-small-like, seq 128", GPT_2, with_input=True),
    ],
)

"""One tensor: what its statistics take, in sums of it, each of which reads it about once."""

from __future__ import annotations

import torch

from benchmarks.cases import beside_baseline
from benchmarks.measure import Times, in_turns, times_baseline
from benchmarks.rows import OURS, Case, Effort, Reading, Topic

_SUM = "a sum"
_CALLS = "eight calls"


def time_statistics(elements: int, rounds: int) -> Times:
    """A sum in milliseconds, and how many times that the statistics take."""
    from torchglass.capture.tensor.moments import measure

    tensor = torch.randn(elements)

    def eight_calls() -> None:
        for statistic in (tensor.min, tensor.max, tensor.mean, tensor.std):
            statistic()
        for found in (tensor.isnan(), tensor.isinf(), tensor == 0):
            found.sum()
        tensor.abs().max()

    times = in_turns({_SUM: tensor.sum, OURS: lambda: measure(tensor), _CALLS: eight_calls}, rounds)
    return times_baseline(times, _SUM)


def _case(name: str, elements: int, goal: float | None) -> Case:
    def measure(effort: Effort) -> dict[str, Reading]:
        count = 1_000 if effort.quick else elements
        others = (OURS, _CALLS)
        return beside_baseline(_SUM, others, time_statistics, elements=count, rounds=effort.rounds)

    return Case(name, measure, goal)


TOPIC = Topic(
    name="tensor",
    title="One tensor",
    about=(
        "Min, max, mean, standard deviation, NaN and Inf of one float32 tensor: CPU time as a "
        "multiple of its sum. The eight calls are `min`, `max`, `mean`, `std`, counts of NaN, "
        "Inf and zeros, and the largest magnitude."
    ),
    cases=[
        _case("statistics of 10,000,000 numbers", 10_000_000, 6),
        _case("statistics of 100,000 numbers", 100_000, None),
    ],
)

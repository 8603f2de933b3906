"""Structure: a model of very many, or very deeply nested, modules read and counted."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.cases import each_alone
from benchmarks.measure import in_turns, peak_bytes
from benchmarks.models import DEEP, VERY_MANY, Spec, build
from benchmarks.rows import OURS, TORCHINFO, Topic


def time_reading(spec: Spec, contender: str, rounds: int) -> list[float]:
    """CPU seconds to read and count a model."""
    return in_turns({contender: _reader(spec, contender)}, rounds)[contender]


def peak_megabytes(spec: Spec, contender: str, rounds: int) -> list[float]:
    """The memory that reading and counting takes at most, over the model itself, in one round.

    A second one would find room in what the first left free, and seem to need less.
    """
    read = _reader(spec, contender)
    # What is imported on first use is no memory of the model's.
    _reader(("mlp", {"layers": 1}), contender)()
    _, peak = peak_bytes(read)
    return [peak / 1e6]


def _reader(spec: Spec, contender: str) -> Callable[[], object]:
    model = build(spec).model

    def ours() -> object:
        from torchglass.analyse.parameters import count
        from torchglass.capture.model.structure import read_model

        record = read_model(model)
        return record, count(record)

    def torchinfo() -> object:
        import torchinfo

        return torchinfo.summary(model, verbose=0)

    return {OURS: ours, TORCHINFO: torchinfo}[contender]


_CONTENDERS = (OURS, TORCHINFO)

TOPIC = Topic(
    name="structure",
    title="Structure",
    about=(
        "CPU time to read a model and count its parameters; for torchinfo, `summary` without "
        "an input, not printed. Memory is the peak over that of the model."
    ),
    cases=[
        each_alone("100,000 modules", "s", time_reading, VERY_MANY, _CONTENDERS, goal=1.5),
        each_alone(
            "100,000 modules, memory", "MB", peak_megabytes, VERY_MANY, _CONTENDERS, goal=150
        ),
        each_alone("1,000 modules deep", "s", time_reading, DEEP, _CONTENDERS),
    ],
)

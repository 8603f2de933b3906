"""What is watched, how often and how closely."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from torchglass.errors import TargetError

MOST_BINS = 10_000

Unit = Literal["optimizer", "backward"]
"""What a step is: one step of the model's optimizers, or one backward."""

LOGS = {
    "io": "the inputs and outputs of every module",
    "io_grad": "their gradients",
    "params": "every parameter",
    "params_grad": "every parameter's gradient",
    "stats": "the share of zeros in each of these",
    "updates": "size of each update relative to the norm of the parameter",
    "activations": "small images of module outputs",
    "optimizer": "the optimizer's state of every parameter, and its learning rates",
}
"""What can be logged."""

_WHAT_CAN_BE_LOGGED = f"what can be logged: {', '.join(LOGS)}"

USUAL_LOGS = ("io", "io_grad", "params", "params_grad")


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a training is watched."""

    log: frozenset[str] = frozenset(USUAL_LOGS)
    log_freq: int = 1
    """Record every n-th step."""
    bins: int = 30
    sample_n: int | None = 100
    """How many values of a tensor fill a histogram; None for all."""
    unit: Unit | None = None
    """None: decided at the end of the first backward, by whether there is an optimizer."""
    time_log: tuple[str, Callable[[Any, int], float]] | None = None
    """Name of another time axis, and a function of model and step that returns its value."""
    guard: bool = True
    """Whether to find the operation behind the first NaN or Inf."""
    scaler: Any = None
    """The `GradScaler` of the training; None: the one that steps the optimizer."""

    logs_times: bool = False
    """Whether to record the duration of forwards and steps, which may differ between ranks."""
    adds_up_ranks: bool = False
    """Whether ranks are added up, so that each value must be counted once."""

    def __post_init__(self) -> None:
        unknown = sorted(map(repr, self.log - LOGS.keys()))
        if unknown:
            raise TargetError(f"log has {', '.join(unknown)}; {_WHAT_CAN_BE_LOGGED}")
        _check_whole("log_freq", self.log_freq)
        _check_whole("bins", self.bins, most=MOST_BINS)
        if self.sample_n is not None:
            _check_whole("sample_n", self.sample_n, otherwise=", or None for all values")
        if self.time_log is not None and not _tells_time(self.time_log):
            raise TargetError(
                "time_log must be a name and a function of model and step, such as "
                f"('epoch', lambda model, step: step / 100), not {self.time_log!r}"
            )
        if self.unit not in (None, "optimizer", "backward"):
            raise TargetError(f'unit must be "optimizer" or "backward", not {self.unit!r}')


def names_to_log(given: object) -> frozenset[str]:
    """What to log: one name or several."""
    if isinstance(given, str):
        return frozenset([given])
    if not isinstance(given, Iterable):
        raise TargetError(
            f"log must be a name or a list of names, not {given!r}; {_WHAT_CAN_BE_LOGGED}"
        )
    return frozenset(given)


def _check_whole(name: str, value: object, *, most: int | None = None, otherwise: str = "") -> None:
    try:
        whole = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        whole = 0
    if whole < 1:
        raise TargetError(f"{name} must be an integer of at least 1{otherwise}, not {value!r}")
    if most is not None and whole > most:
        raise TargetError(f"{name} must be {most:,} or less, not {whole:,}")


def _tells_time(given: object) -> bool:
    return (
        isinstance(given, tuple | list)
        and len(given) == 2
        and isinstance(given[0], str)
        and callable(given[1])
    )

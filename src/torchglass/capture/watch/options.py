"""What is watched, how often and how closely."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torchglass.errors import TargetError

Unit = Literal["optimizer", "backward"]
"""What a step is: one step of the model's optimizers, or one backward."""

LOGS = {
    "io": "the inputs and outputs of every module",
    "io_grad": "their gradients",
    "params": "every parameter",
    "params_grad": "every parameter's gradient",
    "stats": "the share of zeros of all these",
    "updates": "how far each step moves a parameter, as a share of its length",
    "activations": "small pictures of what modules put out",
    "optimizer": "what the optimizer remembers of every parameter, and its learning rates",
}
"""What can be logged."""

USUAL_LOGS = ("io", "io_grad", "params", "params_grad")


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a training is watched."""

    log: frozenset[str] = frozenset(USUAL_LOGS)
    log_freq: int = 1
    """Every so manyth step is looked at."""
    bins: int = 30
    sample_n: int | None = 100
    """How many numbers of a tensor a histogram is made of; None takes all of them."""
    unit: Unit | None = None
    """None finds out at the end of the first backward, by whether there is an optimizer."""
    time_log: tuple[str, Callable[[Any, int], float]] | None = None
    """A number to tell the time by beside the steps, and how it is asked of model and step."""
    scaler: Any = None
    """The `GradScaler` of the training; without one, that which steps the optimizer."""

    logs_times: bool = False
    """Whether to keep how long forwards and steps take, as many ranks differ in that."""
    adds_up_ranks: bool = False
    """Whether what all ranks record is added up, so that each number is to be counted once."""

    def __post_init__(self) -> None:
        unknown = sorted(self.log - LOGS.keys())
        if unknown:
            raise TargetError(
                f"log has {', '.join(map(repr, unknown))}; what can be logged: {', '.join(LOGS)}"
            )
        for name in ("log_freq", "bins", "sample_n"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise TargetError(f"{name} must be 1 or more, not {value}")
        if self.time_log is not None and not _tells_time(self.time_log):
            raise TargetError(
                "time_log is a name and a function of model and step, such as "
                f"('epoch', lambda model, step: step / 100), not {self.time_log!r}"
            )
        if self.unit not in (None, "optimizer", "backward"):
            raise TargetError(f'unit is "optimizer" or "backward", not {self.unit!r}')


def _tells_time(given: object) -> bool:
    return (
        isinstance(given, tuple | list)
        and len(given) == 2
        and isinstance(given[0], str)
        and callable(given[1])
    )

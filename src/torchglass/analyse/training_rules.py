"""The rules that find problems in a training, such as NaN, vanishing gradients and dead units.

To add one, write a function that yields a `Problem` per affected series, and add it to `RULES`.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from torchglass.analyse.nonfinite_cause import not_finite_words
from torchglass.records.findings import Severity
from torchglass.records.model import Stats, join_path

_PATIENCE = 3
"""The number of measurements in a row after which a problem that may pass is reported."""
_PATIENCE_AFTER_GRADIENT = 6
"""The same for a parameter that had a gradient before: experts of a mixture may rest."""
_FEWEST_VALUES = 32
"""With fewer values than this, all zeros may be chance."""
_VANISHING_SHARE = 1e-6
"""A gradient vanishes when it is this much smaller than the largest one of the model."""
_CANCELLED_SHARE = 1e-4
"""If this share of the largest gradient reaches a module's output, gradient does reach the module:
the gradient of its weight is zero by mathematics, as for a bias in front of a norm."""
_RECOVERING_GROWTH = 1.5
_CLOSED_SIZE = 1e-4
"""A trained factor this small, such as a new layer scale or LoRA's second matrix, lets almost no
gradient through until it has grown."""
_EXPLODING_GROWTH = 100.0
_EXPLODING_BEYOND = 10.0
"""How far a gradient must exceed the usual gradients of all parameters, besides its own growth:
what was zero at first, as behind a branch that starts at zero, only catches up."""
_HISTORY = 16
_SHORTEST_HISTORY = 4

SeriesKey = tuple[str, str]
"""The path of a module, and the name of a series of it."""
StepTensors = Mapping[SeriesKey, Sequence[Stats]]
"""All statistics of a step; a tensor that was measured several times has several of them."""
FindingKey = tuple[str, str, str]
"""What is reported once: a kind of problem, and the series."""


class Observation(NamedTuple):
    """The values of one series at one step."""

    path: str
    name: str
    stats: Stats
    dims: int = 2
    """For the gradient of a parameter, the number of dimensions of the parameter."""
    needs_grad: bool = True
    """Whether the tensor requires a gradient."""
    is_scaled: bool = False
    """Whether it is a gradient that a `GradScaler` has scaled and will check."""

    @property
    def key(self) -> SeriesKey:
        """The series."""
        return self.path, self.name


class Problem(NamedTuple):
    """What a rule found at one step."""

    severity: Severity
    kind: str
    message: str
    seen: Observation
    facts: dict[str, float | str]
    patience: int = _PATIENCE
    """The number of measurements in a row after which it is reported."""

    @property
    def key(self) -> FindingKey:
        """What is reported once; dead units only in one of the two modes."""
        name = self.seen.name.removeprefix("eval:") if self.kind == "dead-units" else self.seen.name
        return self.kind, self.seen.path, name


@dataclass
class TrainingHistory:
    """What the rules remember of earlier steps."""

    gradient_sizes: dict[SeriesKey, deque[float]] = field(default_factory=dict)
    first_size: float = 0.0
    """The largest gradient of the first steps: at the end of a training all may be far smaller."""
    has_settled: set[SeriesKey] = field(default_factory=set)
    """The gradients whose first steps are over."""
    reached: set[SeriesKey] = field(default_factory=set)
    """The gradients that did not vanish at some step."""
    small_shares: dict[SeriesKey, deque[float]] = field(default_factory=dict)
    """The sizes of the gradients that did, as a share of the largest one."""


class StepView:
    """What was measured at one step, as the rules see it."""

    def __init__(
        self, step: int, seen: Iterable[Observation], measured: Callable[[], StepTensors] | None
    ) -> None:
        self.step = step
        self.seen = list(seen)
        self._measured = measured

    @cached_property
    def gradients(self) -> list[Observation]:
        """The gradients of parameters."""
        return [one for one in self.seen if _is_gradient_of_parameter(one.name)]

    @cached_property
    def tensors(self) -> StepTensors:
        """Everything that was measured, which may take time to collect."""
        if self._measured is not None:
            return self._measured()
        tensors: dict[SeriesKey, list[Stats]] = {}
        for one in self.seen:
            tensors.setdefault(one.key, []).append(one.stats)
        return tensors


def rows_with_problems(stats: npt.NDArray[np.float64]) -> list[bool]:
    """Which tensors some rule needs, whatever they are; a row has the columns of `FIELDS`.

    Of the thousands in a large model, few are needed.
    """
    _, low, high, _, _, nan, inf = stats.T
    found: list[bool] = ((nan > 0) | (inf > 0) | ((low == 0) & (high == 0))).tolist()
    return found


def is_always_checked(name: str) -> bool:
    """Whether a rule needs a series at every step."""
    return name.endswith(".grad") and _is_gradient_of_parameter(name)


def _nonfinite(view: StepView, _: TrainingHistory) -> Iterator[Problem]:
    """Series with NaN or Inf, in the order in which they were measured."""
    bad = [one for one in view.seen if one.stats.nan or one.stats.inf]
    trained = {one.key for one in view.gradients} if bad else set()
    for one in bad:
        is_trained = (one.path, f"{one.name}.grad") in trained
        if not has_bad_values(one.name, one.stats, is_trained=is_trained):
            continue
        if one.is_scaled:
            yield _scaled_overflow(view.step, one)
            continue
        stats = one.stats
        kind = "nan" if stats.nan else "inf"
        message = f"{_bad_values(one)} (since step {view.step})"
        share = (stats.nan + stats.inf) / stats.count
        yield Problem("error", kind, message, one, {"share": share})


def has_bad_values(name: str, stats: Stats, *, is_trained: bool = False) -> bool:
    """Whether values of a series are NaN or Inf, and not on purpose.

    Masks contain −Inf, which is added to scores before a softmax and becomes zero there. An
    unwanted −Inf becomes +Inf or NaN in the loss and in the gradients, and is reported there.
    """
    last = _base(name)
    if not (stats.nan or stats.inf) or last.endswith(".grad_norm"):
        return False
    is_value = not is_trained and not last.endswith(".grad")
    return not is_value or bool(stats.nan) or stats.inf > stats.negative_inf


def _scaled_overflow(step: int, one: Observation) -> Problem:
    message = (
        f"Scaled gradients overflowed at step {step}: the GradScaler skips such a step and lowers "
        "its scale"
    )
    everywhere = one._replace(path="", name="grad_scale")
    return Problem("info", "scaled-overflow", message, everywhere, {})


def _bad_values(one: Observation) -> str:
    """The NaN and Inf of a series, as a sentence."""
    last = _base(one.name)
    module = f"`{one.path}`" if one.path else "the model"
    if not last.startswith(("input", "output")):
        if one.stats.count == 1 and not last.endswith(".grad"):
            return f"{_label(one)} is {'NaN' if one.stats.nan else 'Inf'}"
        whose = "of the gradient of" if last.endswith(".grad") else "of"
        return not_finite_words(one.stats, f"{whose} {_label(one)}")
    side = "input" if last.startswith("input") else "output"
    if last.endswith(".grad"):
        return not_finite_words(one.stats, f"of the gradient at the {side} of {module}")
    way = "entering" if side == "input" else "leaving"
    return not_finite_words(one.stats, f"{way} {module}")


def _exploding_gradients(view: StepView, history: TrainingHistory) -> Iterator[Problem]:
    for one in view.gradients:
        size = _size(one.stats)
        earlier = history.gradient_sizes.setdefault(one.key, deque(maxlen=_HISTORY))
        usual = math.nan
        # The usual size is computed only where it can matter.
        if len(earlier) >= _SHORTEST_HISTORY and size > _EXPLODING_GROWTH * min(earlier):
            usual = _usual(earlier)
        is_large = size > _EXPLODING_GROWTH * usual > 0 and size > history.first_size
        if is_large and _exceeds_all(size, history):
            message = (
                f"The gradient of {_label(one)} explodes: {size / usual:,.0f} times its usual "
                f"size ({_short(size)}, before: {_short(usual)})"
            )
            facts: dict[str, float | str] = {"size": size, "usual": usual}
            yield Problem("warning", "exploding-gradient", message, one, facts)
        elif math.isfinite(size):
            earlier.append(size)
            if len(earlier) <= _SHORTEST_HISTORY and one.key not in history.has_settled:
                history.first_size = max(history.first_size, size)
            else:
                history.has_settled.add(one.key)


def _exceeds_all(size: float, history: TrainingHistory) -> bool:
    usual = map(_usual, filter(None, history.gradient_sizes.values()))
    return size > _EXPLODING_BEYOND * max(usual)


def _dead_units(view: StepView, _: TrainingHistory) -> Iterator[Problem]:
    """Modules whose outputs are all zero, although their inputs are not."""
    zero = [one for one in view.seen if _is_zero_output(one)]
    if not zero:
        return
    tensors = view.tensors
    paths = {one.path for one in zero}
    above = {parent for path in paths for parent in _above(path)}
    fed = {
        (path, _prefix(name))
        for (path, name), parts in tensors.items()
        if path in paths and _base(name).startswith("input") and ".grad" not in name
        if not all(map(_is_zero, parts))
    }
    firsts: dict[SeriesKey, Observation] = {}
    for one in zero:
        firsts.setdefault(one.key, one)
    for (path, name), seen in firsts.items():
        # The output of a container is the output of the last module in it.
        if path in above or (path, _prefix(name)) not in fed:
            continue
        if all(map(_is_zero, tensors.get((path, name), ()))):
            message = f"{_module(path, name)} is dead: all outputs are 0"
            yield Problem("warning", "dead-units", message, seen, {"zeros": 1.0})


def _is_zero_output(one: Observation) -> bool:
    stats = one.stats
    return _is_zero(stats) and one.needs_grad and stats.count >= _FEWEST_VALUES and _is_output(one)


def _module(path: str, name: str) -> str:
    """A module, with the call and mode if it is not the first call in training mode."""
    mode, call = name.startswith("eval:"), _prefix(name).removeprefix("eval:").removesuffix(":")
    where = [f"call {call}"] if call.isdigit() else ["later calls"] if call else []
    where += ["eval mode"] if mode else []
    return (f"`{path}`" if path else "The model") + (f" ({', '.join(where)})" if where else "")


def _vanishing_gradients(view: StepView, history: TrainingHistory) -> Iterator[Problem]:
    """Weights that no gradient reaches, or almost none."""
    gradients = view.gradients
    largest = _largest(gradients)
    small = _small_gradients(gradients, largest, history)
    if not small:
        return
    others = [_size(one.stats) for one in gradients]
    usual = statistics.median(
        size for size in others if size and size >= largest * _VANISHING_SHARE
    )
    reach = _GradientReach(view.tensors, gradients)
    if reach.is_held_back:
        return
    lost = {one.key for one in small}
    first = reach.first([one for one in gradients if one.key not in lost])
    for one in small:
        size = _size(one.stats)
        # A gradient that fades on its way back through the layers reaches nothing before them.
        # Side branches, such as queries and keys with small weights, are only small.
        is_beside = reach.order(one) > first and size >= usual * _VANISHING_SHARE
        is_off = not size and reach.is_one_of_several_outputs(one.path)
        if (
            is_beside
            or is_off
            or reach.is_cancelled(one)
            or _is_recovering(one, size / largest, history)
        ):
            continue
        amount = "No gradient" if not size else "Almost no gradient"
        own = f"{_short(size)}, " if size else ""
        message = f"{amount} reaches {_label(one)} ({own}others: {_short(usual)})"
        facts: dict[str, float | str] = {"size": size, "others": usual}
        patience = _PATIENCE_AFTER_GRADIENT if one.key in history.reached else _PATIENCE
        kind = "vanishing-gradient" if size else "no-gradient"
        yield Problem("warning", kind, message, one, facts, patience)


def _small_gradients(
    gradients: Iterable[Observation], largest: float, history: TrainingHistory
) -> list[Observation]:
    """The gradients of weights that are almost zero compared with the largest one."""
    small = []
    for one in gradients:
        is_weight = one.dims > 1 and one.stats.count > one.stats.nan + one.stats.inf
        if is_weight and _size(one.stats) < largest * _VANISHING_SHARE:
            small.append(one)
        elif is_weight and largest:
            history.reached.add(one.key)
    return small


def _is_recovering(one: Observation, share: float, history: TrainingHistory) -> bool:
    """Whether a gradient grows, as behind weights that start at zero or in a slow warm-up."""
    shares = history.small_shares.setdefault(one.key, deque(maxlen=_HISTORY))
    shares.append(share)
    third = len(shares) // 3
    if not third:
        return False
    ordered = list(shares)
    return sum(ordered[-third:]) > _RECOVERING_GROWTH * sum(ordered[:third])


class _GradientReach:
    """How much gradient reaches each module at a step."""

    def __init__(self, tensors: StepTensors, gradients: Sequence[Observation]) -> None:
        self._tensors = tensors
        self._registered = {one.key: at for at, one in enumerate(gradients)}
        self._ran: dict[str, int] = {}
        """When each module was first called, as an index in the order of calls."""
        for at, (path, name) in enumerate(tensors):
            if ".grad" not in name and _base(name).startswith(("input", "output")):
                self._ran.setdefault(path, at)
        self._parents = {above for path, _ in tensors for above in _above(path)}
        self._outputs: dict[str, float] = {}
        self._called: set[str] = set()
        for (path, name), parts in tensors.items():
            last = _base(name)
            if last.startswith("output"):
                self._called.add(path)
                if last.endswith(".grad"):
                    norm = max(_norm(stats) for stats in parts)
                    self._outputs[path] = max(self._outputs.get(path, 0.0), norm)
        self._largest = max(self._outputs.values(), default=0.0)

    @cached_property
    def _ends(self) -> list[Sequence[Stats]]:
        """The outputs of the model."""
        return [
            parts
            for (path, name), parts in self._tensors.items()
            if not path and name.startswith("output") and ".grad" not in name
        ]

    @cached_property
    def _gradients(self) -> dict[str, float]:
        """The largest gradient of the parameters of each module."""
        largest: dict[str, float] = {}
        for (path, name), parts in self._tensors.items():
            if _is_gradient_of_parameter(name):
                largest[path] = max(largest.get(path, 0.0), *map(_size, parts))
        return largest

    @property
    def is_held_back(self) -> bool:
        """Whether a trained factor is still almost zero, but has a gradient that will open it.

        A bias is not a factor.
        """
        return any(
            _is_closed(parts) and not all(map(_is_zero, self._tensors[path, f"{name}.grad"]))
            for (path, name), parts in self._tensors.items()
            if "bias" not in name
            and _is_gradient_of_parameter(f"{name}.grad")
            and (path, f"{name}.grad") in self._tensors
        )

    def order(self, one: Observation) -> int:
        """The position of a weight's module in the forward.

        A module that is not called itself has the position of its parent. If no calls were
        recorded, modules are in the order of registration.
        """
        for path in (one.path, *_above(one.path)):
            if path in self._ran:
                return self._ran[path]
        return self._registered[one.key]

    def first(self, reached: Iterable[Observation]) -> float:
        """The position of the first weight that receives a gradient."""
        return min((self.order(one) for one in reached if one.dims > 1), default=math.inf)

    def is_one_of_several_outputs(self, path: str) -> bool:
        """Whether a module returns one of the outputs of the model, which the loss may weigh by 0.

        Two outputs with the same statistics are the same one.
        """
        if len(self._ends) < 2:
            return False
        around = (path, *(above for above in _above(path) if above))
        own = [self._tensors.get((at, "output")) for at in around]
        return any(parts in self._ends for parts in own if parts)

    def is_cancelled(self, one: Observation) -> bool:
        """Whether a gradient is small although its module does receive gradients."""
        path = one.path
        if path in self._parents:
            return False
        if self._called and path not in self._called:
            # A module that was not called, such as an expert that was not chosen, has no gradient.
            return not _size(one.stats)
        if self._largest and path in self._outputs:
            return self._outputs[path] >= self._largest * _CANCELLED_SHARE
        return self._gradients.get(path, 0.0) * _VANISHING_SHARE > _size(one.stats)


def _is_closed(parts: Sequence[Stats]) -> bool:
    return all(_size(stats) < _CLOSED_SIZE and not stats.nan and not stats.inf for stats in parts)


def _label(one: Observation) -> str:
    """The parameter or value of a series: "`encoder.0.weight`"."""
    return f"`{join_path(one.path, _base(one.name).removesuffix('.grad'))}`"


def _short(size: float) -> str:
    return f"{size:.2g}"


def _above(path: str) -> Iterator[str]:
    """The paths of the modules that contain one."""
    while path:
        path = path.rpartition(".")[0]
        yield path


def _prefix(name: str) -> str:
    """The call and mode of a series: "eval:2:"."""
    return name[: len(name) - len(_base(name))]


def _base(name: str) -> str:
    return name.rpartition(":")[2]


def _is_output(one: Observation) -> bool:
    """Whether it is an output of a module, in any call and mode."""
    last = _base(one.name)
    return last == "output" or (last.startswith("output.") and ".grad" not in last)


@lru_cache(maxsize=1 << 12)
def _is_gradient_of_parameter(name: str) -> bool:
    last = _base(name)
    is_flow = last.startswith(("input", "output"))
    return last.endswith(".grad") and not is_flow


def _is_zero(stats: Stats) -> bool:
    return stats.min == 0 == stats.max and not stats.nan and not stats.inf


def _largest(gradients: Iterable[Observation]) -> float:
    """The size of the largest gradient of a weight; that of a scalar may be far larger."""
    sizes = [(_size(one.stats), one.dims > 1) for one in gradients]
    weights = max((size for size, is_weight in sizes if is_weight), default=0.0)
    return weights or max((size for size, _ in sizes), default=0.0)


def _usual(sizes: Sequence[float] | deque[float]) -> float:
    """The size of a gradient before it grew: the median of the oldest known sizes."""
    oldest = sorted(list(sizes)[:_SHORTEST_HISTORY])
    return oldest[(len(oldest) - 1) // 2]


def _size(stats: Stats) -> float:
    """The root mean square; 0 for NaN, which has its own rule."""
    size = math.hypot(stats.mean, stats.std)
    return size if math.isfinite(size) else 0.0


def _norm(stats: Stats) -> float:
    return _size(stats) * math.sqrt(stats.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingRule:
    """A kind of problem, the series it is found in, and the function that finds it."""

    name: str
    looks_at: str
    check: Callable[[StepView, TrainingHistory], Iterable[Problem]]
    reports_at_once: bool = False
    """Whether one measurement is enough."""


RULES = (
    FindingRule(name="NaN and Inf", looks_at="all series", check=_nonfinite, reports_at_once=True),
    FindingRule(
        name="exploding-gradient",
        looks_at="gradients of parameters, compared with earlier steps",
        check=_exploding_gradients,
    ),
    FindingRule(name="dead-units", looks_at="inputs and outputs of modules", check=_dead_units),
    FindingRule(
        name="vanishing-gradient",
        looks_at="gradients of parameters, compared with each other",
        check=_vanishing_gradients,
    ),
)

"""What goes wrong in a training, found in what is measured of it.

    judge = Judge()
    for step, seen in steps:
        new = judge.look(step, seen)

NaN and Inf are told at once. What may pass is told when it was there the last three times that the
series was measured: a step at which it was not measured says nothing about it. Each problem of a
place is told once.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from torchglass.analyse.nonfinite_cause import not_finite_words
from torchglass.records.findings import Finding, Severity
from torchglass.records.model import join_path
from torchglass.records.tensors import Stats
from torchglass.records.trace import Phase

IN_A_ROW = 3
MOST = 100
"""So many problems are told of a training; what follows from them would only hide them."""

_AFTER_BETTER_TIMES = 6
"""A gradient that was there before must be missing this often: experts of a mixture rest, too."""
_FEWEST_NUMBERS = 32
"""With fewer values than this, all zeros may be chance."""
_VANISHING_SHARE = 1e-6
"""A gradient vanishes when it is this much smaller than the largest one of the model."""
_CANCELLED_SHARE = 1e-4
"""Where this much of the largest gradient reaches a module's output, gradient does reach it: that
of its weight is zero by mathematics, as that of a bias in front of a norm is."""
_RECOVERING_GROWTH = 1.5
_CLOSED_SIZE = 1e-4
"""A trained factor this small, as a layer scale or the second half of LoRA begins, lets next to no
gradient through until it has grown."""
_EXPLODING_GROWTH = 100.0
_EXPLODING_BEYOND = 10.0
"""How far beyond the usual gradients of all parameters one must be, besides its own growth: what
was zero at first, as behind a branch that begins at zero, only catches up."""
_REMEMBERED = 16
_FEWEST_REMEMBERED = 4

Place = tuple[str, str]
"""The path of a module, and what is measured there."""
Measured = Mapping[Place, Sequence[Stats]]
"""All that was measured at a step: a place that was met several times has several of them."""


class Observation(NamedTuple):
    """The values of one series at one step."""

    path: str
    name: str
    stats: Stats
    dims: int = 2
    """Of a parameter's gradient: how many dimensions the parameter has."""
    needs_grad: bool = True
    """Whether a gradient was wanted of the tensor."""
    is_scaled: bool = False
    """Whether it is a gradient that a `GradScaler` has scaled and will check."""


def matters(name: str, stats: Stats) -> bool:
    """Whether a series can tell anything: few of the thousands of a large model do."""
    if stats.nan or stats.inf or stats.min == 0 == stats.max:
        return True
    return name.endswith(".grad") and _is_gradient_of_parameter(name)


def is_loss(name: str) -> bool:
    """Whether a logged value is the loss of the training, by its name: "loss", "train/loss"."""
    return bool(_LOSS.search(name)) and not _OTHER_LOSS.search(name)


_LOSS = re.compile(r"(^|[^a-z])loss$", re.IGNORECASE)
_OTHER_LOSS = re.compile(r"(^|[^a-z])(val|valid|validation|eval|test|dev)([^a-z]|$)", re.IGNORECASE)


def nan_since(findings: Iterable[Finding]) -> int | None:
    """The first step at which a training had NaN; None if it had none."""
    steps = (one.step for one in findings if one.kind == "nan" and one.severity == "error")
    return min((step for step in steps if step is not None), default=None)


class _FindingKey(NamedTuple):
    """What is told once: a kind of problem at a place."""

    kind: str
    path: str
    name: str


class _Problem(NamedTuple):
    severity: Severity
    kind: str
    message: str
    seen: Observation
    facts: dict[str, float | str]
    patience: int = IN_A_ROW

    @property
    def key(self) -> _FindingKey:
        name = self.seen.name.removeprefix("eval:") if self.kind == "dead units" else self.seen.name
        return _FindingKey(self.kind, self.seen.path, name)

    @property
    def place(self) -> Place:
        return self.seen.path, self.seen.name


@dataclass
class _Lasting:
    """A problem that may pass, for as long as it is there."""

    place: Place
    since: int
    step: int
    times: int = 1


class Judge:
    """Looks at one step after another, and tells each problem once."""

    def __init__(self) -> None:
        self._told: set[_FindingKey] = set()
        self._lasting: dict[_FindingKey, _Lasting] = {}
        self._sizes: dict[Place, deque[float]] = {}
        self._reached: set[Place] = set()
        """The gradients that did not vanish at some step."""
        self._shares: dict[Place, deque[float]] = {}
        """Of those that did, how large they were beside the largest one."""

    def look(
        self,
        step: int,
        seen: Iterable[Observation],
        measured: Callable[[], Measured] | None = None,
        *,
        is_still: bool = False,
    ) -> list[Finding]:
        """The problems that are new at a step.

        `seen` may leave out what does not matter; `measured` gives everything, and is asked only
        where that decides. A step that is still moved no weight, as at a learning rate of 0: it
        shows again what the one before showed.
        """
        if len(self._told) >= MOST:
            return []
        everything = list(seen)
        patient = [] if is_still else self._patient(everything, measured)
        told = [_finding(step, one) for one in _not_finite(step, everything) if self._is_news(one)]
        for problem in patient:
            lasting = self._lasting_since(step, problem)
            if lasting.times >= problem.patience and self._is_news(problem):
                told.append(_finding(step, problem, since=lasting.since))
        return told

    def _patient(
        self, seen: Sequence[Observation], measured: Callable[[], Measured] | None
    ) -> list[_Problem]:
        """The problems that are there at this step; those that have passed are forgotten."""
        gradients = [one for one in seen if _is_gradient_of_parameter(one.name)]
        small = self._small(gradients)
        zero = [one for one in seen if _is_zero_output(one)]
        found = list(self._exploding(gradients))
        if not (small or zero or self._lasting):
            return found
        there = measured() if measured is not None else _as_measured(seen)
        found += _dead(zero, there)
        found += self._vanishing(small, gradients, there)
        now = {problem.key for problem in found}
        for key, lasting in list(self._lasting.items()):
            if key not in now and lasting.place in there:
                del self._lasting[key]
        return found

    def _lasting_since(self, step: int, problem: _Problem) -> _Lasting:
        known = self._lasting.setdefault(problem.key, _Lasting(problem.place, step, step))
        if known.step != step:
            known.step, known.times = step, known.times + 1
        return known

    def _is_news(self, problem: _Problem) -> bool:
        if problem.key in self._told or len(self._told) >= MOST:
            return False
        self._told.add(problem.key)
        return True

    def _exploding(self, gradients: Sequence[Observation]) -> Iterator[_Problem]:
        for one in gradients:
            size = _size(one.stats)
            before = self._sizes.setdefault((one.path, one.name), deque(maxlen=_REMEMBERED))
            usual = math.nan
            # The usual size is asked for only where it can matter.
            if len(before) >= _FEWEST_REMEMBERED and size > _EXPLODING_GROWTH * min(before):
                usual = _usual(before)
            if usual > 0 and size > _EXPLODING_GROWTH * usual and self._is_beyond_all(size):
                message = (
                    f"The gradient of {_label(one)} explodes: {size / usual:,.0f} times its usual "
                    f"size ({_short(size)}, before: {_short(usual)})"
                )
                facts: dict[str, float | str] = {"size": size, "usual": usual}
                yield _Problem("warning", "exploding gradient", message, one, facts)
            elif math.isfinite(size):
                before.append(size)

    def _is_beyond_all(self, size: float) -> bool:
        return size > _EXPLODING_BEYOND * max(map(_usual, filter(None, self._sizes.values())))

    def _small(self, gradients: Sequence[Observation]) -> list[Observation]:
        """The gradients of weights that are next to nothing beside the largest one."""
        largest = _largest(gradients)
        small = []
        for one in gradients:
            is_weight = one.dims > 1 and one.stats.count > one.stats.nan + one.stats.inf
            if is_weight and _size(one.stats) < largest * _VANISHING_SHARE:
                small.append(one)
            elif is_weight and largest:
                self._reached.add((one.path, one.name))
        return small

    def _vanishing(
        self, small: Sequence[Observation], gradients: Sequence[Observation], there: Measured
    ) -> Iterator[_Problem]:
        """Those weights that no gradient reaches, or next to none."""
        if not small:
            return
        largest = _largest(gradients)
        others = [_size(one.stats) for one in gradients]
        usual = statistics.median(
            size for size in others if size and size >= largest * _VANISHING_SHARE
        )
        reach = _Reach(there, gradients)
        if reach.is_held_back:
            return
        lost = {(one.path, one.name) for one in small}
        first = reach.first([one for one in gradients if (one.path, one.name) not in lost])
        for one in small:
            place, size = (one.path, one.name), _size(one.stats)
            # What fades on its way back through the layers reaches nothing before them. Branches
            # beside the way, as queries and keys with small weights, are only small.
            is_beside = reach.order(one) > first and size >= usual * _VANISHING_SHARE
            if is_beside or reach.is_cancelled(one) or self._is_recovering(place, size / largest):
                continue
            how = "No gradient" if not size else "Almost no gradient"
            own = f"{_short(size)}, " if size else ""
            message = f"{how} reaches {_label(one)} ({own}others: {_short(usual)})"
            facts: dict[str, float | str] = {"size": size, "others": usual}
            patience = _AFTER_BETTER_TIMES if place in self._reached else IN_A_ROW
            yield _Problem("warning", "vanishing gradient", message, one, facts, patience)

    def _is_recovering(self, place: Place, share: float) -> bool:
        """Whether a gradient grows, as behind weights that begin at zero or a slow warm-up."""
        shares = self._shares.setdefault(place, deque(maxlen=_REMEMBERED))
        shares.append(share)
        third = len(shares) // 3
        if not third:
            return False
        ordered = list(shares)
        return sum(ordered[-third:]) > _RECOVERING_GROWTH * sum(ordered[:third])


class _Reach:
    """How much gradient comes to the modules of a step."""

    def __init__(self, there: Measured, gradients: Sequence[Observation]) -> None:
        self._there = there
        self._registered = {(one.path, one.name): at for at, one in enumerate(gradients)}
        self._ran: dict[str, int] = {}
        """When each module was first called, as a place in the order of calls."""
        for at, (path, name) in enumerate(there):
            if ".grad" not in name and _base(name).startswith(("input", "output")):
                self._ran.setdefault(path, at)
        self._parents = {above for path, _ in there for above in _above(path)}
        self._outputs: dict[str, float] = {}
        self._called: set[str] = set()
        for (path, name), parts in there.items():
            last = _base(name)
            if last.startswith("output"):
                self._called.add(path)
                if last.endswith(".grad"):
                    norm = max(_norm(stats) for stats in parts)
                    self._outputs[path] = max(self._outputs.get(path, 0.0), norm)
        self._largest = max(self._outputs.values(), default=0.0)

    @property
    def is_held_back(self) -> bool:
        """Whether a factor that is being trained is still next to zero; a bias is not a factor."""
        return any(
            (path, f"{name}.grad") in self._there and _is_closed(parts)
            for (path, name), parts in self._there.items()
            if "bias" not in name and _is_gradient_of_parameter(f"{name}.grad")
        )

    def order(self, one: Observation) -> int:
        """Where the module of a weight comes in a forward; one that is not called is part of one
        that is. Where calls were not seen, modules come as they are registered."""
        for path in (one.path, *_above(one.path)):
            if path in self._ran:
                return self._ran[path]
        return self._registered[one.path, one.name]

    def first(self, reached: Iterable[Observation]) -> float:
        """Where the first weight comes that gradient does reach."""
        return min((self.order(one) for one in reached if one.dims > 1), default=math.inf)

    def is_cancelled(self, one: Observation) -> bool:
        """Whether a small gradient has another reason than that none comes to its module."""
        path = one.path
        if path in self._parents:
            return False
        if self._called and path not in self._called:
            # A module that took no part in the step, as an expert that was not chosen, has none.
            return not _size(one.stats)
        if self._largest and path in self._outputs:
            return self._outputs[path] >= self._largest * _CANCELLED_SHARE
        own = [parts for (at, name), parts in self._there.items() if at == path and _is_own(name)]
        largest = max((_size(stats) for parts in own for stats in parts), default=0.0)
        return largest * _VANISHING_SHARE > _size(one.stats)


def _is_closed(parts: Sequence[Stats]) -> bool:
    return all(_size(stats) < _CLOSED_SIZE and not stats.nan and not stats.inf for stats in parts)


def _is_own(name: str) -> bool:
    return name.endswith(".grad") and _is_gradient_of_parameter(name)


def _not_finite(step: int, seen: Iterable[Observation]) -> Iterator[_Problem]:
    """Series with NaN or Inf, in the order in which they were measured."""
    seen = list(seen)
    trained = {(one.path, one.name) for one in seen if _is_gradient_of_parameter(one.name)}
    for one in seen:
        is_trained = (one.path, f"{one.name}.grad") in trained
        if not is_spoiled(one.name, one.stats, is_trained=is_trained):
            continue
        if one.is_scaled:
            yield _absorbed(step, one)
            continue
        stats = one.stats
        kind = "nan" if stats.nan else "inf"
        message = f"{_bad_values(one)} (since step {step})"
        share = (stats.nan + stats.inf) / stats.count
        yield _Problem("error", kind, message, one, {"share": share})


def is_spoiled(name: str, stats: Stats, *, is_trained: bool = False) -> bool:
    """Whether values of a series are NaN or Inf, and not on purpose.

    Masks are made of −Inf: they are added to scores before a softmax, which makes zeros of it. What
    is −Inf by mistake becomes +Inf or NaN in the loss and in the gradients, and is told there.
    """
    last = _base(name)
    if not (stats.nan or stats.inf) or last.endswith(".grad_norm"):
        return False
    is_value = not is_trained and not last.endswith(".grad")
    return not is_value or bool(stats.nan) or stats.inf > stats.negative_inf


def _absorbed(step: int, one: Observation) -> _Problem:
    message = (
        f"Scaled gradients overflowed at step {step}: the GradScaler skips such a step and lowers "
        "its scale"
    )
    everywhere = one._replace(path="", name="grad_scale")
    return _Problem("note", "scaled overflow", message, everywhere, {})


def _bad_values(one: Observation) -> str:
    """The values that are not finite, as a sentence."""
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


def _is_zero_output(one: Observation) -> bool:
    stats = one.stats
    is_zero = stats.min == 0 == stats.max and not stats.nan and not stats.inf
    return is_zero and one.needs_grad and stats.count >= _FEWEST_NUMBERS and _is_output(one)


def _dead(zero: Sequence[Observation], there: Measured) -> Iterator[_Problem]:
    """Modules that put out nothing but zeros, although they were given something else."""
    if not zero:
        return
    paths = {one.path for one in zero}
    above = {parent for path in paths for parent in _above(path)}
    fed = {
        (path, _prefix(name))
        for (path, name), parts in there.items()
        if path in paths and _base(name).startswith("input") and ".grad" not in name
        if not all(map(_is_zero, parts))
    }
    for one in dict.fromkeys((one.path, one.name) for one in zero):
        path, name = one
        # What a container puts out is what the last module in it does.
        if path in above or (path, _prefix(name)) not in fed:
            continue
        if all(map(_is_zero, there.get(one, ()))):
            seen = next(each for each in zero if (each.path, each.name) == one)
            message = f"{_module(path, name)} is dead: all outputs are 0"
            yield _Problem("warning", "dead units", message, seen, {"zeros": 1.0})


def _module(path: str, name: str) -> str:
    """A module, and which call of it in which mode where that is not the first in training."""
    mode, call = name.startswith("eval:"), _prefix(name).removeprefix("eval:").removesuffix(":")
    where = [f"call {call}"] if call.isdigit() else ["later calls"] if call else []
    where += ["eval mode"] if mode else []
    return (f"`{path}`" if path else "The model") + (f" ({', '.join(where)})" if where else "")


def _finding(step: int, problem: _Problem, since: int | None = None) -> Finding:
    seen = problem.seen
    phase: Phase = "backward" if ".grad" in seen.name else "forward"
    told = f" since step {since}" if since is not None and problem.kind == "dead units" else ""
    begun = {} if since is None else {"since": since}
    return Finding(
        severity=problem.severity,
        kind=problem.kind,
        message=f"{problem.message}{told}",
        path=seen.path,
        phase=phase,
        facts={"series": join_path(seen.path, seen.name), **begun, **problem.facts},
        step=step,
    )


def _as_measured(seen: Iterable[Observation]) -> Measured:
    there: dict[Place, list[Stats]] = {}
    for one in seen:
        there.setdefault((one.path, one.name), []).append(one.stats)
    return there


def _label(one: Observation) -> str:
    """The parameter or value of a series: "`encoder.0.weight`"."""
    return f"`{join_path(one.path, _base(one.name).removesuffix('.grad'))}`"


def _short(size: float) -> str:
    return f"{size:.2g}"


def _above(path: str) -> Iterator[str]:
    """The paths of the modules that hold one."""
    while path:
        path = path.rpartition(".")[0]
        yield path


def _prefix(name: str) -> str:
    """Which call of a module a series is of, and in which mode: "eval:2:"."""
    return name[: len(name) - len(_base(name))]


def _base(name: str) -> str:
    return name.rpartition(":")[2]


def _is_output(one: Observation) -> bool:
    """Whether it is what a module put out, at whichever call and in whichever mode."""
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
    """The size of the largest gradient of a weight; a lone scalar may have a far larger one."""
    sizes = [(_size(one.stats), one.dims > 1) for one in gradients]
    weights = max((size for size, is_weight in sizes if is_weight), default=0.0)
    return weights or max((size for size, _ in sizes), default=0.0)


def _usual(sizes: Sequence[float] | deque[float]) -> float:
    """What a gradient was before it grew: the median of the oldest that are remembered."""
    oldest = sorted(list(sizes)[:_FEWEST_REMEMBERED])
    return oldest[(len(oldest) - 1) // 2]


def _size(stats: Stats) -> float:
    """The root of the mean square; NaN counts as nothing here, it is told elsewhere."""
    size = math.hypot(stats.mean, stats.std)
    return size if math.isfinite(size) else 0.0


def _norm(stats: Stats) -> float:
    return _size(stats) * math.sqrt(stats.count)

"""Rules about learning rates: zero, too low, too high, and what clipping leaves of updates."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from torchglass.analyse.diagnosis.optimizer_rules import NOTHING_MOVES, common_path, some
from torchglass.analyse.diagnosis.rule import DAMAGE, code_of, finding, rule, short
from torchglass.analyse.diagnosis.training_view import TrainingView, median
from torchglass.records.findings import Finding

_MANY_UPDATES = 20
_TOO_LARGE = 0.05
"""Weights that change by this share at every step forget what they learned."""
_LONG_WORSE, _MOSTLY_WORSE = 1 / 3, 0.6
"""The share of a training with a loss above its first one that is more than a bad start, if the
training has gained little at its end, and in any case."""
_NO_RATE = 1e-7
"""Nobody trains with SGD at a learning rate below this one."""


@rule(
    "lr-zero",
    family="optimizer",
    title="The learning rate is 0",
    explains=("loss-plateau", "lr-too-low", "clipped-to-nothing"),
)
def lr_zero(view: TrainingView) -> Iterator[Finding]:
    """The learning rate is 0 from some step on, of all weights or of some, which do not change."""
    rates = view.facts.lr
    yield from _group_at_zero(view)
    zeros = 0
    for rate in reversed(rates.values):
        if rate:
            break
        zeros += 1
    if zeros < 3 or zeros < 0.2 * len(rates.values):
        return
    since = rates.steps[-zeros]
    is_all = zeros == len(rates.values)
    cause = (
        "" if is_all else "; a scheduler may be stepped once per batch instead of once per epoch"
    )
    yield finding(
        "lr-zero",
        f"The learning rate is 0 {'from the start' if is_all else f'since step {since}'}: "
        f"nothing is learned{cause}",
        severity="error" if is_all else "warning",
        series="lr",
        first_step=since,
        last_step=rates.steps[-1],
        evidence={"lr": 0.0, "largest before": max(rates.values)},
        remedy="Check lr and the length of the schedule (T_max, total_steps, step_size)",
    )


def _group_at_zero(view: TrainingView) -> Iterator[Finding]:
    """The parameters of a group whose learning rate is 0, while others are trained."""
    still = [
        one
        for one in view.facts.parameters
        if one.optimizer is not None
        and min(view.facts.optimizers[one.optimizer].lr, default=1.0) == 0
        and one.requires_grad
        and one.with_gradient
        and len(one.updates.values) >= 3
        and not any(one.updates.values)
    ]
    if not still or not any(view.facts.lr.values):
        return
    path = common_path([one.name for one in still])
    yield finding(
        "lr-zero",
        f"The learning rate of a parameter group is 0: {some(still)} get gradients and stay as "
        "they are",
        # Some freeze a part that way.
        severity="info",
        path=path,
        series=still[0].name,
        first_step=0,
        evidence={"lr": 0.0, "parameters": [one.name for one in still[:20]]},
        remedy="Give the group a learning rate: optimizer.param_groups[…]['lr'] = …; to freeze it, "
        f"{code_of(path or 'part')}.requires_grad_(False) also saves its gradients",
    )


@rule(
    "lr-too-low",
    family="optimizer",
    title="Updates are too small to matter",
    explains=("loss-plateau",),
)
def lr_too_low(view: TrainingView) -> Iterator[Finding]:
    """Updates are so small compared with the weights that nothing is learned."""
    yield from _decayed_early(view)
    rates = view.facts.lr.values
    largest = _largest_updates(view)
    if not largest or not rates or not rates[-1] or rates[-1] > 1.5 * rates[0]:
        return
    usual = max(largest)
    # The first updates of RMSprop and Adam may be the largest ones by far.
    later = median([median(one.updates.values) for one in view.weights if one.updates.values])
    is_stuck = view.is_stuck or (not view.losses and len(rates) >= _MANY_UPDATES)
    if usual >= NOTHING_MOVES or not is_stuck or _is_clipped(view) or _has_no_gradient(view):
        return
    yield finding(
        "lr-too-low",
        f"The weights barely change: an update is {short(usual)} of their size (usual: 1e-3), "
        f"at a learning rate of {short(rates[-1])}",
        series="lr",
        first_step=0,
        evidence={"update": usual, "expected": 1e-3, "lr": rates[-1]},
        remedy=f"Raise the learning rate, for example to lr={short(_lr_for(rates[-1], later))}",
    )


def _has_no_gradient(view: TrainingView) -> bool:
    """Whether the gradients of all weights are 0, so that no learning rate would help."""
    tracks = [view.track(one, ".grad") for one in view.weights]
    found = [track for track in tracks if track is not None and len(track)]
    return bool(found) and not any(track.size.any() for track in found)


def _decayed_early(view: TrainingView) -> Iterator[Finding]:
    rates = view.facts.lr
    if len(rates.values) < 8 or not rates.values[-1]:
        return
    top = max(rates.values)
    low = [step for step, rate in zip(rates.steps, rates.values, strict=True) if rate < 1e-4 * top]
    if (
        rates.values[-1] > 1e-4 * top
        or len(low) < 0.3 * len(rates.values)
        or low[0] == rates.steps[0]
    ):
        return
    yield finding(
        "lr-too-low",
        f"The learning rate fell from {short(top)} to {short(rates.values[-1])}, below a "
        f"ten-thousandth since step {low[0]}: a scheduler may be stepped too often",
        series="lr",
        first_step=low[0],
        evidence={"lr": rates.values[-1], "largest": top},
        remedy="Step the scheduler once per epoch, or give it the number of batches",
    )


def _lr_for(rate: float, update: float) -> float:
    """A learning rate at which updates would have a usual size, at most 0.1."""
    return min(0.1, rate * 1e-3 / update) if update > 0 else 1e-3


def _largest_updates(view: TrainingView) -> list[float]:
    """The largest update of each weight so far, relative to the weight."""
    found = [max(one.updates.values) for one in view.weights if one.updates.values]
    return [one for one in found if math.isfinite(one)]


def _is_clipped(view: TrainingView) -> bool:
    """Whether the norm of all gradients is the same at each step, for different batches."""
    _, norms = view.gradient_norm
    if view.facts.batches == 1:
        return False
    norms = norms[np.isfinite(norms)]
    if len(norms) < 2 or not norms.max() > 0:
        return False
    # Two batches have the same norm to three digits by clipping alone.
    return bool(norms.std() < (0.02 if len(norms) > 2 else 1e-3) * norms.mean())


@rule(
    "clipped-to-nothing",
    family="gradients",
    title="Gradients are clipped until nothing is left",
    explains=("loss-plateau", "lr-too-low"),
)
def clipped_to_nothing(view: TrainingView) -> Iterator[Finding]:
    """The norm of all gradients is the same tiny value at each step, so weights barely change."""
    largest = _largest_updates(view)
    if not view.is_stuck or not largest or max(largest) >= 1e-5 or not _is_clipped(view):
        return
    steps, norms = view.gradient_norm
    yield finding(
        "clipped-to-nothing",
        f"Gradients are clipped to a norm of {short(float(norms[-1]))} at every step; updates "
        f"change the weights by {short(max(largest))} of their size",
        first_step=int(steps[0]),
        last_step=int(steps[-1]),
        evidence={"norm": float(norms[-1]), "update": max(largest), "expected": 1e-3},
        remedy="Clip less: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
    )


@rule(
    "lr-too-high",
    family="optimizer",
    title="The learning rate is too high",
    explains=DAMAGE,
)
def lr_too_high(view: TrainingView) -> Iterator[Finding]:
    """Updates are large compared with the weights, and the loss gets worse or oscillates."""
    usual = _usual_updates(view)
    large = [step for step, value in usual.items() if value > _TOO_LARGE]
    is_often = len(large) >= max(1, len(usual) // 3)
    # One update of the size of the weights is enough to lose them.
    largest = max(usual.values(), default=0.0)
    if not (is_often or largest > 0.5) or not _is_harmed(view, largest) or explodes_at_once(view):
        return
    rate = max(view.facts.lr.values, default=math.nan)
    first = next(iter(usual.values()))
    size = f"{largest:.0%}" if largest < 10 else f"{short(largest)} times their size"
    yield finding(
        "lr-too-high",
        f"The learning rate {short(rate)} is too high: an update changes the weights by up to "
        f"{size} (usual: 0.1 %), and the loss {_harm(view)}",
        severity="error" if _is_broken(view) else "warning",
        series="lr",
        first_step=min(large),
        evidence={"update": largest, "expected": 1e-3, "lr": rate},
        confidence=0.9,
        # By the first update alone: it already distorts the gradients after it.
        remedy="Lower the learning rate, for example to "
        f"lr={short(rate / min(max(10, first / 1e-3), 1000))}",
    )


def _usual_updates(view: TrainingView) -> dict[int, float]:
    """The median over all weights of their update, relative to the weight, by step."""
    by_step: dict[int, list[float]] = {}
    for one in view.weights:
        for step, value in zip(one.updates.steps, one.updates.values, strict=True):
            if math.isfinite(value):
                by_step.setdefault(step, []).append(value)
    return {step: median(values) for step, values in by_step.items()}


def explodes_at_once(view: TrainingView) -> bool:
    """Whether no usual learning rate of SGD would suit the gradient of the first step."""
    optimizers, rates = view.facts.optimizers, view.facts.lr.values
    if not rates or not optimizers or not all("SGD" in one.name for one in optimizers):
        # Others scale their updates, whatever the gradient is.
        return False
    first = next(iter(_usual_updates(view).values()), 0.0)
    return first > 0.5 and max(rates) * 1e-3 / first < _NO_RATE and _is_harmed(view, first)


def _harm(view: TrainingView) -> str:
    """What large updates did to the loss, in words."""
    for loss in view.losses:
        values = loss.values[:, 0]
        if not np.isfinite(values).all():
            return "is lost"
        if median(values[-max(2, len(values) // 4) :]) > 0.95 * values[0]:
            return "does not fall"
    return "is above its start for long"


def _is_broken(view: TrainingView) -> bool:
    return any(one.kind in ("nan", "inf") and one.severity == "error" for one in view.findings)


def _is_harmed(view: TrainingView, largest: float) -> bool:
    """Whether the loss rises, or oscillates without falling; before NaN it must have risen, too."""
    for loss in view.losses:
        values = loss.values[:, 0]
        values = values[np.isfinite(values)]
        if len(values) < 3:
            # Lost within the first steps: only updates of the size of the weights explain it.
            if _is_broken(view) and largest > 0.5:
                return True
            continue
        # The first loss is that of the model before its first update.
        start, end = float(values[0]), median(values[-max(2, len(values) // 4) :])
        # A model that is worse than before its first update for long has lost what it began with.
        worse = float(np.mean(values > start))
        is_long_worse = worse > _MOSTLY_WORSE or (worse > _LONG_WORSE and end > 0.8 * start)
        if start > 0 and (end > 0.95 * start or is_long_worse) and values.max() > 2 * start:
            return True
    return False

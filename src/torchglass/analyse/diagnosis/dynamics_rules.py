"""Rules about the course of a training: its loss over the steps."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from torchglass.analyse.diagnosis.data_rules import unusual_batch
from torchglass.analyse.diagnosis.loss_rules import (
    chance_loss,
    is_below_zero_by_labels,
    is_supervised,
)
from torchglass.analyse.diagnosis.rule import finding, rule, short
from torchglass.analyse.diagnosis.training_view import Numbers, SeriesTrack, TrainingView, median
from torchglass.records.findings import Finding

_FEWEST = 12
_ENOUGH_AT_CHANCE = 50
"""Steps after which a loss that fell to chance, and no further, is a warning."""
_LARGE_LOGITS = 30.0
_LARGE_UPDATE = 1e-3


def _finite(track: SeriesTrack) -> tuple[npt.NDArray[np.int64], Numbers]:
    values = track.values[:, 0]
    kept = np.isfinite(values)
    return track.steps[kept], values[kept]


@rule(
    "loss-diverges",
    family="dynamics",
    title="The loss diverges",
    explains=("loss-spike", "loss-plateau"),
)
def loss_diverges(view: TrainingView) -> Iterator[Finding]:
    """The loss ends far above where it began, or is driven below its minimum."""
    for track in view.losses:
        steps, values = _finite(track)
        if len(values) < _FEWEST:
            continue
        start = median(values[: max(3, len(values) // 10)])
        end = median(values[-max(3, len(values) // 4) :])
        is_whole = len(view.facts.losses) == 1 and view.facts.losses[0].is_whole
        if is_supervised(view) and is_whole and end < 0 and end < start:
            if not is_below_zero_by_labels(view, track):
                yield _maximized(track, steps, start, end)
        elif end < -10 * max(1.0, abs(start)) and end < 2 * median(values[: len(values) // 2]):
            yield _unbounded(track, steps, start, end)
        elif values.min() >= 0 and start > 0 and end > 3 * start:
            above = np.nonzero(values > 3 * start)[0]
            since = int(steps[above[0]])
            rises = any(one.is_maximizing for one in view.facts.optimizers)
            yield finding(
                "loss-diverges",
                f"The loss diverges: {short(start)} at first, {short(end)} at the end, above three "
                f"times its start since step {since}"
                + ("; the optimizer has maximize=True" if rises else ""),
                severity="error" if end > 100 * start else "warning",
                series=track.label,
                first_step=since,
                last_step=int(steps[-1]),
                evidence={"first": start, "last": end},
                confidence=0.9,
                remedy="Remove maximize=True: the optimizer raises the loss instead of lowering it"
                if rises
                else "Lower the learning rate and clip gradients; check the sign of the loss",
            )


def _unbounded(
    track: SeriesTrack, steps: npt.NDArray[np.int64], start: float, end: float
) -> Finding:
    return finding(
        "loss-diverges",
        f"The loss decreases without bound: {short(start)} at first, {short(end)} now",
        series=track.label,
        first_step=int(steps[0]),
        last_step=int(steps[-1]),
        evidence={"first": start, "last": end},
        confidence=0.8,
        remedy="Bound the loss: clip weights, penalize gradients, or use a margin",
    )


def _maximized(
    track: SeriesTrack, steps: npt.NDArray[np.int64], start: float, end: float
) -> Finding:
    return finding(
        "loss-diverges",
        f"The loss is maximized: it falls to {short(end)}, but this loss function is never below 0",
        severity="error",
        series=track.label,
        first_step=int(steps[0]),
        last_step=int(steps[-1]),
        evidence={"first": start, "last": end, "expected": "at least 0"},
        remedy="Remove the minus sign before the loss",
    )


@rule(
    "loss-spike",
    family="dynamics",
    title="The loss spikes",
)
def loss_spike(view: TrainingView) -> Iterator[Finding]:
    """The loss of a few steps is far above those before and after."""
    for track in view.losses:
        steps, values = _finite(track)
        if len(values) < _FEWEST or values.min() < 0:
            continue
        at = _spike(values)
        # What stands out at a ten-thousandth of the first loss is of no interest.
        if at is None or values[at] < 0.5 * median(values[:3]):
            continue
        around = median(np.r_[values[max(0, at - 8) : at], values[at + 1 : at + 9]])
        step = int(steps[at])
        batch = unusual_batch(view, step)
        yield finding(
            "loss-spike",
            f"The loss spikes at step {step}: {short(float(values[at]))}, around it "
            f"{short(around)}{batch}",
            severity="warning" if batch else "info",
            series=track.label,
            first_step=step,
            last_step=step,
            evidence={"loss": float(values[at]), "around": around},
            confidence=0.7,
            remedy="Look at the batch of that step; clip gradients so that one batch does no harm",
        )


def _spike(values: Numbers) -> int | None:
    """The largest value that stands out from both sides, if there is one."""
    found = None
    every = values.tolist()
    for at in range(5, len(values) - 2):
        before, after = values[max(0, at - 10) : at], values[at + 1 : at + 6]
        if every[at] <= 4 * min(every[max(0, at - 10) : at]):
            continue
        usual = median(before)
        spread = median(np.abs(before - usual)) * 1.48
        is_high = values[at] > usual + 12 * spread and values[at] > 4 * usual and usual > 0
        comes_back = median(after) < 0.5 * values[at]
        if is_high and comes_back and (found is None or values[at] > values[found]):
            found = at
    return found


@rule(
    "loss-plateau",
    family="dynamics",
    title="The loss never falls",
)
def loss_plateau(view: TrainingView) -> Iterator[Finding]:
    """The loss is the same at the end as at the start, although the weights are updated."""
    for track in view.losses:
        steps, values = _finite(track)
        if len(values) < 2 * _FEWEST or values.min() < 0:
            continue
        quarter = len(values) // 4
        start, end = values[: max(3, quarter // 2)], values[-quarter:]
        noise = math.sqrt(start.var() / len(start) + end.var() / len(end))
        drop = float(start.mean() - end.mean())
        chance = chance_loss(view)
        is_chance = chance is not None and 0.9 * chance < end.mean() < 1.5 * chance
        has_fallen = (drop > max(0.03 * start.mean(), 0) and drop > 2 * noise) or (
            # However noisy the start is.
            end.max() < 0.5 * median(start)
        )
        # Many models begin above chance: falling to it is not learning.
        is_flat = end.mean() > 0.97 * values[-2 * quarter : -quarter].mean()
        if (has_fallen and not (is_chance and is_flat)) or end.mean() > 1.5 * start.mean():
            continue
        rates = view.facts.lr.values
        is_warming_up = len(rates) > 2 and rates[-1] > 1.5 * median(rates)
        # The first steps of a training often only bring the loss down to chance.
        is_early = has_fallen and len(values) < _ENOUGH_AT_CHANCE
        # The losses of networks that play against each other need not fall.
        is_game = len(view.facts.optimizers) > 1 and len(view.losses) > 1
        yield finding(
            "loss-plateau",
            f"The loss does not fall: {short(float(start.mean()))} at first, "
            f"{short(float(end.mean()))} at the end"
            + (f"; guessing gives {short(chance)}" if is_chance and chance is not None else ""),
            severity="warning"
            if is_chance and not (is_warming_up or is_early or is_game)
            else "info",
            series=track.label,
            first_step=int(steps[0]),
            last_step=int(steps[-1]),
            evidence={"first": float(start.mean()), "last": float(end.mean())},
            confidence=0.6,
            remedy="Check that labels belong to their inputs, then overfit one batch: "
            "tg.diagnose(model, batch, loss=…, optimizer=…)",
        )


@rule(
    "output-logit-growth",
    family="dynamics",
    title="The logits grow",
    remedy="Add 1e-4 * logits.logsumexp(-1).square().mean() to the loss, or lower the learning "
    "rate",
)
def output_logit_growth(view: TrainingView) -> Iterator[Finding]:
    """The logits before the cross entropy become very large, which often precedes a spike."""
    if not any(loss.function.startswith("NllLoss") for loss in view.facts.losses):
        return
    track = view.outputs[-1] if view.outputs else None
    if track is None or len(track) < 4:
        return
    first, last = median(track.size[:3]), median(track.last(3).size)
    if not last > max(_LARGE_LOGITS, 10 * first):
        return
    yield finding(
        "output-logit-growth",
        f"The logits grow: {short(first)} at first, {short(last)} now (usual: below 10)",
        severity="info",
        path=track.path,
        series=track.label,
        first_step=int(track.steps[int((track.size > _LARGE_LOGITS).argmax())]),
        last_step=int(track.steps[-1]),
        evidence={"size": last, "at first": first, "expected": "below 10"},
        confidence=0.5,
    )


@rule(
    "update-growth",
    family="dynamics",
    title="Updates become larger",
    remedy="Clip gradients, or lower the learning rate before the loss spikes",
)
def update_growth(view: TrainingView) -> Iterator[Finding]:
    """The updates of the weights double again and again at the same learning rate."""
    rates = view.facts.lr.values
    by_step: dict[int, list[float]] = {}
    for one in view.weights:
        for step, value in zip(one.updates.steps, one.updates.values, strict=True):
            by_step.setdefault(step, []).append(value)
    steps = list(by_step)
    usual = [median(values) for values in by_step.values()]
    if len(usual) < 6 or not rates or rates[-1] > 1.1 * median(rates):
        return
    before, now = median(usual[1:-3]), min(usual[-2:])
    if not (math.isfinite(now) and now > 4 * before > 0 and now > _LARGE_UPDATE):
        return
    yield finding(
        "update-growth",
        f"The updates grow: a step changed the weights by {short(before)} of their size, now by "
        f"{short(now)}, at the same learning rate",
        severity="info",
        first_step=steps[-2],
        last_step=steps[-1],
        evidence={"update": now, "before": before, "expected": 1e-3},
        confidence=0.5,
    )

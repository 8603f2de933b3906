"""Rules about optimizers: who trains what, weight decay, steps that are skipped, lost updates."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from torchglass.analyse.diagnosis.rule import code_of, finding, named, rule, short
from torchglass.analyse.diagnosis.training_view import TrainingView
from torchglass.records.findings import Finding
from torchglass.records.training import ParameterFacts

NOTHING_MOVES = 3e-7
"""Updates below this share of the weights are lost in the rounding of float32."""
_FEWEST_STILL = 4
"""This many recorded steps without a change of any weight are not explained by rounding."""
_FEWEST_PUT_BACK = 2
_PUT_BACK = 0.02
"""Weights of which no more than this share of an update is left at the next one are put back."""
_MANY_UPDATES = 20
"""Some optimizers begin late, as that of a generator after a few steps of the critic."""


def common_path(names: Sequence[str]) -> str:
    """The innermost module that contains all parameters."""
    parts = [name.split(".")[:-1] for name in names]
    common: list[str] = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        common.append(level[0])
    return ".".join(common)


def some(parameters: Sequence[ParameterFacts]) -> str:
    """Parameters in a sentence: the first one, and how many more there are."""
    first = named(parameters[0].name)
    return first if len(parameters) == 1 else f"{first} and {len(parameters) - 1} more parameters"


@rule(
    "replaced-parameter",
    family="optimizer",
    title="The optimizer has parameters that the model no longer uses",
    explains=("not-in-optimizer", "loss-plateau", "lr-too-low"),
)
def replaced_parameter(view: TrainingView) -> Iterator[Finding]:
    """A layer was replaced after the optimizer was created, so the new one is not trained."""
    untrained = [
        one for one in view.facts.parameters if one.requires_grad and one.optimizer is None
    ]
    foreign = [shape for one in view.facts.optimizers for shape in one.foreign_shapes]
    if not view.facts.optimizers and any(one.with_gradient for one in untrained):
        # An optimizer steps, but on the parameters of a copy, or of an earlier model.
        foreign = [shape for one in view.facts.idle_optimizers for shape in one.foreign_shapes]
    if not untrained or not foreign:
        return
    count = len(foreign)
    yield finding(
        "replaced-parameter",
        f"The optimizer updates {count} parameter{'s' * (count > 1)} that the model no longer has, "
        f"and does not train {some(untrained)}",
        severity="error",
        path=common_path([one.name for one in untrained]),
        series=untrained[0].name,
        first_step=0,
        evidence={"not trained": [one.name for one in untrained[:20]], "no longer in use": count},
        remedy="Create the optimizer after the last change of the model, or add the new "
        f"parameters: optimizer.add_param_group({{'params': {code_of(untrained[0].name)}}})",
    )


@rule(
    "not-in-optimizer",
    family="optimizer",
    title="Parameters get gradients but no optimizer trains them",
    explains=("loss-plateau", "lr-too-low"),
)
def not_in_optimizer(view: TrainingView) -> Iterator[Finding]:
    """Gradients are computed for parameters that no optimizer has."""
    if not view.facts.optimizers:
        return
    untrained = [
        one
        for one in view.facts.parameters
        if one.requires_grad and one.optimizer is None and one.with_gradient
    ]
    if not untrained:
        return
    path = common_path([one.name for one in untrained])
    instead = held_without_gradient(view)
    yield finding(
        "not-in-optimizer",
        f"No optimizer trains {some(untrained)}, although gradients are computed for them"
        + (f"; the optimizer has {some(instead)} instead, without gradients" if instead else ""),
        severity="error" if instead else "warning",
        path=path,
        series=untrained[0].name,
        first_step=0,
        evidence={"not trained": [one.name for one in untrained[:20]], "count": len(untrained)},
        remedy=f"optimizer.add_param_group({{'params': {code_of(path or 'part')}.parameters()}}), "
        "or requires_grad_(False) to freeze them",
    )


def held_without_gradient(view: TrainingView) -> list[ParameterFacts]:
    """All that the optimizers have, if none of it gets a gradient and other parameters do."""
    trainable = [one for one in view.facts.parameters if one.requires_grad]
    held = [one for one in trainable if one.optimizer is not None]
    others = [one for one in trainable if one.optimizer is None and one.with_gradient]
    return held if others and not any(one.with_gradient for one in held) else []


@rule(
    "frozen",
    family="optimizer",
    title="Parameters are frozen",
)
def frozen(view: TrainingView) -> Iterator[Finding]:
    """Parameters do not require a gradient, on purpose or by mistake."""
    still = [one for one in view.facts.parameters if not one.requires_grad]
    if not still:
        return
    total = sum(math.prod(one.shape) for one in view.facts.parameters)
    share = sum(math.prod(one.shape) for one in still) / max(1, total)
    path = common_path([one.name for one in still])
    yield finding(
        "frozen",
        f"{share:.0%} of the parameters are frozen: {some(still)}",
        severity="info",
        path=path,
        series=still[0].name,
        first_step=0,
        evidence={
            "share": share,
            "in an optimizer": sum(one.optimizer is not None for one in still),
        },
        remedy=f"If that is not intended: {code_of(path)}.requires_grad_(True)",
    )


@rule(
    "weight-decay-too-strong",
    family="optimizer",
    title="Weight decay shrinks the weights to nothing",
    explains=("loss-plateau", "constant-output", "vanishing-gradient", "representation-collapse"),
)
def weight_decay_too_strong(view: TrainingView) -> Iterator[Finding]:
    """Weights shrink to a fraction of their size under a large weight decay."""
    decay = max((value for one in view.facts.optimizers for value in one.weight_decay), default=0.0)
    if decay < 1e-2:
        return
    for one in view.facts.optimizers:
        # AdamW and SGD shrink each weight by this share at every step.
        lost = max((lr * wd for lr, wd in zip(one.lr, one.weight_decay, strict=False)), default=0.0)
        if lost >= 0.02 and one.name in ("AdamW", "SGD"):
            yield finding(
                "weight-decay-too-strong",
                f"weight_decay={decay:g} at lr={max(one.lr):g} takes {lost:.0%} off every weight "
                "at every step",
                first_step=0,
                evidence={"weight_decay": decay, "lost per step": lost, "expected": "below 0.001"},
                remedy="Use weight_decay=1e-2 with AdamW, 1e-4 with SGD",
            )
            return
    shrunk = []
    tracks = [track for one in view.weights if (track := view.track(one)) is not None]
    tracks = [track for track in tracks if len(track) >= 3 and track.size[0] > 0]
    for track in tracks:
        sizes = track.size
        if sizes[-1] < 0.2 * sizes[0]:
            shrunk.append(track)
    if not shrunk or len(shrunk) < 0.5 * len(tracks):
        return
    worst = min(shrunk, key=lambda track: track.size[-1] / track.size[0])
    left = float(worst.size[-1] / worst.size[0])
    yield finding(
        "weight-decay-too-strong",
        f"weight_decay={decay:g} shrinks the weights: {len(shrunk)} of {len(tracks)} lost more "
        f"than 80 % of their size, {named(worst.label)} has {left:.1%} left",
        series=worst.label,
        first_step=int(worst.steps[0]),
        last_step=int(worst.steps[-1]),
        evidence={"weight_decay": decay, "left": left},
        remedy="Use weight_decay=1e-2 or less with AdamW, 1e-4 with SGD and Adam",
    )


@rule(
    "scaler-skips",
    family="optimizer",
    title="The GradScaler skips step after step",
    explains=("loss-plateau",),
)
def scaler_skips(view: TrainingView) -> Iterator[Finding]:
    """The scale of a GradScaler keeps falling, because gradients overflow at each step."""
    scales = view.facts.scales.values
    lowered = sum(later < earlier for earlier, later in pairwise(scales))
    is_never = lowered > 0 and not view.facts.lr.steps and view.facts.backwards >= 5
    # A scaler that begins far too high skips many steps until it has found its scale.
    recent = sum(later < earlier for earlier, later in pairwise(scales[-9:]))
    is_lost = lowered >= 8 and (scales[-1] < 1 or recent >= 4)
    if not (is_never or is_lost):
        return
    often = "every step" if is_never else f"{lowered} steps"
    yield finding(
        "scaler-skips",
        f"The GradScaler skips {often}: gradients overflow, its scale went from {scales[0]:g} to "
        f"{scales[-1]:g}",
        severity="error" if is_never else "warning",
        series="grad_scale",
        first_step=0,
        evidence={"scale": scales[-1], "at first": scales[0], "backwards": view.facts.backwards},
        remedy="Find the module with the largest gradient or NaN (tg.guard), or train in bfloat16",
    )


@rule(
    "optimizer-not-stepped",
    family="optimizer",
    title="The optimizer never steps",
    explains=("loss-plateau", "gradient-accumulates", "lr-too-low"),
)
def optimizer_not_stepped(view: TrainingView) -> Iterator[Finding]:
    """There is an optimizer and there are backwards, but no step of the optimizer."""
    facts = view.facts
    yield from _idle_optimizer(view)
    # A GradScaler that skips a step lowers its scale.
    has_skipped = any(later < earlier for earlier, later in pairwise(facts.scales.values))
    if facts.optimizers and not facts.lr.steps and facts.backwards >= 3 and not has_skipped:
        yield finding(
            "optimizer-not-stepped",
            f"{facts.optimizers[0].name} never steps: there were {facts.backwards} backwards and "
            "no optimizer.step()",
            severity="error",
            first_step=0,
            evidence={"backwards": facts.backwards, "steps": 0},
            remedy="Call optimizer.step() after loss.backward()",
        )


def _idle_optimizer(view: TrainingView) -> Iterator[Finding]:
    """One of several optimizers never steps, although its parameters get gradients."""
    updates = len(view.facts.lr.steps)
    for number, one in enumerate(view.facts.optimizers):
        own = [each for each in view.facts.parameters if each.optimizer == number]
        if one.steps or updates < _MANY_UPDATES or not own:
            continue
        if all(each.requires_grad and each.with_gradient >= 2 for each in own):
            yield finding(
                "optimizer-not-stepped",
                f"{one.name} of {some(own)} never steps, although their gradients are computed "
                "and another optimizer steps",
                path=common_path([each.name for each in own]),
                series=own[0].name,
                first_step=0,
                evidence={"steps": 0, "steps of others": updates, "parameters": len(own)},
                remedy="Call step() of this optimizer, too, or remove it",
            )


@rule(
    "lost-updates",
    family="optimizer",
    title="Updates are lost",
    explains=("loss-plateau", "lr-too-low"),
)
def lost_updates(view: TrainingView) -> Iterator[Finding]:
    """The optimizer steps, but weights do not change, or most values in half precision do not."""
    yield from _still_weights(view)
    yield from _undone_updates(view)
    lost = [
        one
        for one in view.weights
        if len(one.moved.values) >= 3 and statistics.median(one.moved.values) < 0.2
    ]
    if lost and len(lost) > 0.5 * len(view.weights) and any(view.facts.lr.values):
        moved = statistics.median(statistics.median(one.moved.values) for one in lost)
        yield finding(
            "lost-updates",
            f"Updates are lost in {lost[0].dtype}: a step changes {moved:.0%} of the values of "
            f"{some(lost)}",
            path=common_path([one.name for one in lost]),
            series=lost[0].name,
            first_step=0,
            evidence={"changed": moved, "expected": "above 0.9"},
            remedy="Keep the weights in float32 and use torch.autocast, or raise the learning rate",
        )


def _still_weights(view: TrainingView) -> Iterator[Finding]:
    """All weights stay exactly as they are, although an optimizer steps with their gradients."""
    since = -math.inf if view.weights else math.inf
    for one in view.weights:
        since = max(since, _unchanged_since(view, one))
        if since == math.inf:
            break
    if since == math.inf:
        return
    rates = zip(view.facts.lr.steps, view.facts.lr.values, strict=True)
    steps = [step for step, rate in rates if step >= since and rate > 0]
    if len(steps) < _FEWEST_STILL:
        return
    yield finding(
        "lost-updates",
        f"The weights have not changed since step {since:.0f}, although the optimizer steps with "
        "gradients that are not 0",
        severity="error",
        series=view.weights[0].name,
        first_step=int(since),
        last_step=view.last_step,
        evidence={"steps without a change": len(steps), "lr": view.facts.lr.values[-1]},
        remedy="Check that optimizer.step() runs on these parameters: a compiled step, a wrapper "
        "or a copy of the model may update something else",
    )


def _undone_updates(view: TrainingView) -> Iterator[Finding]:
    """Each update changes the weights, and before the next one they are as they were."""
    held = [one for one in view.weights if one.optimizer is not None]
    left = [max(one.kept.values) for one in held if len(one.kept.values) >= _FEWEST_PUT_BACK]
    if not left or len(left) < len(held) or max(left) > _PUT_BACK or view.is_learning:
        return
    update = statistics.median(statistics.median(one.updates.values) for one in held)
    yield finding(
        "lost-updates",
        f"The weights are put back after each step: an update changes them by {short(update)} of "
        f"their size, and at the next step {max(left):.1%} of it is left",
        series=held[0].name,
        first_step=0,
        last_step=view.last_step,
        evidence={"update": update, "left of it": max(left), "expected": "about 1"},
        confidence=0.9,
        remedy="Look for what writes to the model after optimizer.step(): load_state_dict, copy_, "
        ".data, or an average (EMA) that is copied into the model instead of from it",
    )


def _unchanged_since(view: TrainingView, one: ParameterFacts) -> float:
    """The recorded step since which a weight stays the same under gradients; inf if it moves."""
    track, gradients = view.track(one), view.track(one, ".grad")
    if track is None or gradients is None or one.optimizer is None or len(track) < _FEWEST_STILL:
        return math.inf
    if (track.values[-2] != track.values[-1]).any():
        return math.inf
    differ = np.nonzero((track.values != track.values[-1]).any(axis=1))[0]
    since = track.steps[differ[-1] + 1 if len(differ) else 0]
    sizes = gradients.size[gradients.steps > since]
    # The optimizer may have been right to leave it alone: without a gradient, or below rounding.
    if len(sizes) < _FEWEST_STILL - 1 or not (sizes > 0).all():
        return math.inf
    optimizer = view.facts.optimizers[one.optimizer]
    if "LBFGS" in optimizer.name:
        # It stops by itself once the gradient or the change is below its tolerance.
        return math.inf
    rate = max(optimizer.lr, default=0.0)
    # SGD goes as far as the gradient is long, others about as far as the learning rate.
    step = rate * float(sizes.min()) if "SGD" in optimizer.name else rate
    return float(since) if step > NOTHING_MOVES * float(track.size[-1]) else math.inf

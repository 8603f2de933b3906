"""Rules about gradients: where they stop, fade, grow and pile up."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from torchglass.analyse.diagnosis.learning_rate_rules import explodes_at_once
from torchglass.analyse.diagnosis.optimizer_rules import common_path, held_without_gradient
from torchglass.analyse.diagnosis.rule import DAMAGE, code_of, finding, named, rule, short
from torchglass.analyse.diagnosis.training_view import SeriesTrack, TrainingView, lasting, median
from torchglass.records.findings import Finding
from torchglass.records.training import FLAT_OPERATIONS, GradientStop, ParameterFacts

_FEWEST_LAYERS = 5
_ENLARGED = 100.0
_WEAK, _FADED, _GONE = 1e-3, 1e-4, 1e-6
"""What is left of the gradient at the other end: it may explain a loss that does not fall, it is
worth a note, and no optimizer can do anything with it."""
_BREAKS = (
    "detach",
    "data",
    "item",
    "tolist",
    "numpy",
    "argmax",
    "argmin",
    "round",
    "floor",
    "sign",
)
"""Functions that stop gradients, the most usual first."""
_CUT_OFF = (
    "Compute the loss from the output itself: .item(), float(), numpy(), .data, detach() or "
    "torch.tensor(…) on the way cut it off"
)
_CHOICES = ("argmax", "argmin", *FLAT_OPERATIONS)


@rule(
    "gradient-accumulates",
    family="gradients",
    title="Gradients are not cleared between steps",
    explains=(*DAMAGE, "lr-too-high"),
)
def gradient_accumulates(view: TrainingView) -> Iterator[Finding]:
    """A backward adds to the gradients that the optimizer has used before: zero_grad is missing."""
    track = view.facts.stale_gradients
    since = lasting(track, lambda value: value > 0)
    if since is None:
        return
    yield finding(
        "gradient-accumulates",
        f"Gradients pile up since step {since}: they are not cleared between optimizer steps",
        severity="error",
        first_step=since,
        last_step=track.steps[-1],
        evidence={"steps with old gradients": sum(map(bool, track.values)), "of": len(track.steps)},
        remedy="Call optimizer.zero_grad() before each loss.backward()",
    )


@rule(
    "no-gradient",
    "gradient-cleared",
    family="gradients",
    title="No gradient reaches a part of the model",
    remedy="Follow its output to the loss: a detach(), a no_grad, an unused output, or a factor "
    "that is 0 keeps the gradient from it",
    explains=("loss-plateau", "vanishing-gradient", "identical-units", "lr-too-low"),
)
def no_gradient(view: TrainingView) -> Iterator[Finding]:
    """Parameters that an optimizer trains never get a gradient, although their module is called."""
    without = [
        one
        for one in view.facts.parameters
        if one.requires_grad
        and one.optimizer is not None
        and not one.with_gradient
        and one.without_gradient >= 2
        and _is_called(view, one)
        and not _has_moved(view, one)
    ]
    if held_without_gradient(view):
        # The optimizer has the wrong parameters, which another rule says.
        return
    trained = [one for one in view.facts.parameters if one.requires_grad]
    if without and len(without) == len(trained) and view.gradients_reach_outputs:
        yield _cleared(view, len(without))
    elif without:
        yield _no_gradient(view, without, "is None")


def _has_moved(view: TrainingView, parameter: ParameterFacts) -> bool:
    """Whether a parameter has changed, by a gradient that came between recorded steps."""
    track = view.track(parameter)
    return track is not None and bool((track.values != track.values[:1]).any())


def _cleared(view: TrainingView, count: int) -> Finding:
    return finding(
        "gradient-cleared",
        f"The gradients are gone before the optimizer steps: none of {count} parameters has one, "
        "although a backward has run",
        severity="error",
        first_step=0,
        evidence={"parameters without a gradient": count},
        remedy="Call optimizer.zero_grad() before loss.backward(), not between it and "
        "optimizer.step()",
    )


def _is_called(view: TrainingView, parameter: ParameterFacts) -> bool:
    path = parameter.name.rpartition(".")[0]
    calls = {one.path: one.calls for one in view.facts.modules}
    # A module that is not called itself may have its weights used by the one around it.
    return bool(
        calls.get(path) or any((path, name) in view.series for name in ("output", "output.0"))
    )


def _no_gradient(view: TrainingView, without: Sequence[ParameterFacts], evidence: str) -> Finding:
    paths = {one.name.rpartition(".")[0] for one in without}
    # The last module without a gradient is right before the place where gradients stop.
    last = max(paths, key=lambda path: view.order.get(path, -1))
    trained = sum(one.requires_grad for one in view.facts.parameters)
    path = common_path([one.name for one in without]) or (last if len(without) < trained else "")
    stop = _stop_near(view, path)
    count = len(without)
    return finding(
        "no-gradient",
        f"No gradient reaches {named(path) if path else 'the parameters'} ({count} "
        f"parameter{'s' * (count > 1)}, first {named(without[0].name)}){_where(stop)}",
        severity="error" if count == len(view.weights) else "warning",
        path=path,
        series=f"{without[0].name}.grad",
        first_step=0,
        source=stop.source if stop is not None else None,
        op=stop.function if stop is not None else "",
        evidence={"parameters": [one.name for one in without[:20]], "gradient": evidence},
        remedy=_remedy(stop) if stop is not None or count < trained else _CUT_OFF,
    )


def _where(stop: GradientStop | None) -> str:
    """Which operation stops a gradient, and at which line, as the end of a sentence."""
    if stop is None:
        return ""
    how = "no_grad switches gradients off" if stop.is_in_no_grad else f"`{stop.function}` stops it"
    return f": {how}" + (f" at {stop.source.file}:{stop.source.line}" if stop.source else "")


def _remedy(stop: GradientStop | None) -> str:
    if stop is None:
        return "Use its output in the loss, or remove it from the model"
    if stop.is_in_no_grad:
        return (
            "Remove torch.no_grad() there, or use checkpoint(…, use_reentrant=False); to freeze "
            "that part, requires_grad_(False)"
        )
    if any(name in stop.function for name in _CHOICES):
        return "Pass the gradient straight through: y = soft + (hard - soft).detach()"
    return "Remove detach(), .data, .item() or numpy() from the path to the loss"


def with_flat_operation(one: Finding, view: TrainingView) -> Finding:
    """A gradient of zeros, with the operation that makes them, if there is one."""
    stop = next((each for each in view.facts.gradient_stops if _is_flat(each)), None)
    if one.kind != "no-gradient" or one.op or stop is None:
        return one
    message = f"{one.message}{_where(stop)}, where its gradient is 0"
    return replace(one, message=message, op=stop.function, source=stop.source, remedy=_remedy(stop))


def _is_flat(stop: GradientStop) -> bool:
    return stop.function.rstrip("_") in FLAT_OPERATIONS


def _stop_near(view: TrainingView, path: str) -> GradientStop | None:
    """The operation that most likely stops the gradients of a module."""
    stops = [one for one in view.facts.gradient_stops if not one.function.startswith("__")]
    inside = [one for one in stops if one.is_in_no_grad and one.path.startswith(path)]
    if inside:
        return inside[0]
    for function in _BREAKS:
        for one in stops:
            if function in one.function:
                return one
    return None


def _layers(view: TrainingView, name: str) -> list[SeriesTrack]:
    """The tracks of one series of all modules with weights, in the order of the calls."""
    paths = {one.name.rpartition(".")[0] for one in view.weights}
    return [
        track
        for path in sorted(paths & view.order.keys(), key=view.order.__getitem__)
        if (track := view.series.get((path, name))) is not None and len(track)
    ]


def _usual_norm(track: SeriesTrack) -> float:
    return median(track.last(8).norm)


def _trend(values: Sequence[float]) -> tuple[float, float]:
    """The slope of log10 over depth, and how well a line fits it (the correlation)."""
    logs = np.log10(np.maximum(np.array(values), 1e-300))
    depth = np.arange(len(logs))
    if logs.std() == 0:
        return 0.0, 0.0
    return float(np.polyfit(depth, logs, 1)[0]), float(np.corrcoef(depth, logs)[0, 1])


@rule(
    "vanishing-gradient",
    family="gradients",
    title="Gradients vanish on their way back",
    remedy="Use ReLU or GELU, normalization or residual connections, and an initialization that "
    "keeps the scale, such as nn.init.kaiming_normal_",
    explains=("loss-plateau", "constant-output", "representation-collapse"),
)
def vanishing_gradient(view: TrainingView) -> Iterator[Finding]:
    """The gradient becomes smaller from layer to layer until almost none reaches the first ones."""
    for name, words in (("output.grad", "The gradient"), ("output", "The signal")):
        layers = _layers(view, name)
        if len(layers) < _FEWEST_LAYERS:
            continue
        is_back = name == "output.grad"
        first, last = (_usual_norm(track) for track in (layers[0], layers[-1]))
        first, last = (first, last) if is_back else (last, first)
        # Exactly 0 is another problem. Deep plain networks lose much and may still learn.
        if not 0 < first < (_WEAK if view.is_stuck else _FADED) * last:
            continue
        norms = [_usual_norm(track) for track in layers]
        slope, fit = _trend(norms) if all(np.isfinite(norms)) else (0.0, 0.0)
        if (fit if is_back else -fit) < 0.8:
            continue
        at = layers[0] if is_back else layers[-1]
        yield finding(
            "vanishing-gradient",
            f"{words} vanishes over {len(layers)} layers: {short(last)} at "
            f"{named((layers[-1] if is_back else layers[0]).path)}, {short(first)} at "
            f"{named(at.path)} (about {10 ** abs(slope):.1f} times less per layer)",
            severity="warning" if view.is_stuck or first < _GONE * last else "info",
            path=layers[0].path,
            series=at.label,
            first_step=int(at.steps[0]),
            last_step=int(at.steps[-1]),
            evidence={"first layer": norms[0], "last layer": norms[-1], "layers": len(layers)},
        )
        return


@rule(
    "exploding-gradient",
    family="gradients",
    title="Gradients explode",
    remedy="Clip them: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0) before each step",
    explains=("loss-diverges", "nan", "inf", "growing-activations", "lr-too-high", "loss-plateau"),
)
def exploding_gradient(view: TrainingView) -> Iterator[Finding]:
    """The gradient grows from layer to layer on its way back, or over the steps of a sequence."""
    if explodes_at_once(view):
        yield _too_large_at_once(view)
        return
    layers = _layers(view, "output.grad")
    if len(layers) < _FEWEST_LAYERS:
        return
    start, end = (float(track.first().norm[0]) for track in (layers[0], layers[-1]))
    if not start > end / _FADED > 0:
        return
    norms = [float(track.first().norm[0]) for track in layers]
    if not all(np.isfinite(norms)) or min(norms) <= 0:
        return
    slope, fit = _trend(norms)
    if fit > -0.8:
        return
    yield finding(
        "exploding-gradient",
        f"The gradient explodes over {len(layers)} layers: {short(norms[-1])} at "
        f"{named(layers[-1].path)}, {short(norms[0])} at {named(layers[0].path)} (about "
        f"{10 ** abs(slope):.1f} times more per layer)",
        path=layers[0].path,
        series=layers[0].label,
        first_step=int(layers[0].steps[0]),
        evidence={"first layer": norms[0], "last layer": norms[-1], "layers": len(layers)},
        remedy="Use an initialization that keeps the scale (nn.init.kaiming_normal_), add "
        "normalization, or clip: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
    )


def _first_that_enlarges(view: TrainingView) -> str | None:
    """The first module whose output is far larger than its input, by the first step."""
    given = view.series.get(("", "input.0"))
    size = float(given.size[0]) if given is not None and len(given) else 1.0
    for track in view.outputs:
        now = float(track.size[0]) if len(track) else math.nan
        if now > _ENLARGED * max(size, 1e-3):
            return track.path
        size = now if now > 0 else size
    return None


def _too_large_at_once(view: TrainingView) -> Finding:
    """The gradient of the first step is far too large for any learning rate."""

    def move(one: ParameterFacts) -> float:
        return one.updates.values[0] if one.updates.values else 0.0

    worst = max(view.weights, key=move)
    enlarging = _first_that_enlarges(view)
    inside = [one for one in view.weights if one.name.rpartition(".")[0] == enlarging]
    worst = max(inside, key=move, default=worst)
    path = worst.name.rpartition(".")[0]
    times = move(worst) / max(view.facts.lr.values)
    is_recurrent = view.kind(path).startswith(("RNN", "LSTM", "GRU"))
    start = (
        f"nn.init.orthogonal_({code_of(worst.name)}), or nn.LSTM or nn.GRU, and "
        if is_recurrent
        else "Scale the targets and the loss to about 1, initialize smaller, and "
    )
    return finding(
        "exploding-gradient",
        f"The gradient explodes at the first step: that of {named(worst.name)} is {short(times)} "
        f"times as large as the weight{', over the steps of the sequence' * is_recurrent}",
        path=path,
        series=f"{worst.name}.grad",
        first_step=min(worst.updates.steps, default=0),
        evidence={"gradient to weight": times, "expected": "below 100"},
        confidence=0.9,
        remedy=f"{start}torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0) before each step",
    )

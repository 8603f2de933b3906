"""Rules about activations: dead, saturated, identical, collapsed or growing."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import numpy as np

from torchglass.analyse.diagnosis.rule import finding, named, rule, share, short
from torchglass.analyse.diagnosis.training_view import TrainingView, lasting, median
from torchglass.records.findings import Finding
from torchglass.records.training import ParameterFacts, Probe

_NO_VARIATION = 1e-3
_ROUNDING = 1e-6
_FADED_SHARE = 0.15
_GATE = re.compile(r"(^|[._])(gate|gating|router|routing)s?([._]|$)")
"""Names of modules that choose between the experts of a mixture."""


def _times(probe: Probe) -> int:
    """How many of the latest measurements must agree; fewer if there are few."""
    return 3 if len(probe.track.values) > 6 else 2


def _output_paths(view: TrainingView) -> set[str]:
    """The places of the last operation of a model."""
    last = [track.path for track in view.outputs[-1:]]
    return {"", *last}


@rule(
    "dead-units",
    family="activations",
    title="Units are dead",
    remedy="Lower the learning rate, check the bias, or use nn.LeakyReLU or nn.GELU",
    explains=(
        "vanishing-gradient",
        "no-gradient",
        "constant-output",
        "representation-collapse",
        "loss-plateau",
    ),
)
def dead_units(view: TrainingView) -> Iterator[Finding]:
    """Most units of a ReLU are 0 for every sample of the batch, and stay so."""
    for probe in view.probes("dead units"):
        since = lasting(probe.track, lambda value: value > 0.8, least=_times(probe))
        if since is None:
            continue
        value = probe.track.values[-1]
        yield finding(
            "dead-units",
            f"{named(probe.path) if probe.path else 'The model'} is dead: "
            f"{share(value)} of its units are 0 for every input since step {since}",
            path=probe.path,
            series=f"{probe.path}.output" if probe.path else "output",
            first_step=since,
            last_step=probe.track.steps[-1],
            evidence={"dead": value, "expected": 0.3},
        )


@rule(
    "saturated",
    family="activations",
    title="Activations are saturated",
    explains=("vanishing-gradient", "loss-plateau", "no-gradient"),
)
def saturated(view: TrainingView) -> Iterator[Finding]:
    """Almost all outputs of a sigmoid or tanh are at its limits, where its gradient is 0."""
    yield from _saturated_recurrence(view)
    ends_so = any(
        name.startswith(("Sigmoid", "Tanh"))
        for loss in view.facts.losses
        for name in loss.before[:2]
    )
    for probe in view.probes("saturated"):
        since = lasting(probe.track, lambda value: value > 0.8, least=2)
        if since is None or (ends_so and probe.path in _output_paths(view)):
            continue
        yield finding(
            "saturated",
            f"{probe.function} in {named(probe.path)} is saturated: "
            f"{share(probe.track.values[-1])} of its outputs are at a limit since step {since}",
            # What a training that learns drives to a limit may be meant, as a bound is.
            severity="info" if since > probe.track.steps[0] and view.is_learning else "warning",
            path=probe.path,
            series=f"{probe.path}.output" if probe.path else "output",
            first_step=since,
            last_step=probe.track.steps[-1],
            evidence={"saturated": probe.track.values[-1], "expected": 0.1},
            remedy="Use smaller initial weights (nn.init.xavier_uniform_), normalize the input of "
            "the activation, or use ReLU or GELU",
        )


def _saturated_recurrence(view: TrainingView) -> Iterator[Finding]:
    """The hidden state of a recurrent module is at the limits of its tanh."""
    for path, module in view.modules.items():
        if module.kind not in ("RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell"):
            continue
        name = next((n for n in ("output.0", "output") if (path, n) in view.series), "")
        track = view.series.get((path, name))
        if track is not None and len(track) >= 2 and (track.size[-3:] > 0.95).all():
            yield finding(
                "saturated",
                f"The hidden state of {named(path)} is saturated: its root mean square is "
                f"{float(track.size[-1]):.2f} of at most 1",
                path=path,
                series=track.label,
                first_step=int(track.steps[int((track.size > 0.95).argmax())]),
                evidence={"size": float(track.size[-1]), "expected": "below 0.7"},
                remedy="Use smaller initial weights (nn.init.orthogonal_), or normalize the input",
            )


@rule(
    "attention-logit-growth",
    "attention-collapse",
    family="activations",
    title="Attention attends to one position only",
    explains=("loss-plateau", "vanishing-gradient", "loss-spike", "loss-diverges", "nan", "inf"),
)
def attention_collapse(view: TrainingView) -> Iterator[Finding]:
    """The attention weights are almost one-hot because their logits are far too large."""
    is_softmax_end = any(
        "Softmax" in name for loss in view.facts.losses for name in loss.before[1:3]
    )
    ends = _output_paths(view) if is_softmax_end else set()
    for logit in view.probes("largest logit"):
        entropy = next(
            (one for one in view.probes("entropy", logit.function) if one.path == logit.path),
            None,
        )
        first, last = logit.track.values[0], logit.track.values[-1]
        if logit.path in ends:
            continue
        is_choice = logit.function == "softmax" and _is_choice(view, logit.path)
        if last > 30 and last > 4 * max(first, 1.0) and len(logit.track.values) >= 3:
            if is_choice:
                # A choice for a whole sample becomes sure as it is learned, or by a temperature.
                continue
            yield finding(
                "attention-logit-growth",
                f"The attention logits in {named(logit.path)} grow: {short(first)} → {short(last)} "
                "(more than 30 saturates the softmax)",
                path=logit.path,
                first_step=next(
                    step
                    for step, value in zip(logit.track.steps, logit.track.values, strict=True)
                    if value > 30
                ),
                last_step=logit.track.steps[-1],
                evidence={"logit": last, "at first": first, "expected": "below 30"},
                remedy="Normalize queries and keys (QK norm), or lower the learning rate",
            )
        elif entropy is not None and last > 15:
            # Logits above 100 from the start leave no other position to most of the rows.
            most = 0.5 if min(first, last) > 100 else 0.1
            since = lasting(entropy.track, most.__gt__)
            if since is not None:
                yield finding(
                    "saturated" if is_choice else "attention-collapse",
                    f"{'The softmax' if is_choice else 'Attention'} in {named(logit.path)} puts "
                    "all weight on one position: its entropy is "
                    f"{share(entropy.track.values[-1])} of the maximum, with logits up to "
                    f"{short(last)}",
                    path=logit.path,
                    first_step=since,
                    last_step=entropy.track.steps[-1],
                    evidence={"entropy": entropy.track.values[-1], "logit": last},
                    remedy="Scale the scores by 1/sqrt(head dimension), normalize queries and "
                    "keys, or initialize their weights smaller",
                )


def _is_gate(view: TrainingView, path: str) -> bool:
    """Whether a softmax with one winner for all samples is the gate of a mixture, by its names."""
    has_winner = any(one.path == path for one in _winners(view))
    names = {name.rpartition(".")[0] for name in (one.name for one in view.facts.parameters)}
    inside = {name for name in (*names, path) if name == path or name.rpartition(".")[0] == path}
    return has_winner and any(_GATE.search(name.lower()) for name in inside)


def _winners(view: TrainingView) -> list[Probe]:
    """The softmaxes that choose the same position for almost all rows."""
    return [
        one
        for one in view.probes("one winner", "softmax")
        if lasting(one.track, lambda value: value > 0.95, least=3) is not None
    ]


def _is_choice(view: TrainingView, path: str) -> bool:
    """Whether a softmax chooses for a whole sample, as a gate does, and not between positions."""
    return any(one.path == path for one in view.probes("choice"))


@rule(
    "router-collapse",
    family="activations",
    title="One expert gets everything",
    explains=("module-never-called", "no-gradient", "vanishing-gradient", "saturated"),
)
def router_collapse(view: TrainingView) -> Iterator[Finding]:
    """The router of a mixture sends almost all tokens to one expert."""
    yield from _gates_without_experts(view)
    for parent, children in _mixtures(view).items():
        counts = np.array([_tokens(view, child) for child in children], float)
        if counts.sum() <= 0:
            continue
        top = float(counts.max() / counts.sum())
        if len(set(counts[counts > 0])) > 1 or (counts == 0).any():
            is_collapsed = top > 0.9 and len(children) >= 3
        else:
            is_collapsed = False
        since: int | None = 0 if is_collapsed else None
        if not is_collapsed:
            since, top = _one_winner(view, parent)
        if since is not None:
            yield finding(
                "router-collapse",
                f"The router of {named(parent)} sends {share(top)} of the tokens to one of "
                f"{len(children)} experts",
                path=parent,
                first_step=since,
                evidence={"share": top, "expected": 1 / len(children)},
                remedy="Add a load-balancing loss or noise to the router",
            )


def _gates_without_experts(view: TrainingView) -> Iterator[Finding]:
    """Gates of mixtures whose experts are one batched weight."""
    ends = _output_paths(view)
    for probe in _winners(view):
        is_end = probe.path in ends and not _is_choice(view, probe.path)
        if not is_end and _is_gate(view, probe.path) and not _mixtures(view):
            yield finding(
                "router-collapse",
                f"The gate of {named(probe.path)} prefers the same expert for "
                f"{share(probe.track.values[-1])} of the samples",
                path=probe.path,
                first_step=probe.track.steps[0],
                last_step=probe.track.steps[-1],
                evidence={"share": probe.track.values[-1]},
                remedy="Add a load-balancing loss or noise to the router",
            )


def _mixtures(view: TrainingView) -> dict[str, list[str]]:
    """Containers of at least three equal modules that do not run one after the other."""
    found: dict[str, list[str]] = {}
    for path, module in view.modules.items():
        children = [view.model.modules[child] for child in module.children] if view.model else []
        kinds = {child.class_name for child in children}
        is_list = module.kind in ("ModuleList", "ModuleDict")
        if is_list and len(children) >= 3 and len(kinds) == 1 and "expert" in path.lower():
            found[path] = [child.path for child in children]
    return found


def _tokens(view: TrainingView, path: str) -> float:
    """The number of values that a module returned over the whole training."""
    track = view.series.get((path, "output"))
    return float(track.column("count").sum()) if track is not None else 0.0


def _one_winner(view: TrainingView, experts: str) -> tuple[int | None, float]:
    above = experts.rpartition(".")[0]
    for probe in view.probes("one winner", "softmax"):
        if probe.path == above or probe.path.rpartition(".")[0] == above:
            since = lasting(probe.track, lambda value: value > 0.95, least=3)
            if since is not None:
                return since, probe.track.values[-1]
    return None, 0.0


@rule(
    "dropout-drops-all",
    family="activations",
    title="Dropout drops everything",
    explains=(
        "dead-units",
        "loss-plateau",
        "constant-output",
        "representation-collapse",
        "vanishing-gradient",
        "no-gradient",
        "loss-diverges",
        "inputs-not-normalized",
    ),
)
def dropout_drops_all(view: TrainingView) -> Iterator[Finding]:
    """A dropout sets almost all values to 0."""
    told = set()
    for module in view.facts.modules:
        if module.dropout is not None and module.dropout >= 0.95 and module.calls:
            told.add(module.path)
            yield _dropped(module.path, module.dropout)
    for probe in view.probes("dropped"):
        if probe.path not in told and lasting(probe.track, lambda value: value > 0.95) is not None:
            yield _dropped(probe.path, probe.track.values[-1])


def _dropped(path: str, part: float) -> Finding:
    return finding(
        "dropout-drops-all",
        f"Dropout in {named(path)} sets {share(part)} of its input to 0",
        path=path,
        first_step=0,
        evidence={"dropped": part, "expected": "0.1 to 0.5"},
        remedy="nn.Dropout(p=0.1): p is the share that is dropped, not the share that is kept",
    )


@rule(
    "identical-units",
    family="activations",
    title="All units of a layer are the same",
    explains=(
        *("loss-plateau", "representation-collapse", "constant-output", "vanishing-gradient"),
        *("no-gradient", "dead-units"),
    ),
)
def identical_units(view: TrainingView) -> Iterator[Finding]:
    """All rows of a weight are equal and stay so: the units compute the same and learn the same."""
    yield from _zero_weights(view)
    for one in view.weights:
        if one.has_equal_rows and len(one.updates.values) >= 2 and one.shape[0] > 1:
            yield finding(
                "identical-units",
                f"All {one.shape[0]} units of {named(one.name)} are the same and stay the same",
                path=one.name.rpartition(".")[0],
                series=one.name,
                first_step=0,
                evidence={"different rows": 1, "expected": one.shape[0]},
                remedy="Initialize with random values: nn.init.kaiming_uniform_(weight)",
            )


def _zero_weights(view: TrainingView) -> Iterator[Finding]:
    """Weights that are 0 and have no gradient, because what they are multiplied with is 0, too."""
    still = [
        one
        for one in view.weights
        if one.optimizer is not None
        and one.with_gradient
        and _is_always_zero(view, one, "")
        and _is_always_zero(view, one, ".grad")
    ]
    if len(still) < 2:
        return
    first, second = still[0].name, still[1].name
    more = f" and {len(still) - 2} more weights" if len(still) > 2 else ""
    yield finding(
        "identical-units",
        f"{named(first)}, {named(second)}{more} are 0 and stay 0: the gradient of each is 0 "
        "because of the others",
        path=first.rpartition(".")[0],
        series=first,
        first_step=0,
        evidence={"weights": [one.name for one in still[:20]], "gradient": 0.0},
        remedy="Begin with zeros in one of two weights that are multiplied, not in both: "
        f'nn.init.kaiming_uniform_(model.get_parameter("{first}"))',
    )


def _is_always_zero(view: TrainingView, parameter: ParameterFacts, of: str) -> bool:
    track = view.track(parameter, of)
    return track is not None and len(track) >= 3 and not track.size.any()


@rule(
    "constant-output",
    "representation-collapse",
    family="activations",
    title="The output does not depend on the input",
    explains=("loss-plateau",),
)
def constant_output(view: TrainingView) -> Iterator[Finding]:
    """The model, or a part of it, computes the same for all samples of a batch."""
    collapsed = []
    position = view.order
    for probe in view.probes("batch variation"):
        if probe.track.values[-1] >= _NO_VARIATION:
            continue
        since = lasting(
            probe.track,
            lambda value: value < _NO_VARIATION,
            least=min(4, max(3, len(probe.track.values))),
        )
        values = probe.track.values
        # Behind a layer that began at zero, the output begins to differ slowly.
        is_growing = values[-1] > max(1.5 * values[len(values) // 2], _ROUNDING)
        if since is not None and probe.path in position and not is_growing:
            collapsed.append((position[probe.path], since, probe))
    if not collapsed or not _inputs_vary(view):
        yield from _shrinking_output(view)
        return
    single = _softmax_of_one(view)
    if single is not None:
        yield single
        return
    # What contains a module has the output of the last one in it.
    inner = [one for one in collapsed if one[2].path not in view.containers] or collapsed
    _, since, probe = min(inner, key=lambda one: one[0])
    last = view.outputs[-1].path if view.outputs else ""
    is_end = probe.path in ("", last)
    kind = "constant-output" if is_end else "representation-collapse"
    what = "The output of the model" if is_end else f"The output of {named(probe.path)}"
    yield finding(
        kind,
        f"{what} is the same for all samples of a batch since step {since} (it varies by "
        f"{short(probe.track.values[-1])} of its size)",
        # Where all targets are the same, that is the right answer.
        severity="warning" if view.is_stuck else "info",
        path=probe.path,
        series=f"{probe.path}.output" if probe.path else "output",
        first_step=since,
        last_step=probe.track.steps[-1],
        evidence={"variation": probe.track.values[-1], "expected": "above 0.01"},
        remedy="Look for the first module whose output is constant: dead units, a saturated "
        "activation, or a loss that rewards it",
    )


def _softmax_of_one(view: TrainingView) -> Finding | None:
    """The output of a softmax over a single value, which is always 1."""
    ends_so = any(name.startswith("Softmax") for loss in view.facts.losses for name in loss.before)
    for track in view.series.values():
        is_output = track.name in ("output", "output.0") and not track.is_number
        if not is_output or not (
            view.kind(track.path) == "Softmax" or (ends_so and not track.path)
        ):
            continue
        if (
            len(track) >= 2
            and (track.column("min") == 1).all()
            and (track.column("max") == 1).all()
        ):
            return finding(
                "constant-output",
                f"The output of {named(track.path)} is always 1: its softmax is over one value",
                path=track.path,
                series=track.label,
                first_step=int(track.steps[0]),
                last_step=int(track.steps[-1]),
                evidence={"output": 1.0},
                remedy="For one output per sample, use nn.BCEWithLogitsLoss without the softmax, "
                "or give the last layer one output per class and use nn.CrossEntropyLoss",
            )
    return None


def _faded_output(view: TrainingView) -> Iterator[Finding]:
    """The output of a layer shrinks to almost nothing, whatever its input."""
    weights = {one.name.rpartition(".")[0] for one in view.weights}
    for track in view.outputs[:-1]:
        if track.path not in weights or len(track) < 3:
            continue
        first, last = float(track.first().size[0]), float(track.last(3).size.max())
        if 0 < last < min(_FADED_SHARE * first, 0.1):
            yield finding(
                "representation-collapse",
                f"The output of {named(track.path)} fades: {short(first)} at first, {short(last)} "
                "now, so it carries almost no information about the input",
                severity="info",
                path=track.path,
                series=track.label,
                first_step=int(track.steps[int((track.size < _FADED_SHARE * first).argmax())]),
                last_step=int(track.steps[-1]),
                evidence={"size": last, "at first": first},
                confidence=0.5,
                remedy="Look for a term of the loss that pulls it to 0, such as a KL divergence "
                "with too large a weight",
            )
            return


def _low_rank(view: TrainingView) -> Iterator[Finding]:
    """The outputs of a layer for different samples come to differ in one direction only."""
    for probe in view.probes("effective rank"):
        first, last = probe.track.values[0], probe.track.values[-1]
        if first < 4 or lasting(probe.track, lambda value: value < 1.2, least=3) is None:
            continue
        yield finding(
            "representation-collapse",
            f"The output of {named(probe.path)} differs in one direction only: its effective rank "
            f"was {first:.1f}, now it is {last:.1f}",
            # One direction is enough for two classes, or for one value.
            severity="info",
            path=probe.path,
            series=f"{probe.path}.output" if probe.path else "output",
            first_step=probe.track.steps[0],
            last_step=probe.track.steps[-1],
            evidence={"effective rank": last, "at first": first},
            confidence=0.5,
            remedy="For embeddings, add negatives or a term that keeps their variance "
            "(VICReg, Barlow Twins)",
        )
        return


def _shrinking_output(view: TrainingView) -> Iterator[Finding]:
    """The outputs for different samples come closer and closer to each other."""
    yield from _faded_output(view)
    yield from _low_rank(view)
    paths = _output_paths(view) | {path for path in view.order if "." not in path}
    for probe in view.probes("batch variation"):
        first, last = probe.track.values[0], probe.track.values[-1]
        if probe.path in paths and len(probe.track.values) >= 3 and last < min(0.15, 0.4 * first):
            yield finding(
                "representation-collapse",
                f"The output of {named(probe.path)} becomes the same for all samples: it varied by "
                f"{share(first)} of its size, now by {share(last)}",
                severity="info",
                path=probe.path,
                series=f"{probe.path}.output" if probe.path else "output",
                first_step=probe.track.steps[0],
                last_step=probe.track.steps[-1],
                evidence={"variation": last, "at first": first},
                confidence=0.5,
                remedy="A loss that only pulls outputs together needs negatives, a stop-gradient "
                "(detach) or a variance term",
            )
            return


def _inputs_vary(view: TrainingView) -> bool:
    track = view.series.get(("", "input.0"))
    return track is None or bool(median(track.column("std")) > 0)


@rule(
    "growing-activations",
    family="activations",
    title="Activations grow along the depth or over the steps",
    explains=("loss-diverges", "nan", "inf", "loss-spike", "exploding-gradient"),
)
def growing_activations(view: TrainingView) -> Iterator[Finding]:
    """The output of repeated blocks grows from block to block by a factor of a hundred or more."""
    for path, module in view.modules.items():
        if view.model is None or len(module.children) < 4:
            continue
        children = [view.model.modules[child] for child in module.children]
        tracks = [
            track
            for child in children
            if (track := view.series.get((child.path, "output"))) is not None and len(track)
        ]
        if len(tracks) < 4 or len({child.class_name for child in children}) > 1:
            continue
        sizes = [median(track.last(4).size) for track in tracks]
        if not all(map(math.isfinite, sizes)) or min(sizes) <= 0:
            continue
        if sizes[-1] > 100 * sizes[0] and np.mean(np.diff(sizes) > 0) > 0.8:
            yield finding(
                "growing-activations",
                f"Activations grow over the {len(tracks)} blocks of {named(path)}: "
                f"{short(sizes[0])} → {short(sizes[-1])}",
                path=path,
                series=tracks[-1].label,
                first_step=int(tracks[-1].steps[0]),
                evidence={"first block": sizes[0], "last block": sizes[-1]},
                remedy="Normalize before each block (pre-norm), or scale residual branches by "
                "1/sqrt(2 × number of blocks) at initialization",
            )

"""Rules about the loss function: its inputs and its labels."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from torchglass.analyse.diagnosis.rule import finding, rule, share, short
from torchglass.analyse.diagnosis.training_view import SeriesTrack, TrainingView, lasting, median
from torchglass.records.findings import Finding
from torchglass.records.training import KL_DIV, LossFacts

_VIEWS = (
    *("View", "Reshape", "UnsafeView", "Squeeze", "Unsqueeze", "Permute", "Transpose", "TBackward"),
    *("Slice", "Select", "Expand", "ToCopy", "Clone", "Alias", "Index"),
)
"""The autograd nodes of operations that move values and do not change them."""
_FEWEST = 12
_SUPERVISED = ("NllLoss", "MseLoss", "BinaryCrossEntropy", "SmoothL1Loss", "HuberLoss", "CtcLoss")


def _before(loss: LossFacts, skip: tuple[str, ...] = ()) -> str:
    """The operation whose result a loss function gets."""
    return next((name for name in loss.before if not name.startswith((*_VIEWS, *skip))), "")


def is_supervised(view: TrainingView) -> bool:
    """Whether the loss compares outputs with targets."""
    return any(loss.function.startswith(_SUPERVISED) for loss in view.facts.losses)


def chance_loss(view: TrainingView) -> float | None:
    """The loss of random guessing, if it follows from the loss function."""
    for loss in view.facts.losses:
        if loss.function.startswith("NllLoss") and len(loss.input_shape) > 1:
            return math.log(max(2, loss.input_shape[1]))
        if loss.function.startswith("BinaryCrossEntropy"):
            return math.log(2)
    return None


@rule(
    "softmax-before-cross-entropy",
    "nll-without-log-softmax",
    family="set-up",
    title="Softmax before cross entropy",
    explains=("loss-plateau", "saturated", "loss-diverges"),
)
def softmax_before_cross_entropy(view: TrainingView) -> Iterator[Finding]:
    """A loss gets probabilities instead of logits, or something else than log-probabilities."""
    for loss in view.facts.losses:
        if loss.function == KL_DIV and _before(loss).startswith(("Softmax", "Sigmoid")):
            yield finding(
                "nll-without-log-softmax",
                "kl_div expects log-probabilities as its first argument, but gets probabilities",
                first_step=0,
                evidence={"graph": " ← ".join((loss.function, *loss.before[:3]))},
                remedy="functional.kl_div(logits.log_softmax(-1), target, reduction='batchmean')",
            )
            return
        if not loss.function.startswith("NllLoss"):
            continue
        first = _before(loss)
        inner = _before(loss, skip=("LogSoftmax",))
        if first.startswith("LogSoftmax") and inner.startswith(("Softmax", "Sigmoid")):
            which = "softmax" if inner.startswith("Softmax") else "sigmoid"
            yield finding(
                "softmax-before-cross-entropy",
                f"The model ends in a {which} and cross_entropy applies softmax once more",
                first_step=0,
                evidence={"graph": " ← ".join((loss.function, *loss.before[:3]))},
                remedy=f"Return the logits: remove the {which} at the end of the model",
                path=_module_of(view, which),
            )
            return
        if first and not first.startswith("Log"):
            yield finding(
                "nll-without-log-softmax",
                "nll_loss expects log-probabilities, but gets something else",
                first_step=0,
                evidence={"graph": " ← ".join((loss.function, *loss.before[:3]))},
                remedy="Use nn.CrossEntropyLoss on logits, or log_softmax before nll_loss",
            )
            return


@rule(
    "softmax-over-batch",
    family="set-up",
    title="A softmax is taken over the samples",
    explains=("loss-plateau", "saturated", "softmax-before-cross-entropy"),
)
def softmax_over_batch(view: TrainingView) -> Iterator[Finding]:
    """The softmax before the loss is over dim 0, the samples, so their shares depend on others."""
    for loss in view.facts.losses:
        if loss.softmax_dim == 0 and len(loss.input_shape) > 1 and loss.input_shape[0] > 1:
            which = next((name for name in loss.before if "Softmax" in name), "")
            yield finding(
                "softmax-over-batch",
                "The softmax before the loss is over dim 0, the samples of the batch, and not over "
                "the classes",
                first_step=0,
                evidence={"dim": 0, "expected": 1, "shape": list(loss.input_shape)},
                remedy="Use nn.CrossEntropyLoss on logits, or log_softmax(dim=1)"
                if which.startswith("Log")
                else "Use nn.CrossEntropyLoss on logits, or softmax(dim=1)",
                path=_module_of(view, "logsoftmax" if which.startswith("Log") else "softmax"),
            )
            return


def _module_of(view: TrainingView, kind: str) -> str:
    """The last module of a kind, "" if there is none."""
    paths = [path for path, module in view.modules.items() if module.kind.lower() == kind]
    return paths[-1] if paths else ""


@rule(
    "sigmoid-before-bce",
    family="set-up",
    title="Sigmoid before binary cross entropy with logits",
    explains=("loss-plateau", "saturated"),
)
def sigmoid_before_bce(view: TrainingView) -> Iterator[Finding]:
    """binary_cross_entropy_with_logits applies a sigmoid itself, but it gets probabilities."""
    for loss in view.facts.losses:
        if loss.function.startswith("BinaryCrossEntropyWithLogits") and _before(loss).startswith(
            ("Sigmoid", "Softmax")
        ):
            yield finding(
                "sigmoid-before-bce",
                "The model ends in a sigmoid and binary_cross_entropy_with_logits applies one more",
                path=_module_of(view, "sigmoid"),
                first_step=0,
                evidence={"graph": " ← ".join((loss.function, *loss.before[:3]))},
                remedy="Return the logits: remove the sigmoid, or use nn.BCELoss",
            )
            return


_BAD_LABEL = ("is out of bounds", "n_classes` failed", "class values must be smaller")
"""Torch's error messages for a label outside the classes."""


@rule(
    "labels-out-of-range",
    family="set-up",
    title="Labels are out of range",
    explains=("loss-diverges", "output-logit-growth", "loss-plateau"),
)
def labels_out_of_range(view: TrainingView) -> Iterator[Finding]:
    """A label is not one of the classes, or binary cross entropy gets labels below 0 or above 1."""
    status = view.status
    if status is not None and any(words in status.message for words in _BAD_LABEL):
        yield finding(
            "labels-out-of-range",
            f"A label is out of range: {status.message}",
            severity="error",
            first_step=max(0, status.step),
            evidence={"exception": status.error, "message": status.message},
            remedy="Use labels from 0 to the number of classes − 1",
        )
    for track in view.losses:
        if is_below_zero_by_labels(view, track):
            values = track.values[:, 0]
            below = int(np.nonzero(values < 0)[0][0])
            yield finding(
                "labels-out-of-range",
                f"Labels are outside of 0 to 1: the binary cross entropy is "
                f"{short(float(values[-1]))}, but with labels from 0 to 1 it is never below 0",
                severity="error",
                series=track.label,
                first_step=int(track.steps[0]),
                last_step=int(track.steps[-1]),
                evidence={"loss": float(values[-1]), "below 0 since step": int(track.steps[below])},
                remedy="Use labels 0 and 1: y = (y > 0).float()",
            )
            return


def is_below_zero_by_labels(view: TrainingView, track: SeriesTrack) -> bool:
    """Whether a binary cross entropy came down below 0, which no labels from 0 to 1 allow.

    A loss with a minus sign is below 0 from the start.
    """
    losses = view.facts.losses
    if len(losses) != 1 or not losses[0].is_whole:
        return False
    values = track.values[:, 0][np.isfinite(track.values[:, 0])]
    if not losses[0].function.startswith("BinaryCrossEntropy") or len(values) < _FEWEST:
        return False
    return bool(values[0] > 0 and median(values[-3:]) < 0)


@rule(
    "relu-on-output",
    family="set-up",
    title="A ReLU clips the output of a regression",
    explains=("dead-units", "loss-plateau", "constant-output"),
)
def relu_on_output(view: TrainingView) -> Iterator[Finding]:
    """The loss asks for negative values, which a ReLU at the end of the model cannot give."""
    losses = [loss for loss in view.facts.losses if loss.function]
    if losses and not any(
        _before(loss, skip=("Sub", "RSub", "Pow", "Abs", "Mul")).startswith("Relu")
        for loss in losses
    ):
        # What a model returns may be used by another one, before the loss.
        return
    for probe in view.probes("wants negative"):
        if lasting(probe.track, lambda value: value > 0.1) is not None:
            yield finding(
                "relu-on-output",
                f"The model ends in a ReLU, but the loss asks for negative values in "
                f"{share(probe.track.values[-1])} of the output",
                path=_module_of(view, "relu") if view.kind(_module_of(view, "relu")) else "",
                first_step=probe.track.steps[0],
                evidence={"share": probe.track.values[-1]},
                remedy="Remove the ReLU after the last layer",
            )
            return


@rule(
    "loss-broadcast",
    family="set-up",
    title="Output and target have different shapes",
    explains=("loss-plateau", "constant-output", "dead-units", "representation-collapse"),
)
def loss_broadcast(view: TrainingView) -> Iterator[Finding]:
    """Output and target are expanded: every output is compared with all targets."""
    for loss in view.facts.losses:
        if loss.is_broadcast:
            size = "×".join(map(str, loss.target_shape))
            yield finding(
                "loss-broadcast",
                f"Output and target have different shapes: {tuple(loss.input_shape)} is expanded "
                f"to {size}, so every output is compared with every target",
                severity="error",
                first_step=0,
                evidence={"output": list(loss.input_shape), "compared as": list(loss.target_shape)},
                remedy="Give both the same shape: output.squeeze(-1), or target.unsqueeze(-1)",
            )
            return

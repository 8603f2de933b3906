"""Rules about the loss function: its inputs and its labels."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torchglass.analyse.diagnosis.rule import finding, rule, share
from torchglass.analyse.diagnosis.training_view import TrainingView, lasting
from torchglass.records.findings import Finding
from torchglass.records.training import LossFacts

_VIEWS = (
    *("View", "Reshape", "UnsafeView", "Squeeze", "Unsqueeze", "Permute", "Transpose", "TBackward"),
    *("Slice", "Select", "Expand", "ToCopy", "Clone", "Alias", "Index"),
)
"""The autograd nodes of operations that move values and do not change them."""
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
    """cross_entropy takes logits and applies log_softmax itself, but it gets probabilities."""
    for loss in view.facts.losses:
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

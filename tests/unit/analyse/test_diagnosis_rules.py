"""Every rule names its problem, and is silent about the training that looks most like it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests import make
from torchglass.analyse.diagnosis.conclude import all_rules, conclude
from torchglass.analyse.diagnosis.rule import RULES
from torchglass.analyse.diagnosis.training_view import SeriesTrack, TrainingView
from torchglass.records.findings import Finding
from torchglass.records.model import Model
from torchglass.records.run import RunStatus
from torchglass.records.trace import SourceLine
from torchglass.records.training import (
    GradientStop,
    InputFacts,
    LossFacts,
    ModuleFacts,
    OpSite,
    OptimizerFacts,
    ParameterFacts,
    Probe,
    Track,
    TrainingFacts,
)

STEPS = 40
FALLING = [2.0 * 0.95**step for step in range(STEPS)]
STUCK = [2.0 + 0.01 * (step % 3) for step in range(STEPS)]
CROSS_ENTROPY = LossFacts(
    function="NllLossBackward0", before=("LogSoftmaxBackward0", "AddmmBackward0"), is_whole=True
)
MSE = LossFacts(function="MseLossBackward0", before=("AddmmBackward0",), is_whole=True)
SGD = OptimizerFacts(name="SGD", lr=(0.1,), weight_decay=(0.0,), steps=STEPS)


def over_steps(*values: float, every: int = 1) -> Track:
    return Track(steps=tuple(range(0, every * len(values), every)), values=values)


def sizes(*values: float, mean: float = 0.0, count: int = 64) -> list[list[float]]:
    """A row of statistics for each size, which is the standard deviation."""
    return [[count, mean - one, mean + one, mean, one, 0, 0] for one in values]


def probe(measure: str, *values: float, path: str = "act", function: str = "relu") -> Probe:
    return Probe(path=path, function=function, measure=measure, track=over_steps(*values, every=4))


def weight(name: str = "fc.weight", **facts: Any) -> ParameterFacts:
    usual: dict[str, Any] = {
        "shape": (8, 8),
        "optimizer": 0,
        "with_gradient": 5,
        "updates": over_steps(*[1e-3] * 8, every=4),
    }
    return ParameterFacts(name=name, **{**usual, **facts})


def training(
    series: Mapping[tuple[str, str], Any] | None = None,
    *,
    loss: Sequence[float] | None = FALLING,
    model: Model | None = None,
    status: RunStatus | None = None,
    **facts: Any,
) -> TrainingView:
    """A training that is healthy but for what is said."""
    values = dict(series or {})
    if loss is not None:
        values["", "loss"] = [[one] for one in loss]
    tracks = {
        key: SeriesTrack(key, range(len(rows)), np.array(rows, np.float64))
        for key, rows in values.items()
    }
    usual: dict[str, Any] = {
        "optimizers": (SGD,),
        "parameters": (weight(),),
        "lr": over_steps(*[0.1] * STEPS),
        "updates": STEPS,
        "backwards": STEPS,
        "modes": over_steps(*[1.0] * STEPS),
        "batches": STEPS,
    }
    return TrainingView(
        tracks, facts=TrainingFacts(**{**usual, **facts}), model=model, status=status
    )


def stopped(message: str) -> TrainingView:
    return training(status=RunStatus("stopped", step=3, error="RuntimeError", message=message))


def layers(ratio: float, *, loss: Sequence[float] = STUCK) -> TrainingView:
    """Eight layers, whose gradient changes by a ratio from each to the one after it."""
    paths = [str(at) for at in range(8)]
    series: dict[tuple[str, str], Any] = {(path, "output"): sizes(*[1.0] * 5) for path in paths}
    for at, path in enumerate(paths):
        series[path, "output.grad"] = sizes(*[1e-3 * ratio**at] * 5)
    parameters = tuple(weight(f"{path}.weight") for path in paths)
    return training(series, loss=loss, parameters=parameters)


def blocks(growth: float) -> TrainingView:
    """Five equal blocks, whose output grows by a factor from block to block."""
    children = {str(at): {"class": "Block"} for at in range(5)}
    record = make.model({"children": {"blocks": {"class": "ModuleList", "children": children}}})
    return training(
        {(f"blocks.{at}", "output"): sizes(*[growth**at] * 5) for at in range(5)}, model=record
    )


def mixture(*tokens: int) -> TrainingView:
    """Experts that return so many values at each step."""
    children = {str(at): {"class": "Expert"} for at in range(len(tokens))}
    record = make.model({"children": {"experts": {"class": "ModuleList", "children": children}}})
    return training(
        {
            (f"experts.{at}", "output"): sizes(*[1.0] * 5, count=count)
            for at, count in enumerate(tokens)
            if count
        },
        model=record,
    )


def attention(entropy: float, *logits: float) -> TrainingView:
    name = "scaled_dot_product_attention"
    return training(
        probes=(
            probe("entropy", *[entropy] * 5, function=name),
            probe("largest logit", *logits, function=name),
        )
    )


def weights(first: float, last: float, **facts: Any) -> TrainingView:
    """A weight that goes from one size to another."""
    return training({("fc", "weight"): sizes(*np.linspace(first, last, 10))}, **facts)


def still(moves: float) -> TrainingView:
    """A weight with a gradient, which changes by so much at each step."""
    values = [1 + moves * step for step in range(10)]
    return training({("fc", "weight"): sizes(*values), ("fc", "weight.grad"): sizes(*[0.1] * 10)})


def inputs(*values: float, mean: float = 0.0, into: float | None = None) -> TrainingView:
    """A float input of the model, and the size of what its first layer gets."""
    first = values if into is None else (into,) * len(values)
    return training(
        {
            ("", "input.0"): sizes(*values, mean=mean),
            ("fc", "input.0"): sizes(*first, mean=mean if into is None else 0.0),
        },
        inputs=(InputFacts(place="0", shape=(8, 8), dtype="float32"),),
    )


class Pair(NamedTuple):
    """A training with a problem, and one that only looks like it."""

    sick: Callable[[], TrainingView]
    healthy: Callable[[], TrainingView]


def lr(*rates: float) -> TrainingView:
    return training(lr=over_steps(*rates), loss=STUCK)


def losses(*facts: LossFacts, **more: Any) -> TrainingView:
    return training(losses=facts, **more)


def modules(*facts: ModuleFacts, **more: Any) -> TrainingView:
    return training(modules=(ModuleFacts(path="fc", name="Linear", calls=9), *facts), **more)


def updates(*values: float, loss: Sequence[float] = STUCK, **more: Any) -> TrainingView:
    own = weight(updates=over_steps(*values, every=4))
    return training(parameters=(own,), loss=loss, **more)


def before(*nodes: str, function: str = "NllLossBackward0") -> TrainingView:
    return losses(LossFacts(function=function, before=nodes))


_RISING = [2.0 + step for step in range(STEPS)]
_SPIKE = [*FALLING[:20], 40.0, *FALLING[20:]]
_CLIPPED = {("fc", "weight.grad"): sizes(*[1e-9] * 10)}
_LSTM_GATE = probe("saturated", *[0.95] * 6, function="sigmoid")
_HALF = Track(steps=(0, 4, 8, 12), values=(0.05,) * 4)

PAIRS: dict[str, Pair] = {
    "dead-units": Pair(
        lambda: training(probes=(probe("dead units", *[0.95] * 6),)),
        lambda: training(probes=(probe("dead units", *[0.95] * 3, 0.6, 0.5, 0.5),)),
    ),
    "saturated": Pair(
        lambda: training(probes=(_LSTM_GATE,)),
        lambda: training(probes=(probe("saturated", *[0.6] * 6, function="tanh"),)),
    ),
    "attention-logit-growth": Pair(
        lambda: attention(0.5, 2, 8, 20, 40, 80), lambda: attention(0.5, 8, 9, 10, 12, 14)
    ),
    "attention-collapse": Pair(
        lambda: attention(0.01, *[28.0] * 5), lambda: attention(0.01, *[4.0] * 5)
    ),
    "router-collapse": Pair(lambda: mixture(950, 20, 30, 0), lambda: mixture(400, 200, 300, 100)),
    "dropout-drops-all": Pair(
        lambda: modules(ModuleFacts(path="drop", name="Dropout", calls=9, dropout=0.99)),
        lambda: modules(ModuleFacts(path="drop", name="Dropout", calls=9, dropout=0.5)),
    ),
    "identical-units": Pair(
        lambda: training(parameters=(weight(has_equal_rows=True),)),
        lambda: training(parameters=(weight(has_equal_rows=True, shape=(1, 8)),)),
    ),
    "constant-output": Pair(
        lambda: training(
            {("", "output"): sizes(*[1.0] * 5)},
            probes=(probe("batch variation", *[1e-8] * 6, path="", function="output"),),
            loss=STUCK,
        ),
        lambda: training(
            {("", "output"): sizes(*[1.0] * 5)},
            probes=(probe("batch variation", *[0.0] * 3, 1e-5, 1e-4, 9e-4, path=""),),
            loss=STUCK,
        ),
    ),
    "representation-collapse": Pair(
        lambda: training(probes=(probe("effective rank", 9, 4, 2, 1.1, 1.1, 1.0),)),
        lambda: training(probes=(probe("effective rank", 9, 6, 4, 3, 3, 3),)),
    ),
    "growing-activations": Pair(lambda: blocks(4.0), lambda: blocks(1.5)),
    "inputs-not-normalized": Pair(
        lambda: inputs(*[70.0] * 5, mean=120), lambda: inputs(*[70.0] * 5, mean=120, into=0.3)
    ),
    "constant-input": Pair(lambda: inputs(*[0.0] * 5, mean=1), lambda: inputs(*[0.1] * 5, mean=1)),
    "zero-input": Pair(lambda: inputs(*[0.0] * 5), lambda: inputs(0.0, 1.0, 1.0, 1.0, 1.0)),
    "repeated-batches": Pair(
        lambda: training(repeats=over_steps(*[0.0, 1, 1, 1] * 5), batches=5),
        lambda: training(repeats=over_steps(*[1.0] * 20), batches=1),
    ),
    "batch-size-mismatch": Pair(
        lambda: training(
            inputs=(InputFacts(place="0", shape=(8, 4)), InputFacts(place="x", shape=(1, 4)))
        ),
        lambda: training(
            inputs=(InputFacts(place="0", shape=(8, 4)), InputFacts(place="mask", shape=(1, 4)))
        ),
    ),
    "softmax-before-cross-entropy": Pair(
        lambda: before("LogSoftmaxBackward0", "SoftmaxBackward0"),
        lambda: before("LogSoftmaxBackward0", "AddmmBackward0", "SoftmaxBackward0"),
    ),
    "softmax-over-batch": Pair(
        lambda: losses(replace(CROSS_ENTROPY, softmax_dim=0, input_shape=(8, 4))),
        lambda: losses(replace(CROSS_ENTROPY, softmax_dim=1, input_shape=(8, 4))),
    ),
    "nll-without-log-softmax": Pair(
        lambda: before("AddmmBackward0"), lambda: before("LogSoftmaxBackward0", "AddmmBackward0")
    ),
    "sigmoid-before-bce": Pair(
        lambda: before("SigmoidBackward0", function="BinaryCrossEntropyWithLogitsBackward0"),
        lambda: before("SigmoidBackward0", function="BinaryCrossEntropyBackward0"),
    ),
    "relu-on-output": Pair(
        lambda: training(probes=(probe("wants negative", *[0.4] * 5, path=""),)),
        lambda: losses(MSE, probes=(probe("wants negative", *[0.4] * 5, path=""),)),
    ),
    "loss-broadcast": Pair(
        lambda: losses(replace(MSE, input_shape=(8, 1), target_shape=(8, 8), is_broadcast=True)),
        lambda: losses(replace(MSE, input_shape=(8, 1))),
    ),
    "loss-diverges": Pair(
        lambda: training(loss=_RISING),
        lambda: losses(replace(MSE, is_whole=False), loss=[-1.0] * 9),
    ),
    "loss-spike": Pair(
        lambda: training(loss=_SPIKE), lambda: training(loss=[*FALLING[:30], *STUCK[30:]])
    ),
    "loss-plateau": Pair(
        lambda: losses(replace(CROSS_ENTROPY, input_shape=(8, 8)), loss=STUCK),
        lambda: losses(replace(CROSS_ENTROPY, input_shape=(8, 8))),
    ),
    "output-logit-growth": Pair(
        lambda: losses(CROSS_ENTROPY, series={("fc", "output"): sizes(1, 1, 1, 20, 60, 90, 99)}),
        lambda: losses(CROSS_ENTROPY, series={("fc", "output"): sizes(1, 1, 1, 4, 8, 12, 14)}),
    ),
    "update-growth": Pair(
        lambda: updates(*[1e-3] * 6, 4e-3, 8e-3, 2e-2),
        lambda: updates(*[1e-3] * 6, 4e-3, 8e-3, 2e-2, lr=over_steps(*[1e-4] * 20, *[0.1] * 5)),
    ),
    "replaced-parameter": Pair(
        lambda: training(
            parameters=(weight(optimizer=None),),
            optimizers=(replace(SGD, foreign_shapes=("8×8",)),),
        ),
        lambda: training(optimizers=(replace(SGD, foreign_shapes=("8×8",)),)),
    ),
    "not-in-optimizer": Pair(
        lambda: training(parameters=(weight(), weight("new", optimizer=None))),
        lambda: training(parameters=(weight(), weight("new", optimizer=None, with_gradient=0))),
    ),
    "frozen": Pair(
        lambda: training(parameters=(weight(), weight("old", requires_grad=False))),
        lambda: training(),
    ),
    "lr-zero": Pair(lambda: lr(*[0.1] * 10, *[0.0] * 10), lambda: lr(*[0.1] * 18, 0.0, 0.0)),
    "lr-too-low": Pair(lambda: updates(*[1e-9] * 8), lambda: updates(*[1e-9] * 8, loss=FALLING)),
    "clipped-to-nothing": Pair(
        lambda: training(
            _CLIPPED, loss=STUCK, parameters=(weight(updates=over_steps(*[1e-8] * 8)),)
        ),
        lambda: training(
            _CLIPPED, loss=STUCK, parameters=(weight(updates=over_steps(*[1e-8] * 8)),), batches=1
        ),
    ),
    "lr-too-high": Pair(
        lambda: updates(*[0.8] * 8, loss=_RISING), lambda: updates(*[0.8] * 8, loss=FALLING)
    ),
    "weight-decay-too-strong": Pair(
        lambda: weights(1.0, 0.01, optimizers=(replace(SGD, weight_decay=(0.1,)),)),
        lambda: weights(1.0, 0.5, optimizers=(replace(SGD, weight_decay=(0.1,)),)),
    ),
    "scaler-skips": Pair(
        lambda: training(scales=over_steps(*[2.0**at for at in range(20, 0, -1)])),
        lambda: training(scales=over_steps(*[2.0**at for at in range(20, 15, -1)], *[2.0**15] * 9)),
    ),
    "optimizer-not-stepped": Pair(
        lambda: training(lr=Track()), lambda: training(lr=Track(), optimizers=())
    ),
    "lost-updates": Pair(lambda: still(0.0), lambda: still(1e-4)),
    "gradient-accumulates": Pair(
        lambda: training(stale_gradients=over_steps(*[1.0] * 10)),
        lambda: training(stale_gradients=over_steps(*[1.0, 0.0] * 5)),
    ),
    "no-gradient": Pair(
        lambda: modules(
            parameters=(weight("head.weight"), weight(with_gradient=0, without_gradient=4)),
            gradient_stops=(GradientStop(path="", function="detach"),),
        ),
        lambda: training(
            parameters=(weight("head.weight"), weight(with_gradient=0, without_gradient=4))
        ),
    ),
    "gradient-cleared": Pair(
        lambda: modules(
            parameters=(weight(with_gradient=0, without_gradient=4),),
            series={("fc", "output.grad"): sizes(*[1.0] * 5)},
        ),
        lambda: modules(series={("fc", "output.grad"): sizes(*[1.0] * 5)}),
    ),
    "vanishing-gradient": Pair(lambda: layers(10.0), lambda: layers(2.0)),
    "exploding-gradient": Pair(lambda: layers(0.1), lambda: layers(0.5)),
    "eval-mode": Pair(
        lambda: modules(
            ModuleFacts(path="norm", name="BatchNorm1d"), modes=over_steps(*[0.0] * STEPS)
        ),
        lambda: modules(
            ModuleFacts(path="old.norm", name="BatchNorm1d"),
            modes=over_steps(*[0.0] * STEPS),
            parameters=(weight(), weight("old.norm.weight", requires_grad=False)),
        ),
    ),
    "tiny-batch-norm": Pair(
        lambda: training(probes=(probe("batch size", *[2.0] * 5, function="batch_norm"),)),
        lambda: training(probes=(probe("batch size", *[16.0] * 4, 2.0, function="batch_norm"),)),
    ),
    "batch-norm-drift": Pair(
        lambda: training(probes=(probe("running drift", *[3.0] * 12, function="batch_norm"),)),
        lambda: training(
            probes=(probe("running drift", 3, 2, 1, *[0.2] * 9, function="batch_norm"),)
        ),
    ),
    "train-eval-gap": Pair(
        lambda: training(active_dropouts=(OpSite(path="", function="dropout"),)),
        lambda: training(),
    ),
    "not-frozen": Pair(
        lambda: modules(ModuleFacts(path="", name="Net", frozen_by="frozen_stages=2")),
        lambda: modules(
            ModuleFacts(path="", name="Net", frozen_by="frozen_stages=2"),
            parameters=(weight(), weight("old", requires_grad=False)),
        ),
    ),
    "unregistered-module": Pair(
        lambda: modules(
            ModuleFacts(path="layers.0", name="Linear", has_parameters=True, is_registered=False)
        ),
        lambda: modules(ModuleFacts(path="act", name="ReLU", is_registered=False)),
    ),
    "module-never-called": Pair(
        lambda: modules(
            ModuleFacts(path="aux", name="Linear", has_parameters=True),
            parameters=(weight(), weight("aux.weight", with_gradient=0)),
        ),
        lambda: modules(
            ModuleFacts(path="aux", name="Linear", has_parameters=True),
            parameters=(weight(), weight("aux.weight")),
        ),
    ),
    "shared-module": Pair(
        lambda: modules(
            ModuleFacts(path="layers.0", name="Linear", other_paths=("layers.1", "layers.2")),
            parameters=(weight("layers.0.weight"),),
        ),
        lambda: modules(
            ModuleFacts(path="encoder", name="Linear", other_paths=("decoder",)),
            parameters=(weight("encoder.weight"),),
        ),
    ),
    "untied-weights": Pair(
        lambda: training(
            parameters=(
                weight("embed.weight", shape=(8, 4)),
                weight("head.weight", shape=(4, 8), same_values_as="embed.weight"),
            )
        ),
        lambda: training(
            parameters=(
                weight("layers.0.weight"),
                weight("layers.1.weight", same_values_as="layers.0.weight"),
            )
        ),
    ),
    "labels-out-of-range": Pair(
        lambda: stopped("Target 5 is out of bounds."), lambda: stopped("index 5 of my list")
    ),
    "index-out-of-range": Pair(
        lambda: stopped("index out of range in self"), lambda: stopped("list index out of range")
    ),
    "two-devices": Pair(
        lambda: stopped("Expected all tensors to be on the same device, but found two"),
        lambda: stopped("Expected all tensors to have the same shape"),
    ),
    "out-of-memory": Pair(
        lambda: stopped("CUDA out of memory. Tried to allocate 2 GB"),
        lambda: stopped("memory format is not supported"),
    ),
    "dtype-mix": Pair(
        lambda: training(parameters=(weight(), weight("head", dtype="float64", shape=(2, 2)))),
        lambda: training(parameters=(weight(), weight("count", dtype="int64", shape=(2, 2)))),
    ),
}


def labelled(*loss: float) -> TrainingView:
    """A binary cross entropy that is the whole loss."""
    return losses(
        LossFacts(function="BinaryCrossEntropyWithLogitsBackward0", is_whole=True), loss=loss
    )


def zeros(*, first: bool) -> TrainingView:
    """Two weights that are multiplied: the second is 0 and stays 0 if the first is 0, too."""
    nothing, some = sizes(*[0.0] * 5), sizes(*[0.1] * 5)
    return training(
        {
            ("down", "weight"): nothing if first else some,
            ("down", "weight.grad"): nothing,
            ("up", "weight"): nothing,
            ("up", "weight.grad"): nothing if first else some,
        },
        parameters=(weight("down.weight"), weight("up.weight")),
    )


def rarely(*values: float) -> TrainingView:
    """A head that has no gradient at the recorded steps, and its weight at these steps."""
    return training(
        {("head", "weight"): sizes(*values), ("head", "output"): sizes(*[1.0] * len(values))},
        parameters=(weight(), weight("head.weight", with_gradient=0, without_gradient=5)),
    )


def recurrent(first: float, **facts: Any) -> TrainingView:
    """SGD whose first update is so large, in a training that is lost within a few steps."""
    return updates(first, 1e6, 1e9, loss=[2.0, 2e6, 3e9, 4e9], **facts)


def clipped(*norms: float) -> TrainingView:
    """Gradients of these sizes, a loss that does not fall, and updates that change nothing."""
    parameters = (weight(updates=over_steps(*[1e-8] * 4)),)
    return training({("fc", "weight.grad"): sizes(*norms)}, loss=STUCK, parameters=parameters)


def put_back(left: float, loss: Sequence[float] = STUCK) -> TrainingView:
    """A weight of whose updates so much is left at the next one."""
    return training(loss=loss, parameters=(weight(kept=over_steps(left, left, left)),))


def norm(momentum: float, **facts: Any) -> TrainingView:
    """A batch norm that was called eight times."""
    return modules(
        ModuleFacts(path="norm", name="BatchNorm2d", calls=8, momentum=momentum, **facts)
    )


def distilled(name: str = "teacher", **facts: Any) -> TrainingView:
    """A student and its teacher, with what is said of the teacher's weight."""
    return training(parameters=(weight("student.weight"), weight(f"{name}.weight", **facts)))


def softmax_output(least: float, largest: float) -> TrainingView:
    """A model that ends in a softmax with these values, the same for all samples."""
    rows = [[8, least, largest, (least + largest) / 2, largest - least, 0, 0]] * 5
    return training(
        {("", "input.0"): sizes(*[1.0] * 5), ("out", "output"): rows},
        model=make.model({"children": {"out": {"class": "Softmax"}}}),
        probes=(probe("batch variation", *[0.0 if least == largest else 0.5] * 5, path="out"),),
    )


_ZERO_GROUP = replace(SGD, lr=(0.1, 0.0))
_JUMPING = [2.0, *[8.0 - 0.2 * step for step in range(38)]]
_ONE_BUMP = [2.0, *[8.0 * 0.6**step for step in range(38)]]

MORE: list[tuple[str, Pair]] = [
    # Two recorded steps prove that gradients are clipped if their norms are equal.
    ("clipped-to-nothing", Pair(lambda: clipped(1e-6, 1e-6), lambda: clipped(1e-6, 1.02e-6))),
    # The weights are put back after each update; they stay where it has moved them.
    ("lost-updates", Pair(lambda: put_back(0.001), lambda: put_back(1.0))),
    # A step of an inner loop is undone, and the loss falls.
    ("lost-updates", Pair(lambda: put_back(0.001), lambda: put_back(0.001, loss=FALLING))),
    ("batch-norm-drift", Pair(lambda: norm(0.99), lambda: norm(0.1))),
    # Only a forward in training mode changes the running statistics.
    ("batch-norm-drift", Pair(lambda: norm(1.0), lambda: norm(1.0, eval_calls=8))),
    ("not-frozen", Pair(lambda: distilled(), lambda: distilled(requires_grad=False))),
    # The projection of what a teacher says is trained.
    ("not-frozen", Pair(lambda: distilled("ema_model"), lambda: distilled("teacher_projector"))),
    # A teacher that is trained on labels at the same time has an optimizer of its own.
    ("not-frozen", Pair(lambda: distilled(), lambda: distilled(optimizer=1))),
    (
        "dtype-mix",
        Pair(lambda: training(parameters=(weight(dtype="float64"),)), lambda: training()),
    ),
    ("constant-output", Pair(lambda: softmax_output(1.0, 1.0), lambda: softmax_output(0.1, 0.9))),
    (
        "labels-out-of-range",
        # Labels of -1 and 1; a loss with a minus sign.
        Pair(
            lambda: labelled(0.7, *[0.4 - 0.1 * step for step in range(30)]),
            lambda: labelled(-0.7, *[-0.8 - 0.1 * step for step in range(30)]),
        ),
    ),
    (
        "nll-without-log-softmax",
        Pair(
            lambda: before("SoftmaxBackward0", "AddmmBackward0", function="KlDiv"),
            lambda: before("LogSoftmaxBackward0", "AddmmBackward0", function="KlDiv"),
        ),
    ),
    ("identical-units", Pair(lambda: zeros(first=True), lambda: zeros(first=False))),
    ("no-gradient", Pair(lambda: rarely(1.0, 1.0, 1.0), lambda: rarely(1.0, 1.0, 1.1))),
    (
        "exploding-gradient",
        Pair(lambda: recurrent(1e5), lambda: recurrent(1.0)),
    ),
    (
        "lr-too-high",
        # A loss that is above its start for most of the training; a bump at the start.
        Pair(
            lambda: updates(*[0.3] * 8, loss=_JUMPING), lambda: updates(*[0.3] * 8, loss=_ONE_BUMP)
        ),
    ),
    ("lr-too-high", Pair(lambda: recurrent(1.0), lambda: recurrent(1e5))),
    # A loss that is above its start for half of the time, and has gained little or much at the end.
    (
        "lr-too-high",
        Pair(
            lambda: updates(*[0.3] * 8, loss=[2.0, *[4.5] * 18, *[1.8] * 20]),
            lambda: updates(*[0.3] * 8, loss=[2.0, *[4.5] * 18, *[1.2] * 20]),
        ),
    ),
    (
        "lr-zero",
        Pair(
            lambda: training(
                optimizers=(_ZERO_GROUP,),
                parameters=(weight(), weight("head.weight", updates=over_steps(0, 0, 0, 0))),
            ),
            lambda: training(optimizers=(_ZERO_GROUP,), parameters=(weight(),)),
        ),
    ),
    (
        "inputs-not-normalized",
        Pair(
            lambda: inputs(1.0, 1.0, 1.0, 400.0, 1.0, 1.0),
            lambda: inputs(1.0, 1.0, 1.0, 19.0, 1.0, 1.0),
        ),
    ),
]


def kinds(view: TrainingView, kind: str) -> list[str]:
    return [one.kind for one in RULES[kind].check(view)]


def test_every_rule_has_a_positive_and_a_negative_example() -> None:
    ours = {kind for kind, rule in all_rules().items() if rule.family != "own"}

    assert set(PAIRS) == ours


@pytest.mark.parametrize("kind", list(PAIRS))
def test_a_rule_names_its_problem(kind: str) -> None:
    (found, *_) = [one for one in RULES[kind].check(PAIRS[kind].sick()) if one.kind == kind]

    assert found.first_step is not None
    assert found.remedy or RULES[kind].remedy
    assert 0 < found.confidence <= 1


@pytest.mark.parametrize("kind", list(PAIRS))
def test_a_rule_has_no_false_positive_on_similar_training(kind: str) -> None:
    assert kind not in kinds(PAIRS[kind].healthy(), kind)


@pytest.mark.parametrize(("kind", "pair"), MORE)
def test_a_rule_tells_further_trainings_from_those_that_look_like_them(
    kind: str, pair: Pair
) -> None:
    assert kind in kinds(pair.sick(), kind)
    assert kind not in kinds(pair.healthy(), kind)


def test_inputs_that_become_large_are_large_since_that_step() -> None:
    (found,) = RULES["inputs-not-normalized"].check(inputs(*[1.0] * 4, *[500.0] * 8))

    assert found.first_step == 4
    assert "since step 4" in found.message


def test_an_input_of_zeros_is_called_so_and_not_samples_that_are_the_same() -> None:
    same = probe("different samples", *[0.0] * 5, path="", function="input")
    view = inputs(*[0.0] * 5)
    view.facts = replace(view.facts, probes=(same,))

    assert kinds(view, "zero-input") == ["zero-input"]


def test_a_cause_of_nan_is_as_severe_as_nan() -> None:
    lost = Finding(severity="error", kind="nan", message="`loss` is NaN", step=3, first_step=3)
    view = inputs(*[70.0] * 5, mean=120)
    view.findings = (lost,)

    (found,) = [one for one in conclude(view) if one.severity != "info"]

    assert (found.kind, found.severity) == ("inputs-not-normalized", "error")
    assert found.consequences == ("`loss` is NaN",)


def test_an_optimizer_of_the_wrong_part_is_one_finding() -> None:
    view = training(
        {("teacher", "output"): sizes(*[1.0] * 5)},
        parameters=(
            weight("student.weight", optimizer=None),
            weight("teacher.weight", with_gradient=0, without_gradient=5),
        ),
    )

    (found,) = [one for one in conclude(view) if one.severity != "info"]

    assert (found.kind, found.path) == ("not-in-optimizer", "student")
    assert "`teacher.weight` instead" in found.message


def test_every_finding_says_what_to_do() -> None:
    vanished = Finding(severity="warning", kind="vanishing-gradient", message="Almost none", step=3)
    view = training()
    view.findings = (vanished,)

    (found,) = conclude(view)

    assert "normalization" in found.remedy


def test_a_rounded_value_is_named_as_the_place_where_gradients_are_zero() -> None:
    lost = Finding(severity="warning", kind="no-gradient", message="No gradient", path="encoder")
    rounded = GradientStop(
        path="", function="round", source=SourceLine(file="net.py", line=7, function="forward")
    )
    view = training(gradient_stops=(rounded,))
    view.findings = (lost,)

    (found,) = conclude(view)

    assert "`round` stops it at net.py:7" in found.message
    assert ".detach()" in found.remedy


@pytest.mark.parametrize(("steps", "severity"), [(30, "info"), (90, "warning")])
def test_a_loss_stuck_at_chance_level_is_a_warning_after_many_steps(
    steps: int, severity: str
) -> None:
    chance = float(np.log(8))
    noise = np.random.default_rng(0).normal(0, 0.02, steps)
    loss = [chance + 0.6 * 0.6**step + noise[step] for step in range(steps)]

    (found,) = RULES["loss-plateau"].check(
        losses(replace(CROSS_ENTROPY, input_shape=(8, 8)), loss=loss)
    )

    assert found.severity == severity


def test_a_loss_that_is_maximized_has_the_sign_as_its_remedy_and_not_the_learning_rate() -> None:
    (found,) = RULES["loss-diverges"].check(
        training(loss=_RISING, optimizers=(replace(SGD, is_maximizing=True),))
    )

    assert "maximize=True" in found.message
    assert found.remedy.startswith("Remove maximize=True")


def test_a_loss_made_of_numbers_is_told_from_an_output_that_is_not_used() -> None:
    lost = weight(with_gradient=0, without_gradient=5)
    (of_all,) = RULES["no-gradient"].check(
        training({("fc", "output"): sizes(*[1.0] * 5)}, parameters=(lost,))
    )
    (of_one,) = RULES["no-gradient"].check(
        training({("fc", "output"): sizes(*[1.0] * 5)}, parameters=(lost, weight("head.weight")))
    )

    assert ".item()" in of_all.remedy
    assert "Use its output" in of_one.remedy


def in_backward(*series: str) -> TrainingView:
    """A training in which the gradients at these places become NaN at one step."""
    view = training()
    view.findings = tuple(
        Finding(
            severity="error",
            kind="nan",
            message=f"`{name}` is NaN",
            path=name.rpartition(".output")[0],
            series=name,
            phase="backward",
            first_step=7,
        )
        for name in series
    )
    return view


def test_a_gradient_that_comes_as_nan_to_the_model_began_in_the_loss() -> None:
    (found,) = conclude(in_backward("fc.output.grad", "output.grad"))

    assert (found.kind, found.path, found.first_step) == ("nan", "", 7)
    assert "began in the loss" in found.message
    assert "epsilon" in found.remedy


def test_a_gradient_that_becomes_nan_inside_of_the_model_is_named_there() -> None:
    (found,) = conclude(in_backward("fc.output.grad"))

    assert found.path == "fc"
    assert "began in the loss" not in found.message


def test_a_remedy_is_code_that_runs_also_for_modules_with_numbers() -> None:
    (found,) = RULES["frozen"].check(
        training(parameters=(weight(), weight("blocks.3.fc.weight", requires_grad=False)))
    )

    assert "model.blocks[3].fc.requires_grad_(True)" in found.remedy

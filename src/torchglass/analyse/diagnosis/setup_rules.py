"""Rules about the set-up: modes, modules, the loss function and the data."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import numpy as np

from torchglass.analyse.diagnosis.optimizer_rules import common_path
from torchglass.analyse.diagnosis.rule import DAMAGE, finding, named, rule, share, short
from torchglass.analyse.diagnosis.training_view import SeriesTrack, TrainingView, lasting
from torchglass.records.findings import Finding
from torchglass.records.training import LossFacts

_MODE_DEPENDENT = ("Dropout", "BatchNorm")
_VIEWS = (
    *("View", "Reshape", "UnsafeView", "Squeeze", "Unsqueeze", "Permute", "Transpose", "TBackward"),
    *("Slice", "Select", "Expand", "ToCopy", "Clone", "Alias", "Index"),
)
"""The autograd nodes of operations that move values and do not change them."""
_REGRESSION = ("MseLoss", "SmoothL1Loss", "HuberLoss", "Abs", "Pow")


def _before(loss: LossFacts, skip: tuple[str, ...] = ()) -> str:
    """The operation whose result a loss function gets."""
    return next((name for name in loss.before if not name.startswith((*_VIEWS, *skip))), "")


@rule(
    "eval-mode",
    family="set-up",
    title="The model is trained in eval mode",
)
def eval_mode(view: TrainingView) -> Iterator[Finding]:
    """The optimizer steps, but every forward runs in eval mode: no dropout, batch norm is fixed."""
    since = lasting(view.facts.modes, lambda mode: mode == 0, least=3)
    if since is None:
        return
    affected = [
        one for one in view.facts.modules if any(kind in one.name for kind in _MODE_DEPENDENT)
    ]
    yield finding(
        "eval-mode",
        f"The model is trained in eval mode since step {since}"
        + (
            f": {len(affected)} modules behave differently, first {named(affected[0].path)}"
            if affected
            else ""
        ),
        severity="warning" if affected else "info",
        first_step=since,
        last_step=view.facts.modes.steps[-1],
        evidence={"affected": [one.path for one in affected[:20]]},
        remedy="Call model.train() before the training loop, and again after each evaluation",
    )


@rule(
    "tiny-batch-norm",
    family="set-up",
    title="Batch norm with a tiny batch",
    explains=("loss-plateau",),
)
def tiny_batch_norm(view: TrainingView) -> Iterator[Finding]:
    """A batch norm computes its statistics from one or two samples."""
    tiny = [
        probe
        for probe in view.probes("batch size")
        if lasting(probe.track, lambda value: value <= 2) is not None
    ]
    if tiny:
        size = int(tiny[0].track.values[-1])
        yield finding(
            "tiny-batch-norm",
            f"Batch norm gets batches of {size}: the statistics of {named(tiny[0].path)}"
            f"{f' and {len(tiny) - 1} more' if len(tiny) > 1 else ''} are noise",
            path=tiny[0].path,
            first_step=tiny[0].track.steps[0],
            evidence={"batch": size, "expected": "16 or more"},
            remedy="Use nn.GroupNorm or nn.LayerNorm, or larger batches",
        )


@rule(
    "batch-norm-drift",
    family="set-up",
    title="The running statistics of a batch norm do not follow its batches",
)
def batch_norm_drift(view: TrainingView) -> Iterator[Finding]:
    """The running variance stays far from the variance of the batches: eval mode will differ."""
    for probe in view.probes("running drift"):
        since = lasting(probe.track, lambda value: value > 1.5, least=4)
        if since is None or probe.track.steps[-1] < 30:
            continue
        factor = math.exp(probe.track.values[-1])
        yield finding(
            "batch-norm-drift",
            f"The running variance of {named(probe.path)} is {factor:.0f} times off that of its "
            "batches: the model will behave differently in eval mode",
            path=probe.path,
            first_step=since,
            last_step=probe.track.steps[-1],
            evidence={"factor": factor, "expected": 1},
            remedy="Check momentum (0.1 by default) and track_running_stats of the batch norm",
        )
        return


@rule(
    "unregistered-module",
    family="set-up",
    title="Modules that the model does not know",
    explains=("loss-plateau",),
)
def unregistered_module(view: TrainingView) -> Iterator[Finding]:
    """A module with weights is called but not registered, so no optimizer gets its weights."""
    strays = [one for one in view.facts.modules if not one.is_registered and one.has_parameters]
    if strays:
        more = f" and {len(strays) - 1} more are" if len(strays) > 1 else " is"
        yield finding(
            "unregistered-module",
            f"A {strays[0].name} in {named(strays[0].path.rpartition('.')[0])}{more} called but "
            "not registered: parameters(), to() and state_dict() leave them out",
            path=strays[0].path.rpartition(".")[0],
            first_step=0,
            evidence={"modules": [f"{one.path} ({one.name})" for one in strays[:20]]},
            remedy="Keep them in nn.ModuleList or nn.ModuleDict instead of a list or dict",
        )


@rule(
    "softmax-before-cross-entropy",
    "nll-without-log-softmax",
    family="set-up",
    title="Softmax before cross entropy",
    explains=("loss-plateau", "saturated"),
)
def softmax_before_cross_entropy(view: TrainingView) -> Iterator[Finding]:
    """cross_entropy takes logits and applies log_softmax itself; it is given probabilities."""
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
                "nll_loss takes log-probabilities, and is given something else",
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
    """binary_cross_entropy_with_logits applies a sigmoid itself; it is given probabilities."""
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
    title="A ReLU cuts the output of a regression",
    explains=("dead-units", "loss-plateau", "constant-output"),
)
def relu_on_output(view: TrainingView) -> Iterator[Finding]:
    """The loss asks for negative values, which a ReLU at the end of the model cannot give."""
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


@rule(
    "module-never-called",
    family="set-up",
    title="A module is never called",
)
def module_never_called(view: TrainingView) -> Iterator[Finding]:
    """A module with parameters to train takes no part in the forward."""
    if not view.facts.updates or not any(one.calls for one in view.facts.modules):
        return
    used = {one.name.rpartition(".")[0] for one in view.facts.parameters if one.with_gradient}
    trained = {one.name.rpartition(".")[0] for one in view.facts.parameters if one.requires_grad}
    called = {one.path for one in view.facts.modules if one.calls}
    called |= {path for path, name in view.series if name in ("output", "output.0")}
    unused = [
        one.path
        for one in view.facts.modules
        if one.has_parameters
        and one.path in trained
        and not any(place in called for place in (one.path, *one.other_paths))
        and one.path not in used
        and not _is_expert(one.path)
        and not _has_moved(view, one.path)
    ]
    if unused:
        path = unused[0] if len(unused) == 1 else common_path([f"{one}.x" for one in unused])
        others = f" and {len(unused) - 1} more modules are" if len(unused) > 1 else " is"
        yield finding(
            "module-never-called",
            f"{named(unused[0])}{others} never called, so nothing is learned there",
            path=path or unused[0],
            first_step=0,
            evidence={"modules": unused[:20]},
            remedy=f"Call it in forward, or remove it: del model.{unused[0]}",
        )


def _has_moved(view: TrainingView, path: str) -> bool:
    """Whether weights of a module changed: it was then called in steps that were not recorded."""
    own = [one for one in view.facts.parameters if one.name.rpartition(".")[0] == path]
    tracks = [track for one in own if (track := view.track(one)) is not None and len(track) > 1]
    return any(track.size[0] != track.size[-1] for track in tracks)


def _is_expert(path: str) -> bool:
    return "expert" in path.lower()


@rule(
    "shared-module",
    family="set-up",
    title="One module stands at several places of a list",
)
def shared_module(view: TrainingView) -> Iterator[Finding]:
    """`[layer] * 12` makes twelve references to one layer, not twelve layers."""
    with_parameters = {one.name.rpartition(".")[0] for one in view.facts.parameters}
    for one in view.facts.modules:
        places = (one.path, *one.other_paths)
        parents = {path.rpartition(".")[0] for path in places}
        inside = any(
            path == one.path or path.startswith(f"{one.path}.") for path in with_parameters
        )
        if len(places) < 2 or len(parents) > 1 or not inside or not one.path:
            continue
        if all(path.rpartition(".")[2].isdigit() for path in places):
            parent = next(iter(parents))
            yield finding(
                "shared-module",
                f"{named(parent)} holds one {one.name} at {len(places)} places: they share all "
                "weights",
                path=parent,
                first_step=0,
                evidence={"places": list(places[:20])},
                remedy=f"Make each one anew: nn.ModuleList([{one.name}(…) for _ in "
                f"range({len(places)})])",
            )
            return


@rule(
    "untied-weights",
    family="set-up",
    title="Weights that were tied are separate",
)
def untied_weights(view: TrainingView) -> Iterator[Finding]:
    """An embedding and an output layer began with the same values, but are two parameters."""
    for one in view.facts.parameters:
        if not one.same_values_as:
            continue
        kinds = {view.kind(name.rpartition(".")[0]) for name in (one.name, one.same_values_as)}
        shapes = {part.name: part.shape for part in view.facts.parameters}
        is_transposed = one.shape != shapes.get(one.same_values_as)
        is_head = is_transposed or ("Embedding" in kinds and len(kinds) > 1)
        if is_head or not _are_copies_of_a_block(one.name, one.same_values_as):
            yield finding(
                "untied-weights",
                severity="warning" if is_head else "info",
                message=f"{named(one.name)} began with the values of "
                f"{named(one.same_values_as)}, but they are trained apart: the tie is lost",
                path=one.name.rpartition(".")[0],
                series=one.name,
                first_step=0,
                evidence={"same at first": one.same_values_as},
                remedy="Tie them again after loading: "
                f"model.{one.name} = model.{one.same_values_as}",
            )


def _are_copies_of_a_block(one: str, other: str) -> bool:
    """Whether two parameters are the same part of two copies: of a layer, or of a whole network."""
    numbers = re.compile(r"\d+")
    is_same_layer = numbers.sub("#", one) == numbers.sub("#", other)
    return is_same_layer or one.partition(".")[2] == other.partition(".")[2]


def _inputs(view: TrainingView) -> Iterator[tuple[SeriesTrack, str]]:
    """The inputs of the model, and the dtype of each."""
    tracks = [
        track
        for (path, name), track in view.series.items()
        if not path and name.startswith("input") and ".grad" not in name
    ]
    dtypes = view.facts.input_dtypes
    for at, track in enumerate(tracks):
        yield track, dtypes[at] if at < len(dtypes) else "float32"


@rule(
    "inputs-not-normalised",
    family="set-up",
    title="Inputs are not normalised",
    explains=(*DAMAGE, "lr-too-high"),
)
def inputs_not_normalised(view: TrainingView) -> Iterator[Finding]:
    """The input has values far from 0 ± 1, and no normalisation comes first."""
    first = next((track.path for track in view.outputs), "")
    if view.is_norm(first):
        return
    for track, dtype in _inputs(view):
        if not dtype.startswith(("float", "bfloat")) or len(track) < 2:
            continue
        size = float(np.median(track.size))
        mean, std = float(np.median(track.column("mean"))), float(np.median(track.column("std")))
        if std > 0 and (size > 20 or (abs(mean) > 10 * std and abs(mean) > 10)):
            yield finding(
                "inputs-not-normalised",
                f"`{track.name}` is not normalised: mean {short(mean)}, standard deviation "
                f"{short(std)} (expected: about 0 and 1)",
                series=track.label,
                first_step=int(track.steps[0]),
                last_step=int(track.steps[-1]),
                evidence={"mean": mean, "std": std, "expected": "0 ± 1"},
                remedy=f"x = (x - {short(mean)}) / {short(std)}",
            )
            return


@rule(
    "constant-input",
    "zero-input",
    family="set-up",
    title="The input is constant",
    explains=(
        "loss-plateau",
        "constant-output",
        "representation-collapse",
        "dead-units",
        "no-gradient",
        "vanishing-gradient",
    ),
)
def constant_input(view: TrainingView) -> Iterator[Finding]:
    """All values of the input are the same at every step."""
    same = next(iter(view.probes("different samples")), None)
    if same is not None and lasting(same.track, lambda value: value == 0, least=3) is not None:
        yield finding(
            "constant-input",
            "All samples of a batch are the same",
            severity="warning",
            series="input.0",
            first_step=same.track.steps[0],
            last_step=same.track.steps[-1],
            evidence={"different samples": 0.0},
            remedy="Check how batches are made: every sample is the first one",
        )
        return
    yield from _children_without_input(view)
    for track, dtype in list(_inputs(view))[:1]:
        low, high = track.column("min"), track.column("max")
        if len(track) < 2 or track.column("count").max() < 2 or not (low == high).all():
            continue
        is_zero = not low.any() and dtype.startswith(("float", "bfloat"))
        yield finding(
            "zero-input" if is_zero else "constant-input",
            "The input is all zeros at every step"
            if is_zero
            else f"The input is {short(float(low[-1]))} everywhere, at every step",
            severity="warning",
            series=track.label,
            first_step=int(track.steps[0]),
            last_step=int(track.steps[-1]),
            evidence={"min": float(low[-1]), "max": float(high[-1])},
            remedy="Check how batches are read and transformed",
        )


def _children_without_input(view: TrainingView) -> Iterator[Finding]:
    """Parts of the model with weights that are given an input of the model that is all zeros."""
    inputs = [track for track, dtype in _inputs(view) if dtype.startswith(("float", "bfloat"))]
    sizes = {int(track.column("count")[-1]) for track in inputs if _is_all_zero(track)}
    for (path, name), track in view.series.items():
        is_child = path and "." not in path and name == "input.0" and not track.is_number
        if not is_child or not _is_all_zero(track) or int(track.column("count")[-1]) not in sizes:
            continue
        if any(one.name.startswith(f"{path}.") for one in view.weights):
            yield finding(
                "zero-input",
                f"{named(path)} is given all zeros at every step",
                path=path,
                series=track.label,
                first_step=int(track.steps[0]),
                last_step=int(track.steps[-1]),
                evidence={"min": 0.0, "max": 0.0},
                remedy="Check what is passed to it",
            )
            return


def _is_all_zero(track: SeriesTrack) -> bool:
    return len(track) > 2 and not track.column("min").any() and not track.column("max").any()


_MESSAGES = (
    (
        "labels-out-of-range",
        ("is out of bounds", "n_classes` failed", "class values must be smaller"),
        "A label is outside of the classes",
        "Labels go from 0 to the number of classes − 1",
    ),
    (
        "index-out-of-range",
        ("index out of range in self", "srcIndex < srcSelectDimSize"),
        "An index is outside of an embedding",
        "Give the embedding as many rows as there are tokens",
    ),
    (
        "two-devices",
        ("Expected all tensors to be on the same device",),
        "Tensors are on two devices",
        "Move the batch: x = x.to(next(model.parameters()).device)",
    ),
    (
        "no-gradient",
        ("does not require grad and does not have a grad_fn",),
        "No parameter of the loss requires a gradient",
        "Check requires_grad, torch.no_grad() and detach() on the way to the loss",
    ),
    (
        "out-of-memory",
        ("out of memory",),
        "The training ran out of memory",
        "Use smaller batches, checkpointing or bfloat16; tg.memory(model, batch) shows more",
    ),
)


@rule(
    *("labels-out-of-range", "index-out-of-range", "two-devices", "out-of-memory"),
    family="set-up",
    title="The training was stopped by an exception",
)
def stopped_by_exception(view: TrainingView) -> Iterator[Finding]:
    """The message of the exception that stopped a training tells what was wrong."""
    if view.status is None or not view.status.error:
        return
    for kind, patterns, message, remedy in _MESSAGES:
        if any(pattern in view.status.message for pattern in patterns):
            yield finding(
                kind,
                f"{message}: {view.status.message}",
                severity="error",
                first_step=max(0, view.status.step),
                evidence={"exception": view.status.error, "message": view.status.message},
                remedy=remedy,
            )
            return


@rule(
    "dtype-mix",
    family="set-up",
    title="Parameters have different dtypes",
)
def dtype_mix(view: TrainingView) -> Iterator[Finding]:
    """Some parameters have another floating-point dtype than the rest."""
    if view.facts.upcasts and not view.is_mixed:
        first = view.facts.upcasts[0]
        line = f" ({first.source.file}:{first.source.line})" if first.source else ""
        yield finding(
            "dtype-mix",
            f"`{first.function}` in {named(first.path)} turns half precision into float32{line}",
            severity="info",
            path=first.path,
            source=first.source,
            op=first.function,
            first_step=0,
            evidence={"operations": len(view.facts.upcasts)},
            remedy="Convert the other operand: buffers and constants keep their own dtype",
        )
        return
    sizes: dict[str, int] = {}
    for one in view.facts.parameters:
        if one.dtype.startswith(("float", "bfloat")):
            sizes[one.dtype] = sizes.get(one.dtype, 0) + math.prod(one.shape)
    if len(sizes) < 2:
        return
    usual = max(sizes, key=sizes.__getitem__)
    others = [one for one in view.facts.parameters if one.dtype != usual and one.dtype in sizes]
    is_double = any(one.dtype == "float64" for one in others) or usual == "float64"
    path = common_path([one.name for one in others])
    yield finding(
        "dtype-mix",
        f"{named(others[0].name)}{f' and {len(others) - 1} more' if len(others) > 1 else ''} "
        f"{'are' if len(others) > 1 else 'is'} {others[0].dtype}, the model is {usual}",
        severity="warning" if is_double else "info",
        path=path,
        series=others[0].name,
        first_step=0,
        evidence={"dtype": others[0].dtype, "expected": usual},
        remedy=f"model.to(torch.{usual})",
    )

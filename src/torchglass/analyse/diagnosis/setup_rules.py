"""Rules about the set-up: modes, modules, precision, and what an exception tells."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

import numpy as np

from torchglass.analyse.diagnosis.optimizer_rules import common_path
from torchglass.analyse.diagnosis.rule import code_of, finding, named, rule, short
from torchglass.analyse.diagnosis.training_view import TrainingView, lasting, parents_of
from torchglass.records.findings import Finding
from torchglass.records.training import ParameterFacts

_NETWORK = "(model|net|network|encoder|backbone)"
_FOLLOWED = re.compile(
    rf"^(teacher(_{_NETWORK})?|ema_{_NETWORK}|{_NETWORK}_ema|momentum_encoder)$", re.IGNORECASE
)
"""Names of networks that others learn from, and that no optimizer should change."""
_MODE_DEPENDENT = ("Dropout", "BatchNorm")


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
    dependent = [
        one for one in view.facts.modules if any(kind in one.name for kind in _MODE_DEPENDENT)
    ]
    affected = [one for one in dependent if not _is_frozen(view, one.path)]
    if dependent and not affected:
        return
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


def _is_frozen(view: TrainingView, path: str) -> bool:
    """Whether a module is in a part without parameters to train, which stays in eval mode."""
    for place in (path, *parents_of(path)):
        inside = f"{place}." if place else ""
        own = [one for one in view.facts.parameters if one.name.startswith(inside)]
        if own:
            return not any(one.requires_grad for one in own)
    return False


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
    """The running statistics are not those of the batches, or those of the last batch alone."""
    yield from _last_batch_alone(view)
    for probe in view.probes("running drift"):
        track = probe.track
        # With the usual momentum, nothing is left of the initial statistics after 20 steps.
        settled = sum(step >= 20 for step in track.steps)
        since = lasting(track, lambda value: value > 1.5, least=max(2, settled))
        if since is None or track.steps[-1] < 30:
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


def _last_batch_alone(view: TrainingView) -> Iterator[Finding]:
    """The momentum is that of other frameworks, where it is the share of the old statistics."""
    modules = [
        one
        for one in view.facts.modules
        if one.momentum is not None and one.momentum >= 0.9 and one.calls > one.eval_calls
    ]
    if not modules:
        return
    first = modules[0]
    more = f" and {len(modules) - 1} more" if len(modules) > 1 else ""
    yield finding(
        "batch-norm-drift",
        f"{named(first.path)}{more} {'have' if more else 'has'} momentum={first.momentum:g}: the "
        "running statistics, which eval mode uses, are those of the last batch",
        path=first.path,
        first_step=0,
        evidence={"momentum": first.momentum, "expected": 0.1, "modules": len(modules)},
        confidence=0.8,
        remedy=f"momentum={max(1 - (first.momentum or 0), 0.01):.2g}: in torch, it is the share of "
        "the new batch (Keras: of the old statistics)",
    )


@rule(
    "train-eval-gap",
    family="set-up",
    title="The model computes different values in eval mode",
)
def train_eval_gap(view: TrainingView) -> Iterator[Finding]:
    """Values are dropped in eval mode, or a layer computes different values in eval mode.

    A batch norm and dropout explain a difference. A layer that does not depend on the mode has
    inputs of the same size in both and must give outputs of the same size.
    """
    if view.facts.active_dropouts:
        first = view.facts.active_dropouts[0]
        line = f" at {first.source.file}:{first.source.line}" if first.source else ""
        call = (
            "dropout_p=0.1 if self.training else 0"
            if "attention" in first.function
            else ("training=self.training")
        )
        yield finding(
            "train-eval-gap",
            f"`{first.function}` in {named(first.path)} drops values in eval mode{line}: two "
            "evaluations of one batch differ",
            path=first.path,
            source=first.source,
            op=first.function,
            first_step=view.facts.eval_step,
            evidence={"operations": len(view.facts.active_dropouts)},
            confidence=0.9,
            remedy=f"Pass {call}",
        )
        return
    yield from _scale_gap(view)


def _scale_gap(view: TrainingView) -> Iterator[Finding]:
    """The first layer whose output changes in size in eval mode, although its input does not."""
    if not _is_near(_eval_ratio(view, "", "input.0"), 1.25):
        return
    for track in view.outputs:
        ratio = _eval_ratio(view, track.path, track.name)
        if ratio is None or _is_near(ratio, 1.25):
            continue
        kind = view.kind(track.path)
        if _is_near(ratio, 3) or not kind.endswith(_SAME_IN_BOTH_MODES):
            return
        step = int(view.series[track.path, f"eval:{track.name}"].steps[0])
        yield finding(
            "train-eval-gap",
            f"{named(track.path)} computes different values in eval mode: its output is "
            f"{short(max(ratio, 1 / ratio))} times {'larger' if ratio > 1 else 'smaller'} than in "
            "training, from inputs of the same size",
            path=track.path,
            series=f"{track.path}.eval:{track.name}",
            first_step=step,
            evidence={"eval / train": ratio, "expected": 1},
            confidence=0.7,
            remedy="Its weights differ between the modes: run a forward in training mode before "
            "the first evaluation, or look at its parametrization (spectral_norm, weight_norm)",
        )
        return


_SAME_IN_BOTH_MODES = ("Linear", "Conv1d", "Conv2d", "Conv3d", "Embedding")


def _is_near(ratio: float | None, factor: float) -> bool:
    return ratio is not None and 1 / factor < ratio < factor


def _eval_ratio(view: TrainingView, path: str, name: str) -> float | None:
    """How large a tensor is in the first evaluation, compared with the training at that step."""
    train, test = view.series.get((path, name)), view.series.get((path, f"eval:{name}"))
    if train is None or test is None or not len(train) or not len(test):
        return None
    at = int(np.abs(train.steps - test.steps[0]).argmin())
    size, usual = float(test.size[0]), float(train.size[at])
    return size / usual if usual > 0 and math.isfinite(size + usual) and size > 0 else None


def _is_trained(one: ParameterFacts) -> bool:
    return bool(one.requires_grad and one.with_gradient and any(one.updates.values))


@rule(
    "not-frozen",
    family="set-up",
    title="A part that should be frozen is trained",
)
def not_frozen(view: TrainingView) -> Iterator[Finding]:
    """A part is trained that its name (`teacher`) or an attribute says is frozen."""
    yield from _trained_teacher(view)
    for module in view.facts.modules:
        if not module.frozen_by:
            continue
        inside = f"{module.path}." if module.path else ""
        own = [one for one in view.facts.parameters if one.name.startswith(inside)]
        if own and all(map(_is_trained, own)):
            yield finding(
                "not-frozen",
                f"{named(module.path) if module.path else 'The model'} has {module.frozen_by}, but "
                f"all its {len(own)} parameters are trained",
                path=module.path,
                series=own[0].name,
                first_step=0,
                evidence={"attribute": module.frozen_by, "trained": len(own)},
                confidence=0.8,
                remedy="Freeze them before the training: part.requires_grad_(False). If the model "
                "does it in train(), call model.train()",
            )
            return


def _trained_teacher(view: TrainingView) -> Iterator[Finding]:
    """A teacher or a moving average is updated by the optimizer of what learns from it."""
    held: dict[str, list[ParameterFacts]] = {}
    for one in view.facts.parameters:
        top = next((part for part in one.name.split(".")[:-1] if _FOLLOWED.search(part)), "")
        held.setdefault(one.name.partition(top)[0] + top if top else "", []).append(one)
    learners = {one.optimizer for one in held.pop("", []) if _is_trained(one)}
    for path, own in held.items():
        if all(_is_trained(one) and one.optimizer in learners for one in own):
            yield finding(
                "not-frozen",
                f"{named(path)} is trained by the same optimizer as what learns from it: all its "
                f"{len(own)} parameters get gradients and updates",
                path=path,
                series=own[0].name,
                first_step=0,
                evidence={"trained": len(own)},
                confidence=0.7,
                remedy=f"{code_of(path)}.requires_grad_(False).eval(), run it in torch.no_grad(), "
                "and leave it out of the optimizer",
            )


@rule(
    "unregistered-module",
    family="set-up",
    title="A module is not registered",
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
        inside = [one.path for one in view.facts.modules if one.path.startswith(f"{path}.")]
        is_all = bool(path) and all(each in unused for each in inside if each in trained)
        others = f" and {len(unused) - 1} more modules are" if len(unused) > 1 else " is"
        yield finding(
            "module-never-called",
            f"{named(unused[0])}{others} never called, so nothing is learned there",
            path=path or unused[0],
            first_step=0,
            evidence={"modules": unused[:20]},
            remedy="Call it in forward, or remove it: del "
            f"{code_of(path if is_all else unused[0])}",
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
    title="One module is in a list several times",
)
def shared_module(view: TrainingView) -> Iterator[Finding]:
    """`[layer] * 12` makes twelve references to one layer, not twelve layers."""
    with_parameters = {one.name.rpartition(".")[0] for one in view.facts.parameters}
    for one in view.facts.modules:
        if not one.other_paths:
            continue
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
                f"{named(parent)} contains the same {one.name} {len(places)} times: they share all "
                "weights",
                path=parent,
                first_step=0,
                evidence={"places": list(places[:20])},
                remedy=f"Create each one separately: nn.ModuleList([{one.name}(…) for _ in "
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
                f"{named(one.same_values_as)}, but they are trained separately: the tie is lost",
                path=one.name.rpartition(".")[0],
                series=one.name,
                first_step=0,
                evidence={"same at first": one.same_values_as},
                remedy="Tie them again after loading: "
                f"{code_of(one.name)} = {code_of(one.same_values_as)}",
            )


def _are_copies_of_a_block(one: str, other: str) -> bool:
    """Whether two parameters are the same part of two copies: of a layer, or of a whole network."""
    numbers = re.compile(r"\d+")
    is_same_layer = numbers.sub("#", one) == numbers.sub("#", other)
    return is_same_layer or one.partition(".")[2] == other.partition(".")[2]


_MESSAGES = (
    (
        "index-out-of-range",
        ("index out of range in self", "srcIndex < srcSelectDimSize"),
        "An index is out of range for an embedding",
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
        "Check requires_grad, torch.no_grad() and detach() on the path to the loss",
    ),
    (
        "out-of-memory",
        ("out of memory",),
        "The training ran out of memory",
        "Use smaller batches, checkpointing or bfloat16; tg.memory(model, batch) shows more",
    ),
)


@rule(
    *("index-out-of-range", "two-devices", "out-of-memory"),
    family="set-up",
    title="The training was stopped by an exception",
)
def stopped_by_exception(view: TrainingView) -> Iterator[Finding]:
    """The message of the exception that stopped a training says what was wrong."""
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
    """A part computes in another precision than the rest, or its parameters have another dtype."""
    if view.facts.islands:
        first = view.facts.islands[0]
        paths = list(dict.fromkeys(one.path for one in view.facts.islands))
        more = f" and {len(paths) - 1} more compute" if len(paths) > 1 else " computes"
        yield finding(
            "dtype-mix",
            f"{named(first.path)}{more} in float32 inside an autocast region to "
            f"{view.facts.autocast} (`{first.function}`)",
            severity="info",
            path=first.path,
            source=first.source,
            op=first.function,
            first_step=0,
            evidence={"modules": paths[:20], "expected": view.facts.autocast},
            remedy="If float32 is not needed there, remove autocast(enabled=False) and .float()",
        )
        return
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
        yield from _all_in_float64(view, sizes)
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


def _all_in_float64(view: TrainingView, sizes: Mapping[str, int]) -> Iterator[Finding]:
    """A tensor from numpy is float64, and models are made so to accept it."""
    if [*sizes] == ["float64"]:
        yield finding(
            "dtype-mix",
            "The whole model computes in float64: twice the memory of float32, and many times "
            "slower on a GPU",
            severity="info",
            series=view.facts.parameters[0].name,
            first_step=0,
            evidence={"dtype": "float64", "expected": "float32"},
            remedy="If it is not needed: model.float(), and torch.from_numpy(x).float() for data",
        )

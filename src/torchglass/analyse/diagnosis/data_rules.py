"""Rules about the data: inputs that are not normalized, constant, repeated or of two sizes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchglass.analyse.diagnosis.rule import DAMAGE, finding, named, rule, share, short
from torchglass.analyse.diagnosis.training_view import SeriesTrack, TrainingView, lasting, median
from torchglass.records.findings import Finding

_FAR = 20.0
"""An input of this size is far from 0 ± 1."""
_REPEATED = 0.3
_FEWEST_BATCHES = 4
_FOR_ALL = ("mask", "position", "pos_", "bias", "query", "prompt", "freq", "rope", "anchor", "grid")
"""Words in the names of inputs that are often the same for every sample."""


def _inputs(view: TrainingView) -> Iterator[tuple[SeriesTrack, str]]:
    """The inputs of the model, and the dtype of each."""
    tracks = [
        track
        for (path, name), track in view.series.items()
        if not path and name.startswith("input") and ".grad" not in name
    ]
    dtypes = {f"input.{one.place}": one.dtype for one in view.facts.inputs}
    for track in tracks:
        yield track, dtypes.get(track.name, "")


def unusual_batch(view: TrainingView, step: int) -> str:
    """What was special about the batch of a step."""
    track = view.series.get(("", "input.0"))
    if track is None or step not in track.steps.tolist():
        return ""
    at = track.steps.tolist().index(step)
    usual = median(track.size)
    if usual > 0 and track.size[at] > 3 * usual:
        return f"; the input of that batch is {track.size[at] / usual:.0f} times as large as usual"
    return ""


@rule(
    "inputs-not-normalized",
    family="set-up",
    title="Inputs are not normalized",
    explains=(*DAMAGE, "lr-too-high"),
)
def inputs_not_normalized(view: TrainingView) -> Iterator[Finding]:
    """The input has values far from 0 ± 1, in all batches or from one on, and no norm is first."""
    first = next((track.path for track in view.outputs), "")
    if view.is_norm(first):
        return
    for track, dtype in _inputs(view):
        if not dtype.startswith(("float", "bfloat")) or len(track) < 2:
            continue
        size = median(track.size)
        mean, std = median(track.column("mean")), median(track.column("std"))
        is_far = std > 0 and (size > _FAR or (abs(mean) > 10 * std and abs(mean) > 10))
        if not is_far or not _reaches_a_layer(view, size):
            yield from _one_large_batch(track)
            continue
        since = _large_since(track)
        said = f"mean {short(mean)}, standard deviation {short(std)}"
        began = int(track.steps[since])
        offset = f"- {short(mean)}" if mean >= 0 else f"+ {short(-mean)}"
        yield finding(
            "inputs-not-normalized",
            f"`{track.name}` is not normalized: {said} (expected: about 0 and 1)"
            if not since
            else f"`{track.name}` is far larger since step {began}: {said}, before that a size of "
            f"{short(median(track.size[:since]))}",
            series=track.label,
            first_step=began,
            last_step=int(track.steps[-1]),
            evidence={"mean": mean, "std": std, "expected": "0 ± 1"},
            remedy=f"x = (x {offset}) / {short(std)}"
            if not since
            else f"Look at the batches since step {began}: x.abs().amax() finds the samples",
        )
        return


def _large_since(track: SeriesTrack) -> int:
    """The position from which an input is large; 0 if it always was."""
    sizes = track.size
    is_small = np.nonzero(sizes < min(_FAR, 0.05 * median(sizes)))[0]
    return int(is_small[-1]) + 1 if len(is_small) else 0


def _one_large_batch(track: SeriesTrack) -> Iterator[Finding]:
    """A few batches are far larger than all others: a value that is corrupt, or a unit that is."""
    usual, at = median(track.size), int(np.argmax(track.size))
    largest = float(track.size[at])
    if not (np.isfinite(largest) and largest > max(_FAR, 50 * usual) and usual > 0):
        return
    step = int(track.steps[at])
    yield finding(
        "inputs-not-normalized",
        f"`{track.name}` of step {step} is {largest / usual:.0f} times as large as usual",
        severity="info",
        series=track.label,
        first_step=step,
        last_step=step,
        evidence={"size": largest, "usual": usual},
        confidence=0.6,
        remedy="Look at the batch of that step: x.abs().amax() finds the sample",
    )


def _reaches_a_layer(view: TrainingView, size: float) -> bool:
    """Whether a part of the model gets an input as large as the model's; forward may scale it."""
    sizes = [
        median(track.size)
        for (path, name), track in view.series.items()
        if path and "." not in path and name.startswith("input") and ".grad" not in name
        if not track.is_number and len(track)
    ]
    return not sizes or any(0.2 * size < one < 1.2 * size for one in sizes)


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
    """All values of the input are the same, from some step on."""
    same = next(iter(view.probes("different samples")), None)
    is_same = (
        same is not None and lasting(same.track, lambda value: value == 0, least=3) is not None
    )
    one_value = [track for track, _ in _inputs(view) if _constant_since(track) is not None]
    if same is not None and is_same and not one_value:
        yield finding(
            "constant-input",
            "All samples of a batch are the same",
            severity="warning",
            series="input.0",
            first_step=same.track.steps[0],
            last_step=same.track.steps[-1],
            evidence={"different samples": 0.0},
            remedy="Check how batches are built: every sample equals the first one",
        )
        return
    for track, dtype in list(_inputs(view))[:1]:
        low, high = track.column("min"), track.column("max")
        since = _constant_since(track)
        if since is None:
            yield from _children_without_input(view)
            continue
        is_zero = not low[-1] and dtype.startswith(("float", "bfloat"))
        when = f"since step {since}" if since > track.steps[0] else "at every step"
        yield finding(
            "zero-input" if is_zero else "constant-input",
            f"The input is all zeros {when}"
            if is_zero
            else f"The input is {short(float(low[-1]))} everywhere, {when}",
            severity="warning",
            series=track.label,
            first_step=since,
            last_step=int(track.steps[-1]),
            evidence={"min": float(low[-1]), "max": float(high[-1])},
            remedy="Check how batches are read and transformed",
        )


def _constant_since(track: SeriesTrack) -> int | None:
    """The step from which a tensor has one value everywhere; None if its last values differ."""
    is_constant = track.column("min") == track.column("max")
    if track.column("count").max() < 2:
        return None
    since = len(is_constant) - int(np.argmin(is_constant[::-1])) if not is_constant.all() else 0
    # Earlier differences must have ended.
    is_over = len(track) - since >= (3 if since else 2)
    return int(track.steps[since]) if is_over else None


def _children_without_input(view: TrainingView) -> Iterator[Finding]:
    """Parts of the model with weights whose input, one of the model, is all zeros."""
    inputs = [track for track, dtype in _inputs(view) if dtype.startswith(("float", "bfloat"))]
    sizes = {int(track.column("count")[-1]) for track in inputs if _is_all_zero(track)}
    for (path, name), track in view.series.items():
        is_child = path and "." not in path and name == "input.0" and not track.is_number
        if not is_child or not _is_all_zero(track) or int(track.column("count")[-1]) not in sizes:
            continue
        if any(one.name.startswith(f"{path}.") for one in view.weights):
            yield finding(
                "zero-input",
                f"{named(path)} gets all zeros at every step",
                path=path,
                series=track.label,
                first_step=int(track.steps[0]),
                last_step=int(track.steps[-1]),
                evidence={"min": 0.0, "max": 0.0},
                remedy="Check its inputs",
            )
            return


def _is_all_zero(track: SeriesTrack) -> bool:
    return len(track) > 2 and not track.column("min").any() and not track.column("max").any()


@rule(
    "repeated-batches",
    family="set-up",
    title="Batches are repeated",
)
def repeated_batches(view: TrainingView) -> Iterator[Finding]:
    """Many steps get the same batch as the previous step, as from workers with the same seed."""
    track = view.facts.repeats
    repeated = sum(track.values)
    part = repeated / max(1, len(track.values))
    # A training on one batch, or on all data at once, is intended.
    if view.facts.batches < _FEWEST_BATCHES or repeated < 3 or part < _REPEATED:
        return
    times = 1 / (1 - part) if part < 1 else len(track.values)
    yield finding(
        "repeated-batches",
        f"Batches are repeated about {times:.0f} times in a row: {share(part)} of the steps get "
        "the same batch as the step before",
        severity="info",
        series="input.0",
        first_step=next(
            step for step, value in zip(track.steps, track.values, strict=True) if value
        ),
        last_step=track.steps[-1],
        evidence={"repeated": part, "different batches": view.facts.batches},
        confidence=0.8,
        remedy="If that is not intended, seed each worker: DataLoader(worker_init_fn=…) with a "
        "seed from torch.initial_seed()",
    )


@rule(
    "batch-size-mismatch",
    family="set-up",
    title="Inputs have different batch sizes",
)
def batch_size_mismatch(view: TrainingView) -> Iterator[Finding]:
    """One input has a batch of 1 where the others have more, and is used for every sample."""
    inputs = [
        one
        for one in view.facts.inputs
        if len(one.shape) > 1
        and one.dtype != "bool"
        and not any(word in one.place.lower() for word in _FOR_ALL)
    ]
    batch = max((one.shape[0] for one in inputs), default=1)
    single = [one for one in inputs if one.shape[0] == 1]
    if batch < 2 or not single or len(single) == len(inputs):
        return
    yield finding(
        "batch-size-mismatch",
        f"`input.{single[0].place}` has a batch size of 1, other inputs {batch}: the same values "
        "are used for every sample",
        severity="warning" if view.is_stuck else "info",
        series=f"input.{single[0].place}",
        first_step=0,
        evidence={"shape": list(single[0].shape), "batch": batch},
        confidence=0.7,
        remedy="If each sample should have its own values, check how the batch is built",
    )

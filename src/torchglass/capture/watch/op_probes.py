"""What single operations say about the health of a training, measured in a few forwards.

To add a measurement, write a function from an operation's arguments and output to a number, and
add it to `PROBES`. It runs in a handful of forwards of a training, and on a part of large tensors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from torchglass.capture.tensor.description import Args, Kwargs
from torchglass.capture.tensor.device_reads import Array, DeviceReads, is_capturing
from torchglass.capture.torch_modes import quietly
from torchglass.capture.trace.op_mode import OpEvent
from torchglass.capture.watch.parameter_facts import ThinnedTrack
from torchglass.records.trace import CallId, OpRecord, TraceRecord
from torchglass.records.training import FLAT_OPERATIONS, GradientStop, OpSite, Probe, Track

_MOST_VALUES = 1 << 18
"""Only a part of a larger tensor is measured."""
_MOST_ROWS = 1 << 11
_SATURATED = 0.98
_MASKED = 5e3
"""A score below minus this value is masked."""
_MOST_TOKENS = 128
_MOST_CHOICES = 256
_MOST_FEATURES = 512
_FEWEST_FOR_RANK = 8
_BATCH_SAMPLE = 128
_MOST_SENT = 1 << 12
_MOVES = ("View", "Reshape", "UnsafeView", "Squeeze", "Unsqueeze", "Permute", "Transpose")
"""The autograd nodes of operations that only move values."""
_MOST_BATCHES = 1 << 10
_PORTION_BYTES = 1 << 20
"""The samples that are measured together: as many as fit in a core's cache."""

Measured = float | torch.Tensor | None
"""A tensor may be on a device, and its mean is read later. NaN means nothing to measure."""
Measure = Callable[[tuple[Any, ...], Mapping[str, Any], torch.Tensor], Measured]


class ProbeKind(NamedTuple):
    """A measurement of an operation, and how to choose the worst of several in one forward."""

    measure: str
    of: Measure
    worst: Callable[[float, float], float] = max


def _rows(tensor: torch.Tensor) -> torch.Tensor | None:
    """The last dimension of a part of a tensor, row by row."""
    if tensor.dim() < 2 or tensor.shape[-1] < 2 or not tensor.numel():
        return None
    return tensor.reshape(-1, tensor.shape[-1])[:_MOST_ROWS].float()


def _entropy(weights: torch.Tensor) -> Measured:
    """The mean entropy of rows that add up to 1, as a share of the largest possible one."""
    rows = _rows(weights)
    if rows is None:
        return None
    # A row with a single unmasked position, as the first row of a causal mask, has no choice.
    places = (rows > 0).sum(-1)
    has_choice = places > 1
    entropy = -(rows * rows.clamp_min(1e-30).log()).sum(-1) / places.clamp_min(2).float().log()
    return torch.where(has_choice, entropy, 0).sum() / has_choice.sum()


def _softmax_entropy(args: Any, kwargs: Any, output: torch.Tensor) -> Measured:
    return _entropy(output)


def _one_winner(args: Any, kwargs: Any, output: torch.Tensor) -> Measured:
    """The share of rows whose largest value is at the most frequent position."""
    rows = _rows(output)
    if rows is None or len(rows) < 8 or rows.shape[-1] > _MOST_CHOICES:
        return None
    places = torch.arange(rows.shape[-1], device=rows.device)
    return (rows.argmax(-1, keepdim=True) == places).float().mean(0).max()


def _attention_logits(args: Any, kwargs: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The scores of one sequence, and where they are allowed."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    query, key = given.get("query"), given.get("key")
    if not (isinstance(query, torch.Tensor) and isinstance(key, torch.Tensor)) or query.dim() < 3:
        return None
    first = (0,) * (query.dim() - 3)
    query, key = (one[first][:8, :_MOST_TOKENS].float() for one in (query, key))
    if query.shape[0] != key.shape[0]:
        return None
    scale = given.get("scale") or 1 / math.sqrt(query.shape[-1])
    scores = query @ key.transpose(-1, -2) * scale
    allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
    if given.get("is_causal"):
        allowed = allowed.tril()
    mask = given.get("attn_mask")
    if isinstance(mask, torch.Tensor):
        mask = mask[(0,) * (mask.dim() - 2)][: scores.shape[-2], : scores.shape[-1]]
        allowed = allowed & (mask if mask.dtype == torch.bool else mask > -_MASKED)
    return scores, allowed.expand_as(scores)


def _attention_logit(args: Any, kwargs: Any, output: torch.Tensor) -> Measured:
    found = _attention_logits(args, kwargs)
    if found is None:
        return None
    scores, allowed = found
    return scores.abs().masked_fill(~allowed, 0).max()


def _attention_entropy(args: Any, kwargs: Any, output: torch.Tensor) -> Measured:
    found = _attention_logits(args, kwargs)
    if found is None:
        return None
    scores, allowed = found
    # A row without an allowed position is NaN, and has no choice.
    return _entropy(scores.masked_fill(~allowed, -math.inf).softmax(-1))


def _softmax_logit(args: Any, kwargs: Any, output: torch.Tensor) -> Measured:
    scores = args[0] if args else kwargs.get("input")
    if not isinstance(scores, torch.Tensor):
        return None
    rows = _rows(scores)
    if rows is None:
        return None
    # Masks put -Inf or large negative values at masked positions.
    is_open = rows > -_MASKED
    means = rows.where(is_open, 0).sum(-1) / is_open.sum(-1).clamp_min(1)
    return (rows.amax(-1) - means).where(is_open.any(-1), 0).max()


def _choice(args: Any, kwargs: Any, output: torch.Tensor) -> Measured:
    """1 for a softmax with one row per sample."""
    return 1.0 if output.dim() == 2 else None


def _saturated_sigmoid(args: Any, kwargs: Any, output: torch.Tensor) -> Measured:
    return _share((_part(output) * 2 - 1).abs() > _SATURATED)


def _saturated_tanh(args: Any, kwargs: Any, output: torch.Tensor) -> Measured:
    return _share(_part(output).abs() > _SATURATED)


def _dead_units(args: Any, kwargs: Any, output: torch.Tensor) -> Measured:
    """The share of units, which are channels or features, that are 0 for the whole batch."""
    if output.dim() < 2 or output.shape[0] < 2:
        return None
    unit = 1 if output.dim() in (2, 4, 5) else output.dim() - 1
    others = [dim for dim in range(output.dim()) if dim != unit]
    return _share(output.amax(others) <= 0)


def _dropped(args: Any, kwargs: Any, output: torch.Tensor) -> Measured:
    given = args[0] if args else kwargs.get("input")
    if not isinstance(given, torch.Tensor) or output.numel() < 32:
        return None
    kept = given != 0
    return (kept & (output == 0)).sum() / kept.sum()


def _batch_per_channel(args: Any, kwargs: Any, output: torch.Tensor) -> Measured:
    """The size of the batch, if a batch norm uses its statistics."""
    training = kwargs.get("training", args[5] if len(args) > 5 else False)
    return float(output.shape[0]) if training and output.dim() > 1 else None


def _running_drift(args: Any, kwargs: Any, output: torch.Tensor) -> Measured:
    """How far the running variance of a batch norm is from that of its batches, in powers of e."""
    names = ("input", "running_mean", "running_var", "weight", "bias", "training")
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    values, variance = given.get("input"), given.get("running_var")
    if not (given.get("training") and isinstance(variance, torch.Tensor)) or values is None:
        return None
    batch = _channel_variance(values.detach().float())
    ratio = (variance.float() + 1e-5) / (batch + 1e-5)
    drift: torch.Tensor = ratio.log().abs().median()
    return drift


def _channel_variance(values: torch.Tensor) -> torch.Tensor:
    """The variance of each channel; torch's own takes ten times as long on a CPU."""
    others = [dim for dim in range(values.dim()) if dim != 1]
    rest = (values - values.mean(others, keepdim=True)).unsqueeze(-1).flatten(2)
    squares: torch.Tensor = torch.linalg.vector_norm(rest, dim=2).square().sum(0)
    return squares / (values.numel() // values.shape[1] - 1)


def _part(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.reshape(-1)
    return flat if len(flat) <= _MOST_VALUES else flat[:: len(flat) // _MOST_VALUES + 1]


def _mean(array: Array) -> float:
    # For a single value numpy takes longer than for all else.
    return float(array.item() if array.size == 1 else array.mean())


def _share(condition: torch.Tensor) -> Measured:
    if condition.numel() <= _MOST_SENT:
        return condition if condition.numel() else None
    return condition.float().mean()


_SOFTMAX = (
    ProbeKind("entropy", _softmax_entropy, min),
    ProbeKind("one winner", _one_winner),
    ProbeKind("largest logit", _softmax_logit),
    ProbeKind("choice", _choice),
)
PROBES: Mapping[str, tuple[ProbeKind, ...]] = {
    "softmax": _SOFTMAX,
    "scaled_dot_product_attention": (
        ProbeKind("entropy", _attention_entropy, min),
        ProbeKind("largest logit", _attention_logit),
    ),
    "sigmoid": (ProbeKind("saturated", _saturated_sigmoid),),
    "tanh": (ProbeKind("saturated", _saturated_tanh),),
    "relu": (ProbeKind("dead units", _dead_units),),
    "relu_": (ProbeKind("dead units", _dead_units),),
    "dropout": (ProbeKind("dropped", _dropped),),
    "batch_norm": (
        ProbeKind("batch size", _batch_per_channel, min),
        ProbeKind("running drift", _running_drift),
    ),
}
"""The measurements of an operation, by its torch name."""


class OpProbes:
    """Collects the measurements of the operations of a training."""

    def __init__(self, reads: DeviceReads) -> None:
        self._reads = reads
        self._tracks: dict[tuple[str, str, str], dict[int, float]] = {}
        self._outputs: dict[tuple[int, ...], list[tuple[str, int, Array]]] = {}
        """Samples of outputs that are not measured yet, by shape: their paths and steps."""

    def see(self, event: OpEvent, path: str, step: int) -> None:
        """Measure an operation that ran in the module at a path."""
        function = getattr(event.function, "__name__", "")
        output = event.output
        if function not in PROBES or not isinstance(output, torch.Tensor):
            return
        if not output.is_floating_point() or output.is_nested or not output.numel():
            return
        # Units that are not trained may be dead on purpose.
        kinds = PROBES[function] if output.requires_grad else ()
        with torch.no_grad():
            for kind in kinds:
                value = kind.of(event.args, event.kwargs, output.detach())
                self.put(path, function.rstrip("_"), kind, value, step)

    def see_output(self, output: torch.Tensor, path: str, step: int) -> None:
        """Measure how much the output of a module differs between the samples of a batch."""
        if output.is_nested or output.dim() < 2 or output.shape[0] < 4:
            return
        if not output.is_floating_point() or output.layout != torch.strided:
            return
        if not output.numel():
            return
        with torch.no_grad():
            samples = output.detach()[:64].flatten(1)
            samples = samples[:, :: samples.shape[1] // _MOST_FEATURES + 1]
            # A copy, because the program may overwrite it.
            samples = samples.to(torch.float32, copy=True)
            self._reads.later(samples, partial(self._put_aside, path, step))

    def _put_aside(self, path: str, step: int, samples: Array) -> None:
        """Measure the samples of an output together with others of their shape."""
        for kind in (_VARIATION, _RANK):
            # The order of the records is that of the calls.
            self._tracks.setdefault((path, "output", kind.measure), {})
        batch = self._outputs.setdefault(samples.shape, [])
        batch.append((path, step, samples))
        if len(batch) * samples.nbytes >= _PORTION_BYTES:
            self._measure_outputs(samples.shape)

    def _measure_outputs(self, shape: tuple[int, ...]) -> None:
        batch = self._outputs.pop(shape)
        stack = torch.from_numpy(np.stack([samples for _, _, samples in batch]))
        for (path, step, _), variation, rank in zip(batch, *_spread(stack), strict=True):
            self._keep(path, "output", _VARIATION, step, variation)
            if min(shape) >= _FEWEST_FOR_RANK:
                self._keep(path, "output", _RANK, step, rank)

    def measure_outputs(self) -> None:
        """Measure all outputs that were put aside."""
        for shape in list(self._outputs):
            self._measure_outputs(shape)

    def see_input(self, given: torch.Tensor, step: int) -> None:
        """Measure how much the samples of a batch differ."""
        if given.is_nested or given.layout != torch.strided or given.is_complex():
            return
        if given.dim() < 2 or given.shape[0] < 4 or not given.numel():
            return
        with torch.no_grad():
            samples = given.detach()[:64].flatten(1)[:, :_MOST_VALUES]
            differ = (samples != samples[:1]).any(1).float().mean()
            self.put("", "input", _DIFFERENT, differ, step)

    def end_pass(self, output: Any, step: int) -> None:
        """A forward has returned."""
        self.measure_outputs()
        if isinstance(output, torch.Tensor):
            self._ask_for_negative(output, step)

    def _ask_for_negative(self, output: torch.Tensor, step: int) -> None:
        """Measure how often the loss wants negative values from a ReLU at the end of the model."""
        node = output.grad_fn
        while node is not None and node.name().startswith(_MOVES):
            node = node.next_functions[0][0]
        if node is None or not node.name().startswith("Relu"):
            return
        at_zero = output.detach() == 0

        def measure(gradient: torch.Tensor) -> None:
            if not is_capturing():
                negative = (at_zero & (gradient > 0)).float().mean()
                self.put("", "relu", _NEGATIVE, negative, step)

        output.register_hook(measure)  # type: ignore[no-untyped-call]

    def put(self, path: str, function: str, kind: ProbeKind, value: Measured, step: int) -> None:
        """Keep a measurement, or the mean of several."""
        if isinstance(value, torch.Tensor):
            keep = partial(self._keep, path, function, kind, step)
            self._reads.later(value, lambda array: keep(_mean(array)))
        elif value is not None:
            self._keep(path, function, kind, step, value)

    def _keep(self, path: str, function: str, kind: ProbeKind, step: int, value: float) -> None:
        """Keep a number that is not NaN; the worst one if there are several in one step."""
        if value == value:
            track = self._tracks.setdefault((path, function, kind.measure), {})
            track[step] = kind.worst(track[step], value) if step in track else value

    def records(self) -> tuple[Probe, ...]:
        """All measurements."""
        self.measure_outputs()
        return tuple(
            Probe(
                path=path,
                function=function,
                measure=measure,
                track=Track(steps=tuple(values), values=tuple(values.values())),
            )
            for (path, function, measure), values in self._tracks.items()
            if values
        )


def _spread(stack: torch.Tensor) -> tuple[list[float], list[float]]:
    """How much the samples of each batch differ.

    Relative to their size, and in how many directions: 1 if the samples are on a line.
    """
    _, count, width = stack.shape
    size = torch.linalg.vector_norm(stack, dim=(1, 2)).double() / math.sqrt(count * width)
    rest = stack - stack.mean(1, keepdim=True)
    length = torch.linalg.vector_norm(rest, dim=(1, 2)).double()
    spread = length / math.sqrt((count - 1) * width) / size
    # Batches without a size do not differ; those that are not finite are not measured.
    variation = torch.where(size > 0, spread, size).where(size.isfinite(), math.nan)
    other = rest.transpose(1, 2)
    products = torch.bmm(rest, other) if count <= width else torch.bmm(other, rest)
    total = products.square().sum((1, 2)).double()
    # Values that are not finite are another problem: their rank is NaN.
    ranks = torch.where(total == 0, 0.0, length.pow(4) / total)
    return variation.numpy().tolist(), ranks.numpy().tolist()


_RANK = ProbeKind("effective rank", lambda args, kwargs, output: None, min)
_VARIATION = ProbeKind("batch variation", lambda args, kwargs, output: None, min)
_DIFFERENT = ProbeKind("different samples", lambda args, kwargs, output: None, max)
_NEGATIVE = ProbeKind("wants negative", lambda args, kwargs, output: None, max)


class BatchRepeats:
    """Notices batches that come twice in a row, by a few of their values."""

    def __init__(self, reads: DeviceReads) -> None:
        self._reads = reads
        self._step: int | None = None
        self.track = ThinnedTrack()
        """1 for a step with the batch of the step before, else 0."""
        self._last: tuple[int, int] | None = None
        self._seen: set[int] = set()

    @property
    def count(self) -> int:
        """How many different batches there were, as far as they were counted."""
        return len(self._seen)

    def see(self, args: Args, kwargs: Kwargs, step: int, *, is_recorded: bool) -> None:
        """The model is given a batch."""
        if self._step == step:
            return
        self._step = step
        sample = _sample_of_batch(args, kwargs, is_recorded=is_recorded)
        if sample is not None:
            self._reads.later(sample, lambda array: self._see(array, step))
        else:
            self._reads.then(self._forget)

    def _forget(self) -> None:
        self._last = None

    def _see(self, sample: Array, step: int) -> None:
        if not (sample == sample).all() or (sample == sample[0]).all():
            # It says nothing about repeats.
            self._forget()
            return
        key = hash(sample.tobytes())
        if self._last is not None and self._last[0] == step - 1:
            self.track.add(step, float(self._last[1] == key))
        self._last = step, key
        if len(self._seen) < _MOST_BATCHES:
            self._seen.add(key)


def _sample_of_batch(args: Args, kwargs: Kwargs, *, is_recorded: bool) -> torch.Tensor | None:
    """Some values of the first tensor; None if there are none."""
    tensors = (one for one in (*args, *kwargs.values()) if type(one) is torch.Tensor)
    first = next(tensors, None)
    if first is None or first.layout != torch.strided or first.is_meta or first.is_nested:
        return None
    is_near = first.device.type == "cpu" or is_recorded
    if not is_near or not first.is_contiguous() or first.numel() < 2:
        return None
    with quietly():
        # An odd distance: one that divides the rows would only see the border of images.
        return first.detach().view(-1)[:: first.numel() // _BATCH_SAMPLE | 1].clone()


def gradient_stops(trace: TraceRecord) -> Iterator[GradientStop]:
    """The operations whose input needs a gradient and whose output does not, or one of zeros."""
    paths = {call.id: call.path for call in trace.calls}
    needs = {op.id for op in trace.ops if op.grad_fn}
    for op in trace.ops:
        is_flat = bool(op.grad_fn) and op.function.rstrip("_") in FLAT_OPERATIONS
        if op.kind != "op" or (op.grad_fn and not is_flat) or not op.outputs:
            continue
        has_weight = not is_flat and any(operand.parameter for operand in op.operands)
        if has_weight or any(parent in needs for parent in op.parents):
            yield GradientStop(
                path=paths.get(op.call, "") if op.call is not None else "",
                function=op.function,
                source=op.source,
                is_in_no_grad=has_weight,
            )


HALVES = ("bfloat16", "float16")
_PRODUCTS = re.compile(r"^(linear|matmul|__matmul__|bmm|mm|addmm|baddbmm|einsum|conv\d?d|conv_.*)$")
_ATTENTION = "scaled_dot_product_attention"


def _site(op: OpRecord, paths: Mapping[CallId, str]) -> OpSite:
    path = paths.get(op.call, "") if op.call is not None else ""
    return OpSite(path=path, function=op.function, source=op.source)


def float32_products(trace: TraceRecord) -> Iterator[OpSite]:
    """The matrix products and convolutions that ran in float32."""
    paths = {call.id: call.path for call in trace.calls}
    for op in trace.ops:
        if _PRODUCTS.match(op.function) and any(v.spec.dtype == "float32" for v in op.outputs):
            yield _site(op, paths)


def active_dropouts(trace: TraceRecord) -> Iterator[OpSite]:
    """The operations that drop values at random."""
    paths = {call.id: call.path for call in trace.calls}
    for op in trace.ops:
        settings = dict(op.settings)
        if op.function.startswith(("dropout", "alpha_dropout", "feature_dropout")):
            is_on = settings.get("training", settings.get("2", "True")) == "True"
            share = settings.get("p", settings.get("1", "0.5"))
        elif op.function == _ATTENTION:
            is_on, share = True, settings.get("dropout_p", settings.get("4", "0"))
        else:
            continue
        if is_on and share not in ("0", "0.0"):
            yield _site(op, paths)


def upcasts(trace: TraceRecord) -> Iterator[OpSite]:
    """The operations of a model in half precision that computed in a larger dtype by accident."""
    paths = {call.id: call.path for call in trace.calls}
    for op in trace.ops:
        dtypes = {one.spec.dtype for one in op.operands if one.spec.elements > 1}
        is_wider = any(value.spec.dtype in ("float32", "float64") for value in op.outputs)
        if is_wider and dtypes & {*HALVES} and dtypes & {"float32", "float64"}:
            yield _site(op, paths)

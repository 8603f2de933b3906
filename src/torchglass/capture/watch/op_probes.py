"""What single operations tell about the health of a training, measured in a few of its forwards.

To add a measurement, write a function from an operation's arguments and output to a number, and
add it to `PROBES`. It runs in a handful of forwards of a training, and on a part of large tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from torchglass.capture.trace.op_mode import OpEvent
from torchglass.records.training import Probe, Track

_MOST_VALUES = 1 << 18
"""Of a larger tensor only a part is measured."""
_MOST_ROWS = 1 << 11
_SATURATED = 0.98
_MOST_TOKENS = 128
_MOST_CHOICES = 256
_MOST_FEATURES = 512

Measure = Callable[[tuple[Any, ...], Mapping[str, Any], torch.Tensor], float | None]


class ProbeKind(NamedTuple):
    """A measurement of an operation, and which of several in one forward is the worst."""

    measure: str
    of: Measure
    worst: Callable[[float, float], float] = max


def _rows(tensor: torch.Tensor) -> torch.Tensor | None:
    """The last dimension of a part of a tensor, row by row."""
    if tensor.dim() < 2 or tensor.shape[-1] < 2 or not tensor.numel():
        return None
    return tensor.reshape(-1, tensor.shape[-1])[:_MOST_ROWS].float()


def _entropy(weights: torch.Tensor) -> float | None:
    """The mean entropy of rows that add up to 1, as a share of the largest possible one."""
    rows = _rows(weights)
    if rows is None:
        return None
    # A row that may look at one place only, as the first of a causal mask, has no choice.
    places = (rows > 0).sum(-1)
    rows, places = rows[places > 1], places[places > 1]
    if not len(rows):
        return None
    entropy = -(rows * rows.clamp_min(1e-30).log()).sum(-1) / places.float().log()
    return float(entropy.mean())


def _softmax_entropy(args: Any, kwargs: Any, output: torch.Tensor) -> float | None:
    return _entropy(output)


def _one_winner(args: Any, kwargs: Any, output: torch.Tensor) -> float | None:
    """The share of rows whose largest value is at the most frequent place."""
    rows = _rows(output)
    if rows is None or len(rows) < 8 or rows.shape[-1] > _MOST_CHOICES:
        return None
    places = torch.arange(rows.shape[-1], device=rows.device)
    return float((rows.argmax(-1, keepdim=True) == places).float().mean(0).max())


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
        allowed = allowed & (mask if mask.dtype == torch.bool else mask > -1e4)
    return scores, allowed.expand_as(scores)


def _attention_logit(args: Any, kwargs: Any, output: torch.Tensor) -> float | None:
    found = _attention_logits(args, kwargs)
    if found is None:
        return None
    scores, allowed = found
    return float(scores[allowed].abs().max()) if allowed.any() else None


def _attention_entropy(args: Any, kwargs: Any, output: torch.Tensor) -> float | None:
    found = _attention_logits(args, kwargs)
    if found is None:
        return None
    scores, allowed = found
    weights = scores.masked_fill(~allowed, -math.inf).softmax(-1)
    return _entropy(weights[allowed.any(-1)])


def _softmax_logit(args: Any, kwargs: Any, output: torch.Tensor) -> float | None:
    scores = args[0] if args else kwargs.get("input")
    if not isinstance(scores, torch.Tensor):
        return None
    rows = _rows(scores)
    # Masks put large negative values where nothing may be looked at.
    return None if rows is None else float((rows.amax(-1) - rows.clamp_min(-1e4).mean(-1)).max())


def _choice(args: Any, kwargs: Any, output: torch.Tensor) -> float | None:
    """1 for a softmax with one row per sample."""
    return 1.0 if output.dim() == 2 else None


def _saturated_sigmoid(args: Any, kwargs: Any, output: torch.Tensor) -> float | None:
    return _share((_part(output) * 2 - 1).abs() > _SATURATED)


def _saturated_tanh(args: Any, kwargs: Any, output: torch.Tensor) -> float | None:
    return _share(_part(output).abs() > _SATURATED)


def _dead_units(args: Any, kwargs: Any, output: torch.Tensor) -> float | None:
    """The share of units, which are channels or features, that are 0 for the whole batch."""
    if output.dim() < 2 or output.shape[0] < 2:
        return None
    unit = 1 if output.dim() in (2, 4, 5) else output.dim() - 1
    others = [dim for dim in range(output.dim()) if dim != unit]
    return _share(output.amax(others) <= 0)


def _dropped(args: Any, kwargs: Any, output: torch.Tensor) -> float | None:
    given = args[0] if args else kwargs.get("input")
    if not isinstance(given, torch.Tensor) or output.numel() < 32 or not bool(given.any()):
        return None
    kept = given != 0
    return _share(output[kept] == 0)


def _batch_per_channel(args: Any, kwargs: Any, output: torch.Tensor) -> float | None:
    """The size of the batch, if a batch norm uses its statistics."""
    training = kwargs.get("training", args[5] if len(args) > 5 else False)
    return float(output.shape[0]) if training and output.dim() > 1 else None


def _running_drift(args: Any, kwargs: Any, output: torch.Tensor) -> float | None:
    """How far the running variance of a batch norm is from that of its batches, in powers of e."""
    names = ("input", "running_mean", "running_var", "weight", "bias", "training")
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    values, variance = given.get("input"), given.get("running_var")
    if not (given.get("training") and isinstance(variance, torch.Tensor)) or values is None:
        return None
    others = [dim for dim in range(values.dim()) if dim != 1]
    batch = values.detach().float().var(others)
    ratio = (variance.float() + 1e-5) / (batch + 1e-5)
    return float(ratio.log().abs().median())


def _part(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.reshape(-1)
    return flat if len(flat) <= _MOST_VALUES else flat[:: len(flat) // _MOST_VALUES + 1]


def _share(condition: torch.Tensor) -> float | None:
    return float(condition.float().mean()) if condition.numel() else None


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
"""What is measured of an operation, by torch's name of it."""


class OpProbes:
    """Collects the measurements of the operations of a training."""

    def __init__(self) -> None:
        self._tracks: dict[tuple[str, str, str], dict[int, float]] = {}

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
                if value is not None:
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
            samples = samples[:, :: samples.shape[1] // _MOST_FEATURES + 1].float()
            size = float(samples.square().mean().sqrt())
            if size > 0 and math.isfinite(size):
                variation = float(samples.std(0).square().mean().sqrt()) / size
                self.put(path, "output", _VARIATION, variation, step)

    def see_input(self, given: torch.Tensor, step: int) -> None:
        """Measure how much the samples of a batch differ."""
        if given.is_nested or given.layout != torch.strided or given.is_complex():
            return
        if given.dim() < 2 or given.shape[0] < 4 or not given.numel():
            return
        with torch.no_grad():
            samples = given.detach()[:64].flatten(1)[:, :_MOST_VALUES]
            differ = (samples != samples[:1]).any(1).float().mean()
            self.put("", "input", _DIFFERENT, float(differ), step)

    def ask_for_negative(self, output: torch.Tensor, step: int) -> None:
        """Have measured how often the loss asks a ReLU at the end of the model for less than 0."""
        if output.grad_fn is None or not output.grad_fn.name().startswith("Relu"):
            return
        at_zero = output.detach() == 0

        def measure(gradient: torch.Tensor) -> None:
            self.put("", "relu", _NEGATIVE, float((at_zero & (gradient > 0)).float().mean()), step)

        output.register_hook(measure)  # type: ignore[no-untyped-call]

    def put(self, path: str, function: str, kind: ProbeKind, value: float, step: int) -> None:
        """Keep a measurement; of several in one step, the worst."""
        track = self._tracks.setdefault((path, function, kind.measure), {})
        track[step] = kind.worst(track[step], value) if step in track else value

    def records(self) -> tuple[Probe, ...]:
        """All measurements."""
        return tuple(
            Probe(
                path=path,
                function=function,
                measure=measure,
                track=Track(steps=tuple(values), values=tuple(values.values())),
            )
            for (path, function, measure), values in self._tracks.items()
        )


_VARIATION = ProbeKind("batch variation", lambda args, kwargs, output: None, min)
_DIFFERENT = ProbeKind("different samples", lambda args, kwargs, output: None, max)
_NEGATIVE = ProbeKind("wants negative", lambda args, kwargs, output: None, max)

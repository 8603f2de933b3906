"""Quantizes the weights of a copy of a model, one layer at a time, and measures the harm.

Weights are rounded to the values that a low-precision format has, and stay in their own dtype (fake
quantization), so every model runs. The harm is what changes at the outputs of the model, as the
ratio of signal to quantization noise (SQNR) in dB: 20 dB is an error of 10 %, 40 dB of 1 %.

A mix of formats is chosen as if the noise of layers added up, then measured as a whole.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from torchglass.capture.isolated_run import keeping_random_state
from torchglass.capture.tensor.description import iter_tensors
from torchglass.errors import CaptureError
from torchglass.records.measures import LayerQuantization, PrecisionMix, QuantizationScale

Metric = Callable[[nn.Module], float]
_INT_BITS = {"int8": 8, "int4": 4}
_FP8 = torch.float8_e4m3fn
FORMATS = (*_INT_BITS, "fp8")
_SCALE_BYTES = 4
_OUTLIER = 6.0
"""A channel whose largest value is this many times that of the median channel is an outlier."""
_CEILING_DB = 200.0
"""Reported for outputs that do not change at all."""
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def fake_quantized(
    weight: torch.Tensor, format: str, scale: QuantizationScale, channel: int = 0
) -> torch.Tensor:
    """A weight rounded to the values of a format, with one scale or one per channel."""
    axes = [axis for axis in range(weight.dim()) if axis != channel % weight.dim()]
    values = weight.detach().float()
    largest = values.abs().amax(axes, keepdim=True) if scale == "channel" else values.abs().amax()
    top = float(torch.finfo(_FP8).max) if format == "fp8" else 2 ** (_INT_BITS[format] - 1) - 1
    step = torch.where(largest > 0, largest / top, torch.ones_like(largest))
    scaled = values / step
    if format == "fp8":
        rounded = scaled.clamp(-top, top).to(_FP8).float()
    else:
        rounded = scaled.round().clamp(-top, top)
    return (rounded * step).to(weight.dtype)


def sqnr_db(plain: Sequence[torch.Tensor], changed: Sequence[torch.Tensor]) -> float:
    """How far the signal is above the noise, over all values of all tensors together."""
    signal = noise = 0.0
    for one, other in zip(plain, changed, strict=True):
        signal += one.double().square().sum().item()
        noise += (one.double() - other.double()).square().sum().item()
    if not math.isfinite(noise):
        return -_CEILING_DB
    if noise == 0:
        return _CEILING_DB
    return max(10 * math.log10(signal / noise), -_CEILING_DB) if signal else -_CEILING_DB


class QuantizableWeight(NamedTuple):
    """A weight that can be quantized."""

    name: str
    weight: nn.Parameter
    channel: int
    """The dimension of its output channels."""


@dataclass(slots=True)
class QuantizationExperiment:
    """A copy of a model whose weights are quantized and put back."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    metric: Metric | None = None
    progress: Callable[[LayerQuantization], None] | None = None

    def __post_init__(self) -> None:
        try:
            self.model = copy.deepcopy(self.model).eval()
        except Exception as error:
            raise CaptureError(f"{type(self.model).__name__} cannot be copied: {error}") from error
        self.model.requires_grad_(requires_grad=False)

    def layers(self) -> list[QuantizableWeight]:
        """The weights with two or more dimensions, each shared one once."""
        found = []
        for name, weight in self.model.named_parameters():
            owner = self.model.get_submodule(name.rpartition(".")[0])
            if weight.dim() > 1 and weight.dtype.is_floating_point and weight.numel():
                found.append(QuantizableWeight(name, weight, int(isinstance(owner, _TRANSPOSED))))
        if not found:
            raise CaptureError(
                f"{type(self.model).__name__} has no weights with two or more dimensions"
            )
        return found

    def measure(
        self, formats: Sequence[str], scales: Sequence[QuantizationScale]
    ) -> Iterator[LayerQuantization]:
        """Quantize each layer alone, in each format, and measure the outputs."""
        plain = self.outputs()
        inputs = self._input_outliers()
        for layer in self.layers():
            original = layer.weight.detach().clone()
            for kind, scale in itertools.product(formats, scales):
                layer.weight.copy_(fake_quantized(original, kind, scale, layer.channel))
                try:
                    found = self._measured(layer, original, kind, scale, plain, inputs)
                finally:
                    layer.weight.copy_(original)
                if self.progress is not None:
                    self.progress(found)
                yield found

    def baseline(self) -> float | None:
        """The metric of the model as it is; None without a metric."""
        return self._metric()

    def outputs(self) -> list[torch.Tensor]:
        """All floating-point tensors that the model returns."""
        with torch.no_grad(), keeping_random_state():
            output = self.model(*self.args, **self.kwargs)
        found = [one.detach().clone() for one in iter_tensors(output)]
        found = [one for one in found if one.dtype.is_floating_point]
        if not found:
            raise CaptureError("the model returns no floating-point tensor to compare")
        return found

    def measure_mix(self, chosen: Sequence[LayerQuantization]) -> tuple[float, float | None]:
        """Quantize several layers at once; the SQNR of the outputs, and the metric."""
        layers = {layer.name: layer for layer in self.layers()}
        plain = self.outputs()
        originals = [(layers[one.name].weight, one) for one in chosen]
        kept = [weight.detach().clone() for weight, _ in originals]
        try:
            for weight, one in originals:
                channel = layers[one.name].channel
                weight.copy_(fake_quantized(weight, one.format, one.scale, channel))
            return sqnr_db(plain, self.outputs()), self._metric()
        finally:
            for (weight, _), original in zip(originals, kept, strict=True):
                weight.copy_(original)

    def _measured(
        self,
        layer: QuantizableWeight,
        original: torch.Tensor,
        format: str,
        scale: QuantizationScale,
        plain: Sequence[torch.Tensor],
        inputs: Mapping[str, int],
    ) -> LayerQuantization:
        channels = original.shape[layer.channel]
        bits = _INT_BITS.get(format, 8) * original.numel()
        peaks = original.detach().float().abs().movedim(layer.channel, 0).flatten(1).amax(1)
        return LayerQuantization(
            name=layer.name,
            shape=tuple(original.shape),
            format=format,
            scale=scale,
            sqnr_db=sqnr_db(plain, self.outputs()),
            weight_sqnr_db=sqnr_db([original], [layer.weight]),
            metric=self._metric(),
            original_bytes=original.nbytes,
            bytes=-(-bits // 8) + _SCALE_BYTES * (channels if scale == "channel" else 1),
            outlier_channels=_outliers(peaks),
            outlier_inputs=inputs.get(layer.name.rpartition(".")[0], 0),
        )

    def _metric(self) -> float | None:
        if self.metric is None:
            return None
        with torch.no_grad(), keeping_random_state():
            value = float(self.metric(self.model))
        if math.isnan(value):
            raise CaptureError("the metric is NaN")
        return value

    def _input_outliers(self) -> dict[str, int]:
        """How many input features of each linear layer are far above the others."""
        found: dict[str, int] = {}
        handles = []

        def look(path: str) -> Callable[..., None]:
            def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
                values = args[0].detach().float().abs() if args else None
                if values is not None and values.numel():
                    found[path] = _outliers(values.flatten(0, -2).amax(0))

            return hook

        for path, module in self.model.named_modules():
            if isinstance(module, nn.Linear):
                handles.append(module.register_forward_pre_hook(look(path)))
        try:
            self.outputs()
        finally:
            for handle in handles:
                handle.remove()
        return found


def _outliers(peaks: torch.Tensor) -> int:
    """How many channels are far above the median channel."""
    middle = peaks.median()
    return int((peaks > _OUTLIER * middle).sum()) if middle > 0 else 0


class _Choice(NamedTuple):
    """One step of a mix: quantize a layer this way instead of the last."""

    layer: str
    option: LayerQuantization
    saved: float
    harm: float


def choose_mix(
    experiment: QuantizationExperiment,
    measured: Sequence[LayerQuantization],
    *,
    most_bytes: int | None,
    least_quality: float,
) -> PrecisionMix:
    """The formats that save most under a budget, measured as a whole.

    With `most_bytes` as few steps are taken as reach that size. Otherwise as many as keep the
    quality: the SQNR in dB, or the metric where there is one.
    """
    baseline = experiment.baseline()
    steps = _steps(measured, baseline)
    if most_bytes is not None:
        whole = sum({one.name: one.original_bytes for one in measured}.values())
        count = next(
            (n for n in range(len(steps) + 1) if _size(steps[:n], whole) <= most_bytes), len(steps)
        )
        return _mix(experiment, steps[:count], measured)
    low, high = 0, len(steps)
    best = _mix(experiment, [], measured)
    while low < high:
        middle = (low + high + 1) // 2
        tried = _mix(experiment, steps[:middle], measured)
        quality = tried.sqnr_db if tried.metric is None else tried.metric
        if quality >= least_quality:
            low, best = middle, tried
        else:
            high = middle - 1
    return best


def _mix(
    experiment: QuantizationExperiment,
    steps: Sequence[_Choice],
    measured: Sequence[LayerQuantization],
) -> PrecisionMix:
    chosen = {step.layer: step.option for step in steps}
    sqnr, metric = experiment.measure_mix(list(chosen.values()))
    whole = {one.name: one.original_bytes for one in measured}
    return PrecisionMix(
        layers=tuple(chosen[name] for name in whole if name in chosen),
        kept=tuple(name for name in whole if name not in chosen),
        original_bytes=sum(whole.values()),
        bytes=sum(chosen[name].bytes if name in chosen else whole[name] for name in whole),
        sqnr_db=sqnr,
        metric=metric,
    )


def _size(steps: Sequence[_Choice], whole: int) -> float:
    return whole - sum(step.saved for step in steps)


def _steps(measured: Sequence[LayerQuantization], baseline: float | None) -> list[_Choice]:
    """The steps of all layers, the most bytes saved for the least harm first."""
    by_layer: dict[str, list[LayerQuantization]] = {}
    for one in measured:
        by_layer.setdefault(one.name, []).append(one)
    steps = [step for options in by_layer.values() for step in _layer_steps(options, baseline)]
    return sorted(steps, key=lambda step: step.harm / step.saved)


def _layer_steps(options: Sequence[LayerQuantization], baseline: float | None) -> Iterator[_Choice]:
    """The options of one layer that no mix of two others beats (their convex hull)."""
    harm, size = 0.0, float(options[0].original_bytes)
    left = [(_harm(one, baseline), one) for one in options if one.bytes < size]
    while left:
        cost, best = min(
            left,
            key=lambda pair: (max(pair[0] - harm, 0.0) / (size - pair[1].bytes), pair[1].bytes),
        )
        yield _Choice(best.name, best, size - best.bytes, max(cost - harm, 0.0))
        harm, size = max(cost, harm), float(best.bytes)
        left = [(cost, one) for cost, one in left if one.bytes < size]


def _harm(one: LayerQuantization, baseline: float | None) -> float:
    """The noise that a layer adds, as a share of the signal; with a metric what it loses."""
    if one.metric is not None and baseline is not None:
        return max(baseline - one.metric, 0.0)
    return float(10 ** (-one.sqnr_db / 10))

"""The verbs `quantization` and `pruning`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from torchglass.errors import CaptureError

if TYPE_CHECKING:
    from torchglass.records.measures import GroupPruning, LayerQuantization, QuantizationScale
    from torchglass.results.experiments import Pruning, Quantization
    from torchglass.whatif.quantization import Metric

_LEAST_DB = 20.0
_LEAST_METRIC = 0.99
_SCALES = ("tensor", "channel")
_LARGEST_AMOUNT = 0.9


def quantization(
    model: Any,
    *inputs: Any,
    dtypes: Iterable[str] = ("int8", "int4", "fp8"),
    scales: Iterable[QuantizationScale] = ("tensor", "channel"),
    metric: Metric | None = None,
    size: str | int | None = None,
    quality: float | None = None,
    progress: Callable[[LayerQuantization], None] | None = None,
    **kwargs: Any,
) -> Quantization:
    """Find out which weights of a model can be stored in low precision.

    Each weight is quantized alone, in each format, on a copy of the model in eval mode. Then a mix
    of formats is chosen under a budget, and measured with all weights quantized at once.

    Args:
        model: A module.
        *inputs: Positional arguments of the forward: the samples to measure on.
        dtypes: The formats to try: "int8", "int4", "fp8" (e4m3).
        scales: "tensor" for one scale per weight, "channel" for one per output channel.
        metric: Called with the copy; returns a number (higher is better), such as an accuracy.
            None: only the signal-to-noise ratio (SQNR) of the outputs is measured.
        size: The maximum size of all weights: "50%" of the original, "12MB", or a number of bytes.
        quality: The minimum SQNR of the outputs in dB or, with a metric, its minimum. Default,
            without `size`: 20 dB, or 99 % of the metric.
        progress: Called after each measurement.
        **kwargs: Keyword arguments of the forward.

    Returns:
        A `Quantization`: print it, index it by the name of a weight, or export it.

    Raises:
        CaptureError: The model cannot be copied or run, or an argument is wrong.

    Example:
        >>> import torch
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8))
        >>> found = quantization(model, torch.randn(32, 64), dtypes=["int8", "int4"], quality=30)
        >>> sorted({one.format for one in found.mix.layers}), found.mix.sqnr_db > 30
        (['int8'], True)
    """
    from torch import nn

    from torchglass.capture.model.structure import read_model
    from torchglass.results.experiments import Quantization
    from torchglass.whatif.plan import batch_of
    from torchglass.whatif.quantization import FORMATS, QuantizationExperiment, choose_mix

    if not isinstance(model, nn.Module):
        raise CaptureError(f"quantization needs a module, not {type(model).__name__}")
    formats, granularities = tuple(dtypes), tuple(scales)
    _expect_some("dtypes", formats, FORMATS)
    _expect_some("scales", granularities, _SCALES)
    if size is not None and quality is not None:
        raise CaptureError("pass either size or quality as the budget, not both")
    experiment = QuantizationExperiment(model, inputs, kwargs, metric, progress)
    measured = list(experiment.measure(formats, granularities))
    baseline = experiment.baseline()
    whole = sum({one.name: one.original_bytes for one in measured}.values())
    most = None if size is None else _bytes_of(size, whole)
    if quality is None:
        quality = _LEAST_DB if baseline is None else _LEAST_METRIC * baseline
    mix = choose_mix(experiment, measured, most_bytes=most, least_quality=quality)
    return Quantization(
        read_model(model),
        measured,
        mix,
        samples=batch_of((inputs, kwargs)),
        budget=_budget_text(most, quality, has_metric=baseline is not None),
        baseline=baseline,
    )


def pruning(
    model: Any,
    *inputs: Any,
    amount: float = 0.3,
    metric: Metric | None = None,
    timed: bool = True,
    progress: Callable[[GroupPruning], None] | None = None,
    **kwargs: Any,
) -> Pruning:
    """Find out which channels of a model can be removed, and what that saves.

    Channels that depend on each other, through skip connections, norms or depthwise convolutions,
    are found by an experiment and removed together. Everything runs on a copy in eval mode.

    Args:
        model: A module with linear layers or convolutions.
        *inputs: Positional arguments of the forward: the samples to measure on. Their first
            dimension is the batch.
        amount: The share of the FLOPs of a forward that the suggestion saves.
        metric: Called with the copy; returns a number (higher is better), such as an accuracy.
            None: the signal-to-noise ratio (SQNR) of the outputs decides.
        timed: Also measure the time of a forward with the channels cut out.
        progress: Called after each measurement.
        **kwargs: Keyword arguments of the forward.

    Returns:
        A `Pruning`: print it, or call `apply()` for a copy that is really smaller.

    Raises:
        CaptureError: No channels can be removed, the model cannot be copied or run, or `amount` is
            not between 0 and 0.9.

    Example:
        >>> import torch
        >>> _ = torch.manual_seed(0)
        >>> layers = torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)
        >>> found = pruning(torch.nn.Sequential(*layers), torch.randn(32, 16), amount=0.5)
        >>> found.apply()[0], found.pruned_flops / found.flops
        (Linear(in_features=16, out_features=32, bias=True), 0.5)
    """
    from torch import nn

    from torchglass.capture.model.structure import read_model
    from torchglass.results.experiments import Pruning
    from torchglass.whatif.plan import batch_of
    from torchglass.whatif.pruning import PruningExperiment, choose_channels

    if not isinstance(model, nn.Module):
        raise CaptureError(f"pruning needs a module, not {type(model).__name__}")
    if not 0 < amount <= _LARGEST_AMOUNT:
        raise CaptureError(f"amount must be between 0 and {_LARGEST_AMOUNT}, not {amount}")
    experiment = PruningExperiment(model, inputs, kwargs, metric, progress)
    measured = list(experiment.measure())
    baseline = experiment.baseline()
    removed = choose_channels(measured, experiment.flops, amount, baseline)
    sqnr, value = experiment.quality(removed)
    smaller = experiment.cut(removed)
    return Pruning(
        read_model(model),
        measured,
        removed,
        cut=lambda: experiment.cut(removed),
        flops=experiment.flops,
        pruned_flops=experiment.flops_of(smaller),
        sqnr_db=sqnr,
        metric=value,
        baseline=baseline,
        speed=experiment.speed(removed, smaller) if timed and removed else None,
        samples=batch_of((inputs, kwargs)),
        skipped=experiment.skipped,
    )


def _expect_some(name: str, chosen: tuple[str, ...], known: Iterable[str]) -> None:
    unknown = [one for one in chosen if one not in tuple(known)]
    if unknown or not chosen:
        what = repr(unknown[0]) if unknown else "nothing"
        raise CaptureError(f"{name} must be some of {', '.join(known)}, not {what}")


def _bytes_of(size: str | int, whole: int) -> int:
    from torchglass.analyse.accelerators import memory_size

    if isinstance(size, str) and size.strip().endswith("%"):
        try:
            return int(whole * float(size.strip()[:-1]) / 100)
        except ValueError:
            raise CaptureError(f"size {size!r} is not a share. Use '50%' or '12MB'.") from None
    return memory_size(size)


def _budget_text(most: int | None, quality: float, *, has_metric: bool) -> str:
    from torchglass.tables.text import format_bytes

    if most is not None:
        return f"at most {format_bytes(most)} of weights"
    return (
        f"a metric of at least {quality:.4g}" if has_metric else f"at least {quality:.0f} dB SQNR"
    )

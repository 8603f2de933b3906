"""The result of `quantization`: how each layer tolerates low precision, and a mix of formats."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

from torchglass.errors import LookupFailedError
from torchglass.records.measures import LayerQuantization, PrecisionMix
from torchglass.results.report import ListReport
from torchglass.tables.text import (
    Column,
    Fact,
    format_bytes,
    format_shape,
    name_text,
    number_column,
    plural,
)
from torchglass.targets.names import near_or_all

_SCALES = {"tensor": "per tensor", "channel": "per channel"}
_MOST_KEPT = 5


class Quantization(ListReport[LayerQuantization]):
    """What each weight loses in low precision, and a mix that saves most; print it or export it."""

    def __init__(
        self,
        name: str,
        measured: Sequence[LayerQuantization],
        mix: PrecisionMix,
        *,
        samples: int,
        budget: str,
        baseline: float | None = None,
    ) -> None:
        self.name = name
        self.measured = tuple(measured)
        """Every weight in every format, in the order of the model."""
        self.entries = sorted(measured, key=lambda one: one.sqnr_db)
        """The same, the most sensitive first."""
        self.mix = mix
        """The suggestion, measured as a whole."""
        self.samples = samples
        self.budget = budget
        self.baseline = baseline
        """The metric of the model as it is; None without one."""

    @property
    def title(self) -> str:
        """The name of the model."""
        return self.name

    def __getitem__(self, name: str) -> list[LayerQuantization]:
        """What was measured of one weight."""
        found = [one for one in self.measured if one.name == name]
        if not found:
            names = dict.fromkeys(one.name for one in self.measured)
            raise LookupFailedError(f"no weight {name!r} was quantized{near_or_all(name, names)}")
        return found

    @property
    def answer(self) -> str:
        """What can be saved at which quality, in one sentence."""
        mix = self.mix
        if not mix.layers:
            return f"No weight of {self.name} can be quantized within {self.budget}."
        saved = 1 - mix.bytes / mix.original_bytes
        formats = Counter(one.format for one in mix.layers)
        parts = [f"{plural(count, 'weight')} in {name}" for name, count in formats.items()]
        quality = f"{mix.sqnr_db:.1f} dB SQNR"
        if mix.metric is not None and self.baseline is not None:
            quality = f"a metric of {mix.metric:.4g} (was {self.baseline:.4g}), {quality}"
        return (
            f"Storing {' and '.join(parts)} saves {saved:.0%} "
            f"({format_bytes(mix.original_bytes)} → {format_bytes(mix.bytes)}) at {quality}, "
            "measured with all of them at once."
        )

    def to_dict(self) -> dict[str, Any]:
        """The report as dicts, lists, strings and numbers."""
        return {
            **super().to_dict(),
            "samples": self.samples,
            "budget": self.budget,
            "baseline": self.baseline,
            "mix": dataclasses.asdict(self.mix),
        }

    def _columns(self) -> Sequence[Column[LayerQuantization]]:
        has_metric = self.baseline is not None
        chosen = {(one.name, one.format, one.scale) for one in self.mix.layers}
        return [
            Column(
                "weight",
                "Weight",
                lambda one: name_text(one.name),
                right=False,
                value=lambda one: one.name,
            ),
            Column("shape", "Shape", lambda one: format_shape(one.shape), right=False, spare=3),
            Column(
                "format",
                "Format",
                lambda one: one.format,
                right=False,
                value=lambda one: one.format,
            ),
            Column(
                "scale",
                "Scale",
                lambda one: _SCALES[one.scale],
                right=False,
                value=lambda one: one.scale,
            ),
            Column(
                "sqnr",
                "SQNR",
                lambda one: f"{one.sqnr_db:.1f} dB",
                csv="sqnr_db",
                value=lambda one: one.sqnr_db,
            ),
            Column(
                "weight_sqnr",
                "Of weight",
                lambda one: f"{one.weight_sqnr_db:.1f} dB",
                spare=2,
                csv="weight_sqnr_db",
                value=lambda one: one.weight_sqnr_db,
            ),
            Column(
                "metric",
                "Metric" if has_metric else "",
                lambda one: f"{one.metric:.4g}" if one.metric is not None else "",
                value=lambda one: one.metric,
            ),
            number_column(
                "saved",
                "Saves",
                lambda one: one.original_bytes - one.bytes,
                format_bytes,
                csv="saved_bytes",
            ),
            number_column(
                "outliers",
                "Outlier channels" if any(one.outlier_channels for one in self.measured) else "",
                lambda one: one.outlier_channels,
                str,
                spare=4,
                csv="outlier_channels",
            ),
            number_column(
                "outlier_inputs",
                "Outlier inputs" if any(one.outlier_inputs for one in self.measured) else "",
                lambda one: one.outlier_inputs,
                str,
                spare=5,
                csv="outlier_inputs",
            ),
            Column(
                "suggested",
                "Suggested",
                lambda one: "yes" if (one.name, one.format, one.scale) in chosen else "",
                right=False,
                value=lambda one: (one.name, one.format, one.scale) in chosen,
            ),
        ]

    def _facts(self) -> list[Fact]:
        kept = ", ".join(name_text(name) for name in self.mix.kept[:_MOST_KEPT])
        rest = len(self.mix.kept) - _MOST_KEPT
        more = f" and {rest:,} more" if rest > 0 else ""
        facts = [Fact("Budget", self.budget)]
        return facts + ([Fact("Kept", f"{kept}{more}")] if kept else [])

    def _notes(self) -> list[str]:
        where = f"measured on {plural(self.samples, 'sample')}, in eval mode"
        return [
            f"{where}; weights are rounded, activations are not",
            "SQNR of 20 dB is an error of 10 % at the outputs, 40 dB of 1 %",
        ]

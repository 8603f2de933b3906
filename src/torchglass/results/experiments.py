"""The results of `quantization` and `pruning`: what a model loses, and what that saves."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from torchglass.errors import LookupFailedError
from torchglass.records.measures import GroupPruning, LayerQuantization, PrecisionMix, PrunedSpeed
from torchglass.records.model import Model
from torchglass.results.report import ListReport
from torchglass.tables.text import (
    Column,
    Fact,
    format_bytes,
    format_flops,
    format_shape,
    format_share,
    format_time,
    name_text,
    number_column,
    plural,
)
from torchglass.targets.names import near_or_all

if TYPE_CHECKING:
    from torch import nn

R = TypeVar("R")
_SCALES = {"tensor": "per tensor", "channel": "per channel"}
_MOST_KEPT = 5
_OUTLIERS = {"outlier_channels": "Outlier channels", "outlier_inputs": "Outlier inputs"}
_SHARES = (0.25, 0.5, 0.75)
"""The shares of pruned channels that have a column beside the tree."""


class Quantization(ListReport[LayerQuantization]):
    """What each weight loses in low precision, and a mix that saves most; print it or export it."""

    _most_rows = 30

    def __init__(
        self,
        model: Model,
        measured: Sequence[LayerQuantization],
        mix: PrecisionMix,
        *,
        samples: int,
        budget: str,
        baseline: float | None = None,
    ) -> None:
        self.model = model
        """The structure of the model."""
        self.name = model.name
        self.measured = tuple(measured)
        """Every weight in every format, in the order of the model."""
        self.entries = sorted(measured, key=lambda one: one.sqnr_db)
        """The same, the most sensitive first."""
        self.mix = mix
        """The suggestion, measured as a whole."""
        self._chosen = {(one.name, one.format, one.scale) for one in mix.layers}
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
                bar=lambda one: _error(one.sqnr_db),
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
                lambda one: "yes" if self._is_suggested(one) else "",
                right=False,
                value=self._is_suggested,
            ),
        ]

    def _paths(self, entry: LayerQuantization) -> Sequence[str]:
        return (entry.name.rpartition(".")[0],)

    def _is_suggested(self, entry: LayerQuantization) -> bool:
        return (entry.name, entry.format, entry.scale) in self._chosen

    def _module_columns(self) -> Sequence[Column[Sequence[LayerQuantization]]]:
        whole = max(self.mix.original_bytes, 1)

        def suggested(rows: Iterable[LayerQuantization]) -> list[LayerQuantization]:
            return [one for one in rows if self._is_suggested(one)]

        def formats(rows: Sequence[LayerQuantization]) -> str:
            names = {one.name: one.format for one in suggested(rows)}
            kept = ["kept"] if {one.name for one in rows} - names.keys() else []
            return ", ".join([*dict.fromkeys(names.values()), *kept])

        def saved(rows: Sequence[LayerQuantization]) -> int:
            return sum(one.original_bytes - one.bytes for one in suggested(rows))

        return [
            *(_quality_column(one, partial(_worst_of, one)) for one in self._formats),
            Column("suggested", "suggested", formats, right=False, value=formats),
            Column(
                "saves",
                "saves",
                lambda rows: format_bytes(saved(rows)) if saved(rows) else "",
                value=saved,
                bar=lambda rows: saved(rows) / whole,
            ),
        ]

    @property
    def _formats(self) -> list[str]:
        return list(dict.fromkeys(one.format for one in self.measured))

    def _printed(self) -> tuple[Sequence[Column[Any]], Sequence[Any]]:
        """A row for each weight, and a column for each format; the most sensitive weight first."""
        weights: dict[str, list[LayerQuantization]] = {}
        for one in self.entries:
            weights.setdefault(one.name, []).append(one)

        def lowest(rows: Sequence[LayerQuantization]) -> float:
            return min(_worst_of(one, rows) or math.inf for one in self._formats)

        return list(self._printed_columns()), sorted(weights.values(), key=lowest)

    def _printed_columns(self) -> Iterator[Column[Sequence[LayerQuantization]]]:
        def chosen(rows: Sequence[LayerQuantization]) -> LayerQuantization | None:
            return next(filter(self._is_suggested, rows), None)

        def suggestion(rows: Sequence[LayerQuantization]) -> str:
            one = chosen(rows)
            return "keep" if one is None else f"{one.format} {_SCALES[one.scale]}"

        def saved(rows: Sequence[LayerQuantization]) -> str:
            one = chosen(rows)
            return "" if one is None else format_bytes(one.original_bytes - one.bytes)

        yield Column("weight", "Weight", lambda rows: name_text(rows[0].name), right=False)
        yield Column(
            "shape", "Shape", lambda rows: format_shape(rows[0].shape), right=False, spare=3
        )
        for one in self._formats:
            yield _quality_column(one, partial(_worst_of, one), digits=1)
            if self.baseline is not None:
                metric = partial(_metric_of, one)
                yield Column(f"metric_{one}", f"Metric {one}", metric, spare=2)
        yield Column("suggested", "Suggested", suggestion, right=False)
        yield Column("saved", "Saves", saved, spare=1)
        for key, heading in _OUTLIERS.items():
            if any(getattr(one, key) for one in self.measured):
                yield Column(key, heading, partial(_most_of, key), spare=4)

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
            "SQNR is measured with one weight at a time in a format, with its better scale",
            "SQNR of 20 dB is an error of 10 % at the outputs, 40 dB of 1 %",
        ]


def _worst_of(format: str, rows: Iterable[LayerQuantization]) -> float | None:
    """The lowest SQNR of some weights in a format, each with its better scale."""
    best: dict[str, float] = {}
    for one in rows:
        if one.format == format:
            best[one.name] = max(best.get(one.name, -math.inf), one.sqnr_db)
    return min(best.values(), default=None)


def _metric_of(format: str, rows: Iterable[LayerQuantization]) -> str:
    """The metric of one weight in a format, with its better scale."""
    best = max((one for one in rows if one.format == format), key=lambda one: one.sqnr_db)
    return "" if best.metric is None else f"{best.metric:.4g}"


def _most_of(key: str, rows: Iterable[LayerQuantization]) -> str:
    most = max(getattr(one, key) for one in rows)
    return f"{most:,}" if most else ""


class Pruning(ListReport[GroupPruning]):
    """What a model loses without some of its channels, and a suggestion; print it or export it."""

    def __init__(
        self,
        model: Model,
        measured: Sequence[GroupPruning],
        removed: Mapping[int, int],
        *,
        cut: Callable[[], nn.Module],
        flops: int,
        pruned_flops: int,
        sqnr_db: float,
        metric: float | None,
        baseline: float | None,
        speed: PrunedSpeed | None,
        samples: int,
        skipped: Sequence[str] = (),
    ) -> None:
        self.model = model
        """The structure of the model."""
        self.name = model.name
        self.measured = tuple(measured)
        """Every group at every share that was tried, in the order of the model."""
        self.entries = sorted(measured, key=self._harm_per_flop)
        """The same, the least harm for the FLOPs saved first."""
        self.removed = dict(removed)
        """The suggestion: how many channels to remove, by the number of the group."""
        self._cut = cut
        self.flops, self.pruned_flops = flops, pruned_flops
        self.sqnr_db, self.metric, self.baseline = sqnr_db, metric, baseline
        self.speed = speed
        """The time of a forward with and without the channels; None if it was not measured."""
        self.samples = samples
        self.skipped = tuple(skipped)

    @property
    def title(self) -> str:
        """The name of the model."""
        return self.name

    def apply(self) -> nn.Module:
        """A copy of the model, in eval mode, with the suggested channels cut out of all layers."""
        return self._cut()

    @property
    def answer(self) -> str:
        """What can be saved, in one sentence."""
        if not self.removed:
            return f"No channels of {self.name} were chosen: no group saves FLOPs."
        channels = sum(self.removed.values())
        saved = 1 - self.pruned_flops / max(self.flops, 1)
        quality = f"{self.sqnr_db:.1f} dB SQNR"
        if self.metric is not None and self.baseline is not None:
            quality = f"a metric of {self.metric:.4g} (was {self.baseline:.4g}), {quality}"
        faster = ""
        if self.speed is not None:
            faster = f" and makes a forward {self.speed.plain_s / self.speed.cut_s:.2f}× as fast"
        return (
            f"Removing {plural(channels, 'channel')} from {plural(len(self.removed), 'group')} "
            f"saves {saved:.0%} of the FLOPs{faster}, at {quality} before any fine-tuning."
        )

    def to_dict(self) -> dict[str, Any]:
        """The report as dicts, lists, strings and numbers."""
        return {
            **super().to_dict(),
            "removed": {str(group): count for group, count in self.removed.items()},
            "flops": self.flops,
            "pruned_flops": self.pruned_flops,
            "sqnr_db": self.sqnr_db,
            "metric": self.metric,
            "baseline": self.baseline,
            "speed": None if self.speed is None else dataclasses.asdict(self.speed),
            "samples": self.samples,
            "skipped": list(self.skipped),
        }

    def _harm_per_flop(self, one: GroupPruning) -> float:
        return float(10 ** (-one.sqnr_db / 10) / max(one.saved_flops, 1))

    def _columns(self) -> Sequence[Column[GroupPruning]]:
        return [
            Column(
                "layers",
                "Layers",
                lambda one: name_text(", ".join(one.layers)),
                right=False,
                value=lambda one: ", ".join(one.layers),
            ),
            Column("group", value=lambda one: one.group),
            number_column("channels", "Channels", lambda one: one.channels, str, csv="channels"),
            number_column("removed", "Removed", lambda one: one.removed, str, csv="removed"),
            Column(
                "sqnr",
                "SQNR",
                lambda one: f"{one.sqnr_db:.1f} dB",
                csv="sqnr_db",
                value=lambda one: one.sqnr_db,
                bar=lambda one: _error(one.sqnr_db),
            ),
            Column(
                "metric",
                "Metric" if self.baseline is not None else "",
                lambda one: f"{one.metric:.4g}" if one.metric is not None else "",
                value=lambda one: one.metric,
            ),
            number_column(
                "saved", "Saves", lambda one: one.saved_flops, format_flops, csv="saved_flops"
            ),
            Column(
                "share", "share", lambda one: format_share(one.saved_flops, self.flops), spare=1
            ),
            Column(
                "harm",
                "Harm per GFLOP",
                lambda one: f"{1e9 * self._harm_per_flop(one):.3g}",
                spare=2,
                csv="harm_per_gflop",
                value=lambda one: 1e9 * self._harm_per_flop(one),
            ),
            Column(
                "suggested",
                "Suggested",
                lambda one: "yes" if self._is_suggested(one) else "",
                right=False,
                value=self._is_suggested,
            ),
        ]

    def _paths(self, entry: GroupPruning) -> Sequence[str]:
        return entry.layers

    def _is_suggested(self, entry: GroupPruning) -> bool:
        return self.removed.get(entry.group) == entry.removed

    def _module_columns(self) -> Sequence[Column[Sequence[GroupPruning]]]:
        def suggested(rows: Sequence[GroupPruning]) -> list[GroupPruning]:
            return [one for one in rows if self._is_suggested(one)]

        def removed(rows: Sequence[GroupPruning]) -> str:
            channels = sum({one.group: one.channels for one in rows}.values())
            gone = sum(one.removed for one in suggested(rows))
            return f"{gone:,} of {channels:,}" if gone else "kept"

        def saved(rows: Sequence[GroupPruning]) -> int:
            return sum(one.saved_flops for one in suggested(rows))

        def column(share: float) -> Column[Sequence[GroupPruning]]:
            def worst(rows: Sequence[GroupPruning]) -> float | None:
                cut = [one for one in rows if one.removed == int(share * one.channels)]
                return min((one.sqnr_db for one in cut), default=None)

            return _quality_column(f"−{share:.0%}", worst)

        return [
            *map(column, _SHARES),
            Column("removed", "removed", removed, right=False, value=removed),
            Column(
                "saves",
                "saves",
                lambda rows: format_flops(saved(rows)) if saved(rows) else "",
                value=saved,
                bar=lambda rows: saved(rows) / max(self.flops, 1),
            ),
        ]

    def _facts(self) -> list[Fact]:
        facts = [
            Fact("FLOPs", f"{format_flops(self.flops)} → {format_flops(self.pruned_flops)}"),
        ]
        if self.speed is not None:
            one = self.speed
            facts += [
                Fact("Time", f"{format_time(one.plain_s)} → {format_time(one.cut_s)} a forward"),
                Fact(
                    "Zeroed",
                    f"{format_time(one.zeroed_s)}: setting the same weights to zero saves no time",
                ),
            ]
        return facts

    def _notes(self) -> list[str]:
        notes = [
            f"measured on {plural(self.samples, 'sample')}, in eval mode, without fine-tuning",
            "each row removes the least important channels of one group only",
            "harm is the squared relative error of the outputs; the least per GFLOP comes first",
        ]
        if self.speed is not None:
            notes.append(f"times are the shortest of {self.speed.repeats} forwards on this machine")
        return [*notes, *(f"not prunable: {reason}" for reason in self.skipped)]


def _quality_column(
    heading: str, worst: Callable[[Sequence[R]], float | None], digits: int = 0
) -> Column[Sequence[R]]:
    """The lowest SQNR of some rows, the hotter the larger the error at the outputs is."""

    def text(rows: Sequence[R]) -> str:
        found = worst(rows)
        return "" if found is None else f"{found:.{digits}f} dB"

    name = f"SQNR {heading}"
    return Column(name, heading, text, value=worst, bar=lambda rows: _error(worst(rows) or 0.0))


def _error(sqnr_db: float) -> float:
    """The error at the outputs of the model, relative to them; at most 1."""
    return float(min(10 ** (-sqnr_db / 20), 1.0))

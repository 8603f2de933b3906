"""The panels of a training: recorded values over steps, and gradients layer by layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from rich.cells import cell_len

from torchglass.analyse.gradient_flow import (
    GRADIENT,
    UPDATE,
    Layer,
    Numbers,
    gradient_norms,
    layers,
    update_ratios,
)
from torchglass.analyse.histograms import quantiles
from torchglass.analyse.pixels import draw_bands, half_blocks, squeeze
from torchglass.records.model import Model
from torchglass.records.run import Points, Series, SeriesId
from torchglass.tables.text import harmless, sparkline
from torchglass.views.tui.explorer_state import ExplorerState, moving
from torchglass.views.tui.keys import bindings
from torchglass.views.tui.panels.panel import Panel
from torchglass.views.tui.styled_text import LazyRows, TextRow, bar, fit, fit_path, text

_AXIS = 9
_VALUE, _TREND, _WORD = 10, 24, 5
_HIGHEST, _LOWEST = 16, 2
_BESIDE = 2
"""The lines above and below a chart: its title and its steps."""
_MOMENTS = ", range, mean ± standard deviation"
_SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
_COLORS = {True: (0x24406B, 0x3F6BB0, 0xA9C7FF), False: (0xCFE0FB, 0x8DB4F0, 0x1C5FC4)}
"""Outer band, inner band and line, on dark and on light."""


class SeriesPanel(Panel):
    """The series of the module, and a chart of the selected one."""

    key: ClassVar[str] = "v"
    title: ClassVar[str] = "Series"
    missing: ClassVar[str] = "No series recorded: train with tg.watch(model)"
    has_cursor = True
    BINDINGS: ClassVar = bindings("panel:percentiles")

    def __init__(self, state: ExplorerState) -> None:
        super().__init__(state)
        self._percentiles = True
        self._step: int | None = None
        """The step that was asked for."""

    def point_at(self, names: Sequence[str], step: int | None) -> None:
        """Select the series of one of these names, or beginnings or ends of one; mark a step."""
        self._step = step
        series = self._series()
        for name in names:
            found = (
                at
                for at, one in enumerate(series)
                if one.name.startswith(name) or one.name.endswith(name)
            )
            at = next(found, None)
            if at is not None:
                self.row = at
                break
        self.follow(False)
        self.go(self.row)

    @classmethod
    def available(cls, state: ExplorerState) -> bool:
        return state.has_series()

    def extra_places(self) -> Iterable[str]:
        series = self._series()
        if series and self.state.histograms(self._selected(series)):
            yield "panel:percentiles"

    def _selected(self, series: Sequence[Series]) -> Series:
        return series[min(self.row, len(series) - 1)]

    def _series(self) -> list[Series]:
        return sorted(self.state.series_at(self.module), key=_rank)

    def wanted(self) -> Iterable[SeriesId]:
        return [one.id for one in self._series()]

    def action_bands(self) -> None:
        self._percentiles = not self._percentiles
        self.follow(False)

    def stood(self) -> None:
        self.follow(False)

    def notify_style_update(self) -> None:
        super().notify_style_update()
        if self.is_mounted:
            self.follow(False)

    def follow(self, moved: bool) -> None:
        if moved:
            self._step = None
        series = self._series()
        if not series:
            where = harmless(self.module.path) or "the model itself"
            self.say(f"No series recorded for {where}.")
            return
        height = self.scrollable_content_region.height
        # The list below the chart can be scrolled.
        listed = min(len(series), max(height // 4, 1))
        beside = _BESIDE + (self._step is not None)
        lines = min(max(height - listed - beside, _LOWEST), _HIGHEST)
        self.put(self._list(series), list(self._chart(self._selected(series), lines)))

    def _list(self, series: Sequence[Series]) -> list[TextRow]:
        names = [harmless(one.name) for one in series]
        width = min(max(map(cell_len, names)), max(self.room // 2, 8))
        trend = min(max(self.room - width - _VALUE - _WORD - 2, 4), _TREND)
        rows = []
        for one, name in zip(series, names, strict=True):
            values = self.state.values(one)
            latest = f"{values[-1]:.3g}" if len(values) else "…"
            pieces = [
                (fit(name, width), "name"),
                (f"{latest:>{_VALUE}}  ", "number"),
                (sparkline(squeeze(values, trend), trend), "spark"),
                ("" if one.kind == "scalar" else f"  {moving(one)}", "faint"),
            ]
            rows.append(TextRow(pieces))
        return rows

    def _chart(self, series: Series, height: int) -> Iterator[TextRow]:
        points = self.state.points(series)
        if points is None or not len(points):
            yield TextRow([(harmless(series.name), "path"), ("  …", "muted")])
            return
        yield TextRow(list(_title(points)))
        lines = self._lines(points)
        colors = _COLORS[self.app.current_theme.dark][-(len(lines) + 1) // 2 :]
        # Odd, so that a range that is symmetric around zero has a middle line.
        picture, low, high = draw_bands(lines, colors, 2 * height - 1)
        cells = half_blocks(picture)
        labels = [f"{high:.3g}", *[""] * (len(cells) - 2), f"{low:.3g}"]
        for label, pixels in zip(labels, cells, strict=True):
            yield TextRow([(fit(label, _AXIS, right=True) + " ", "muted")], pictures=[pixels])
        told = f"step {int(points.steps[0]):,} … {int(points.steps[-1]):,}"
        if series.kind != "scalar":
            shows_percentiles = self._percentiles and self.state.histograms(series)
            told += ", percentiles 5 · 25 · 50 · 75 · 95" if shows_percentiles else _MOMENTS
        yield text(" " * (_AXIS + 1) + told, "faint")
        yield from self._marked(points)

    def _marked(self, points: Points) -> Iterator[TextRow]:
        """The step that was asked for, below its place in the chart."""
        if self._step is None or len(points) < 2:
            return
        at = min(int(np.searchsorted(points.steps, self._step)), len(points) - 1)
        value = points.column(moving(points.series))[at]
        words = f" step {int(points.steps[at]):,}: {value:.4g}"
        width = max(self.room - _AXIS - 1, 4)
        place = min(at * width // len(points), width - 1)
        line = f"{words.strip()} ▲" if place >= len(words) + 2 else f"▲{words}"
        start = place + 1 - len(line) if line.endswith("▲") else place
        yield text(" " * (_AXIS + 1 + start) + line, "problem")

    def _lines(self, points: Points) -> Sequence[Numbers]:
        """The lines to draw, lowest first, as long as the chart is wide."""
        width = max(self.room - _AXIS - 1, 4)
        histograms = self.state.histograms(points.series)
        lines: Sequence[Numbers]
        if histograms and self._percentiles:
            # At most as many steps as the chart is wide, evenly spaced.
            steps = np.unique(np.linspace(0, len(histograms) - 1, width).astype(int))
            found = [quantiles(histograms.bins[step], _SHARES) for step in steps]
            lines = list(np.array(found).T)
        else:
            lines = [np.array(squeeze(line, width)) for line in _moments(points)]
        # A training that has just begun is stretched to the full width.
        return [line[np.arange(width) * len(line) // width] for line in lines]


def _rank(series: Series) -> int:
    """Losses first, then logged values, then recorded tensors, then inputs."""
    place = series.name.rpartition(":")[2]
    if "loss" in place:
        return 0
    if series.kind == "scalar" and "." not in place:
        return 1
    return 3 if place.startswith("input") else 2


def _moments(points: Points) -> Sequence[Numbers]:
    if points.series.kind == "scalar":
        return [points.column("value")]
    low, high, mean, std = (points.column(name) for name in ("min", "max", "mean", "std"))
    return [low, np.maximum(mean - std, low), mean, np.minimum(mean + std, high), high]


def _title(points: Points) -> Iterator[tuple[str, str]]:
    yield f"{harmless(points.series.name)}  ", "path"
    if points.series.kind == "scalar":
        yield f"{points.column('value')[-1]:.4g}", "number"
        return
    for name in ("mean", "std", "min", "max"):
        yield f"{name} ", "muted"
        yield f"{points.column(name)[-1]:.3g}  ", "number"
    for name, word in (("nan", "NaN"), ("inf", "Inf")):
        count = points.column(name)[-1]
        if count:
            yield f"{count:,.0f} {word}  ", "problem"


Quantity = Literal["gradient norm", "update ratio", "output gradient"]

_NORMS = ".grad_norm"
"""The suffix of series of gradient norms per sample."""
_NUMBER, _FLOW_TREND = 9, 12
_MOST_NAME = 36
_NOT_READ = -1.0
_TOO_MUCH = {"gradient norm": 1e3, "update ratio": 0.1, "output gradient": 1e3}
_TOO_LITTLE = 1e-7


@dataclass(frozen=True, slots=True)
class _LayerValue:
    """A layer and its latest value."""

    layer: Layer
    latest: float


class GradientFlowPanel(Panel):
    """A bar for each layer on a log scale, at the latest step."""

    key: ClassVar[str] = "G"
    title: ClassVar[str] = "Gradient flow"
    missing: ClassVar[str] = "No gradients recorded: train with tg.watch(model)"
    has_cursor = True
    BINDINGS: ClassVar = bindings("panel:gradient flow", "panel:quantities")

    def __init__(self, state: ExplorerState) -> None:
        super().__init__(state)
        self._quantity: Quantity = "gradient norm"
        self._flows: Mapping[Quantity, Sequence[Layer]] = {}
        self._largest_first = False

    @classmethod
    def available(cls, state: ExplorerState) -> bool:
        return any(one.name.endswith((GRADIENT, UPDATE, _NORMS)) for one in state.all_series())

    def extra_places(self) -> Iterable[str]:
        if len(self._flows) > 1:
            yield "panel:quantities"

    def wanted(self) -> Iterable[SeriesId]:
        for known in _flows(self.state).values():
            for layer in known:
                yield from (one.id for one in (*layer.gradients, *layer.updates))

    def action_quantity(self) -> None:
        known = list(self._flows)
        if known:
            self._quantity = known[(known.index(self._quantity) + 1) % len(known)]
            self.follow(True)

    def action_sort(self) -> None:
        self._largest_first = not self._largest_first
        self.follow(False)

    def follow(self, moved: bool) -> None:
        self._flows = _flows(self.state)
        if self._quantity not in self._flows:
            self._quantity = next(iter(self._flows), self._quantity)
        measures = [self._measure(layer) for layer in self._flows.get(self._quantity, ())]
        self.subtitle = self._quantity
        if not measures:
            self.say("No gradients recorded.")
            return
        if self._largest_first:
            measures.sort(key=lambda one: (not math.isnan(one.latest), -one.latest))
        self.put(*self._bars(measures))
        if moved:
            inside = (at for at, one in enumerate(measures) if self._is_inside(one.layer))
            self.go(next(inside, 0))

    def _measure(self, layer: Layer) -> _LayerValue:
        """The latest value of a layer, without reading the steps before."""

        def last(series: Series) -> Points | None:
            points = self.state.points(series)
            if points is None or not len(points):
                return None
            return replace(points, steps=points.steps[-1:], values=points.values[-1:])

        latest = self._values(layer, last)
        return _LayerValue(layer, float(latest[-1]) if len(latest) else _NOT_READ)

    def _values(self, layer: Layer, points: Callable[[Series], Points | None]) -> Numbers:
        read = update_ratios if self._quantity == "update ratio" else gradient_norms
        return read(layer, points)

    def _is_inside(self, layer: Layer) -> bool:
        path = self.module.path
        return bool(path) and (layer.path == path or layer.path.startswith(f"{path}."))

    def _label(self, layer: Layer) -> str:
        return harmless(layer.path or self.state.model.name)

    def _bars(self, measures: Sequence[_LayerValue]) -> tuple[Sequence[TextRow], list[TextRow]]:
        """A row for each layer, and the header."""
        low, high = _decades(measures)
        longest = max(cell_len(self._label(one.layer)) for one in measures)
        name = min(longest, _MOST_NAME, max(self.room * 2 // 5, 8))
        room = max(self.room - name - _NUMBER - _FLOW_TREND - 6, 6)

        def draw(at: int) -> TextRow:
            layer, value = measures[at].layer, measures[at].latest
            filled, rest = bar(_place(value, low, high), room)
            style = _style(value, self._quantity)
            number = "…" if value == _NOT_READ else "0" if value == 0 else f"{value:.2e}"
            trend = squeeze(self._values(layer, self.state.points), _FLOW_TREND)
            pieces = [
                (fit_path(self._label(layer), name) + "  ", "name"),
                (filled if value > 0 else "", style),
                (rest if value > 0 else "─" * room, "faint"),
                (f"{number:>{_NUMBER}}  ", "number" if style == "bar" else style),
                (sparkline(trend, _FLOW_TREND), "spark"),
            ]
            return TextRow(pieces, layer.path, "marked" if self._is_inside(layer) else "plain")

        scale = f"log scale, 1e{low} … 1e{high}"
        title = TextRow([(fit("layer", name + 2), "header"), (scale, "muted")])
        return LazyRows(len(measures), draw), [title]


def _flows(state: ExplorerState) -> dict[Quantity, list[Layer]]:
    """The layers of each quantity that was recorded."""
    model, series = state.model, state.all_series()
    holding = layers(model, series)
    found: dict[Quantity, list[Layer]] = {
        "gradient norm": [layer for layer in holding if layer.gradients],
        "update ratio": [layer for layer in holding if layer.updates],
        "output gradient": output_layers(model, series),
    }
    return {quantity: known for quantity, known in found.items() if known}


def output_layers(model: Model, series: Iterable[Series]) -> list[Layer]:
    """The modules whose output gradients were recorded, in model order.

    The norm over all samples is the norm of the whole gradient.
    """
    found: dict[str, dict[str, Series]] = {}
    for one in series:
        for ending in (GRADIENT, _NORMS):
            stem = one.name.removesuffix(ending)
            is_output = stem.rpartition(":")[2].partition(".")[0] == "output"
            if stem != one.name and is_output and model.find(one.path):
                # One of both is enough, and only gradients count NaN.
                known = found.setdefault(one.path, {})
                known[stem] = one if ending == GRADIENT else known.get(stem, one)
    return [
        Layer(path=module.path, gradients=tuple(found[module.path].values()))
        for module in model.modules
        if module.path in found
    ]


def _decades(measures: Sequence[_LayerValue]) -> tuple[int, int]:
    """The powers of ten around all finite, positive values."""
    known = [one.latest for one in measures if one.latest > 0 and math.isfinite(one.latest)]
    if not known:
        return -1, 0
    low = math.floor(math.log10(min(known)))
    return low, max(math.ceil(math.log10(max(known))), low + 1)


def _place(value: float, low: int, high: int) -> float:
    if not value > 0:
        return 0.0
    return 1.0 if math.isinf(value) else (math.log10(value) - low) / (high - low)


def _style(value: float, quantity: Quantity) -> str:
    """Red where a gradient is 0, NaN or Inf; yellow where it is very large or small."""
    if math.isnan(value) or math.isinf(value) or value == 0:
        return "problem"
    if value > _TOO_MUCH[quantity] or 0 < value < _TOO_LITTLE:
        return "warning"
    return "bar"

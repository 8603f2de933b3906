"""The panel of values that were recorded over the steps of a training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

import numpy as np
from rich.cells import cell_len

from torchglass.analyse.gradient_flow import Numbers
from torchglass.analyse.histograms import quantiles
from torchglass.analyse.pixels import draw_bands, half_blocks, squeeze
from torchglass.records.series import Points, Series, SeriesId
from torchglass.records.tensors import Histograms
from torchglass.views.formats import harmless, sparkline
from torchglass.views.tui.explorer_state import ExplorerState, moving
from torchglass.views.tui.keys import panel_bindings
from torchglass.views.tui.panels.panel import Panel
from torchglass.views.tui.text_rows import TextRow, fit, text

_AXIS = 9
_VALUE, _TREND, _WORD = 10, 24, 5
_HIGHEST, _LOWEST = 16, 2
_BESIDE = 2
"""The lines above and below a chart: its title and its steps."""
_SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
_COLOURS = {True: (0x24406B, 0x3F6BB0, 0xA9C7FF), False: (0xCFE0FB, 0x8DB4F0, 0x1C5FC4)}
"""Outer band, inner band and line, on dark and on light."""


class SeriesPanel(Panel):
    """The series of the module, and a chart of the selected one."""

    key: ClassVar[str] = "v"
    title: ClassVar[str] = "Series"
    missing: ClassVar[str] = "Nothing recorded over steps: train with tg.watch(model)"
    has_cursor = True
    BINDINGS: ClassVar = panel_bindings("panel:percentiles")

    def __init__(self, state: ExplorerState) -> None:
        super().__init__(state)
        self._percentiles = True

    @classmethod
    def available(cls, state: ExplorerState) -> bool:
        return state.has_series()

    def extra_places(self) -> Iterable[str]:
        series = self._series()
        if series and self.state.histograms(series[min(self.row, len(series) - 1)]):
            yield "panel:percentiles"

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
        series = self._series()
        if not series:
            where = harmless(self.module.path) or "the model itself"
            self.say(f"Nothing recorded for {where} over steps.")
            return
        chart = self._chart(series[min(self.row, len(series) - 1)], self._chart_lines(len(series)))
        self.put(self._list(series), list(chart))

    def _list(self, series: Sequence[Series]) -> list[TextRow]:
        names = [harmless(one.name) for one in series]
        width = min(max(map(cell_len, names)), max(self.room // 2, 8))
        trend = min(max(self.room - width - _VALUE - _WORD - 2, 4), _TREND)
        rows = []
        for one, name in zip(series, names, strict=True):
            values = self.state.values(one)
            latest = f"{values[-1]:.3g}" if len(values) else "…"
            rows.append(
                TextRow(
                    [
                        (fit(name, width), "name"),
                        (f"{latest:>{_VALUE}}  ", "number"),
                        (sparkline(squeeze(values, trend), trend), "spark"),
                        ("" if one.kind == "scalar" else f"  {moving(one)}", "faint"),
                    ]
                )
            )
        return rows

    def _chart_lines(self, count: int) -> int:
        """The height of the chart above a list of `count` rows, which can be scrolled."""
        height = self.scrollable_content_region.height
        listed = min(count, max(height // 4, 1))
        return min(max(height - listed - _BESIDE, _LOWEST), _HIGHEST)

    def _chart(self, series: Series, height: int) -> Iterator[TextRow]:
        points = self.state.points(series)
        if points is None or not len(points):
            yield TextRow([(harmless(series.name), "path"), ("  …", "muted")])
            return
        yield TextRow(list(_title(points)))
        lines = self._lines(points)
        colours = _COLOURS[self.app.current_theme.dark][-(len(lines) + 1) // 2 :]
        # Odd, so that a range that is symmetric around zero has a middle line.
        picture, low, high = draw_bands(lines, colours, 2 * height - 1)
        cells = half_blocks(picture)
        labels = [f"{high:.3g}", *[""] * (len(cells) - 2), f"{low:.3g}"]
        for label, pixels in zip(labels, cells, strict=True):
            yield TextRow([(fit(label, _AXIS, right=True) + " ", "muted")], pictures=[pixels])
        first, last = int(points.steps[0]), int(points.steps[-1])
        told = f"step {first:,} … {last:,}{self._meaning(points)}"
        yield text(" " * (_AXIS + 1) + told, "faint")

    def _meaning(self, points: Points) -> str:
        if points.series.kind == "scalar":
            return ""
        if self._shows_percentiles(points):
            return ", 5 – 25 – 50 – 75 – 95 %"
        return ", range, mean ± standard deviation"

    def _shows_percentiles(self, points: Points) -> bool:
        return self._percentiles and bool(self.state.histograms(points.series))

    def _lines(self, points: Points) -> Sequence[Numbers]:
        """The lines to draw, lowest first, as long as the chart is wide."""
        width = max(self.room - _AXIS - 1, 4)
        histograms = self.state.histograms(points.series)
        if histograms and self._percentiles:
            lines = _percentiles(histograms, width)
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


def _percentiles(histograms: Histograms, width: int) -> Sequence[Numbers]:
    """The percentiles of at most `width` evenly spaced steps."""
    steps = np.unique(np.linspace(0, len(histograms) - 1, width).astype(int))
    found = np.array([quantiles(histograms.bins[step], _SHARES) for step in steps])
    return list(found.T)

"""The panel that a run opens on: verdict, loss, findings over steps, and layers × steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from rich.cells import cell_len
from textual import events
from textual.message import Message

from torchglass.analyse.pixels import (
    NOT_A_NUMBER,
    NOTHING,
    Picture,
    Scale,
    draw_bands,
    finite_range,
    half_blocks,
    paint,
)
from torchglass.analyse.training_overview import (
    STATISTICS,
    FindingEvent,
    HeatMap,
    LossCurve,
    Statistic,
    TrainingOverview,
    remedy_of,
)
from torchglass.records.findings import Finding
from torchglass.records.model import Module
from torchglass.tables.text import harmless, plural
from torchglass.views.tui.explorer_state import SEVERITY_MARKS, ExplorerState
from torchglass.views.tui.keys import bindings
from torchglass.views.tui.panels.panel import CURSOR_COLORS, Panel
from torchglass.views.tui.styled_text import Piece, TextRow, fit, fit_path, fit_pieces, text, wrap

_SEVERITIES = ("error", "warning", "info")
_VERDICTS = {
    "healthy": ("✓", "added"),
    "warning": ("!", "changed"),
    "broken": ("✗", "failed"),
}
_MOST_LABEL, _LABEL, _LEAST_LABEL, _LEAST_PLOT = 30, 16, 8, 8
_TALLEST = 3
"""Lines of a module where there is room."""
_LEGEND = 16
_DECADES = 12
"""The smallest value with its own color is this many decades below the largest."""
_LOG_LOSS = 1e3
"""A loss whose largest value is this many times its smallest is drawn on a log scale."""
_LOSS_COLORS = {True: (0x3F6BB0, 0xA9C7FF), False: (0x8DB4F0, 0x1C5FC4)}
_OF_STATISTIC: dict[Statistic, tuple[str, ...]] = {
    "gradient": ("weight.grad", "bias.grad", ".grad"),
    "activation": ("output",),
    "update": ("weight.update", ".update", "weight"),
    "dead": (".zeros", "output"),
}
"""What the series behind a statistic are named by, the best one first."""

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _PlotAxis:
    """The steps that the cells of a plot stand for: all have the same number of steps."""

    last_step: int
    width: int

    def cells(self, steps: npt.NDArray[np.int64]) -> list[slice]:
        """For each cell the measurements at its steps, or the last one before them."""
        edges = np.arange(self.width + 1) * (self.last_step + 1) / self.width
        ends = np.searchsorted(steps, edges[1:], side="left")
        starts = np.searchsorted(steps, edges[:-1], side="left")
        starts = np.minimum(starts, np.maximum(ends - 1, 0))
        return [slice(int(start), int(end)) for start, end in zip(starts, ends, strict=True)]

    def cell_of(self, step: int) -> int:
        return min(max(step, 0) * self.width // (self.last_step + 1), self.width - 1)


@dataclass(frozen=True, slots=True)
class _DrawnMap:
    """A heat map in the cells of the screen: groups of modules × cells."""

    source: HeatMap
    groups: list[slice]
    """The modules of each row of pixels."""
    cells: list[slice]
    values: Numbers
    nonfinite: npt.NDArray[np.bool_]

    def worst(self, group: int, cell: int) -> tuple[int, int]:
        """The row and column of the map that a pixel shows: the first NaN, or the largest value."""
        rows, columns = self.groups[group], self.cells[cell]
        marks = self.source.nonfinite[rows, columns]
        values = self.source.values[rows, columns]
        if not values.size:
            return rows.start, -1
        flat = marks.argmax() if marks.any() else np.nan_to_num(values, nan=-np.inf).argmax()
        row, column = np.unravel_index(int(flat), values.shape)
        return rows.start + int(row), columns.start + int(column)


class OverviewPanel(Panel):
    """How the training is, and where to look."""

    key: ClassVar[str] = "V"
    title: ClassVar[str] = "Overview"
    missing: ClassVar[str] = "No training recorded: train with tg.watch(model)"
    has_cursor = True
    BINDINGS: ClassVar = bindings("panel:overview")

    @dataclass
    class Shown(Message):
        """The user wants to see a module, one of its series, and a step of it."""

        path: str
        series: Sequence[str] = ()
        """The name of the series, or what such names end or begin with, the best first."""
        step: int | None = None

    @dataclass
    class Wanted(Message):
        """The user wants a heat map of another statistic."""

        statistic: Statistic

    def __init__(self, state: ExplorerState) -> None:
        super().__init__(state)
        self._at = 0
        """The finding, or after the findings the row of pixels, that the cursor is on."""
        self._cell: int | None = None
        """The cell of the cursor; None for the last one, also while the run continues."""
        self._is_zoomed = False
        self._top = 0
        """The first module that is drawn while zoomed."""
        self._map: _DrawnMap | None = None
        self._events: Sequence[FindingEvent] = ()
        self._rows_of: list[int] = []
        """The row of each place that the cursor can be on."""
        self._label = self._plot = 0
        self._tall = 1
        """The pixels of a row of modules; a line of text has two."""

    @classmethod
    def available(cls, state: ExplorerState) -> bool:
        return state.is_run or state.has_series()

    # The cursor

    def show(self, module: Module) -> None:
        """The whole run is shown, whatever module is selected."""
        self.module = module
        self.refresh_data()

    @property
    def _stops(self) -> int:
        return len(self._events) + (len(self._map.groups) if self._map else 0)

    @property
    def _is_on_map(self) -> bool:
        return self._map is not None and self._at >= len(self._events)

    @property
    def _cursor_cell(self) -> int:
        return self._plot - 1 if self._cell is None else min(self._cell, self._plot - 1)

    def action_line(self, by: int) -> None:
        modules = len(self._map.source.paths) if self._map else 0
        at = self._at + by
        if self._is_zoomed and self._is_on_map and at >= self._stops:
            self._top = min(self._top + by, max(modules - 1, 0))
        elif self._is_zoomed and self._is_on_map and at < len(self._events) and self._top:
            self._top = max(self._top + by, 0)
        self._at = min(max(at, 0), max(self._stops - 1, 0))
        self.follow(False)

    def action_step(self, by: int) -> None:
        """Go to another step; to the left and right of the map."""
        if self._map is None:
            return
        if not self._is_on_map:
            self._at = len(self._events)
        cell = self._cursor_cell + by
        self._cell = None if cell >= self._plot - 1 else max(cell, 0)
        self.follow(False)

    def action_statistic(self) -> None:
        """Show the next statistic that was recorded."""
        known = self.state.heat_statistics
        if known:
            now = self.state.heat_map.statistic if self.state.heat_map else known[0]
            at = known.index(now) if now in known else -1
            self.post_message(self.Wanted(known[(at + 1) % len(known)]))

    def action_zoom(self) -> None:
        """Toggle between all modules at once and a row for each module."""
        self._is_zoomed, self._top = not self._is_zoomed, 0
        self.follow(False)

    def action_choose(self) -> None:
        if not self._is_on_map:
            if self._at < len(self._events):
                event = self._events[self._at]
                series = [event.series.removeprefix(event.path).removeprefix(".")]
                step = None if event.is_of_all_steps else event.first_step
                self.post_message(self.Shown(event.path, [*filter(None, series)], step))
            return
        drawn = self._map
        assert drawn is not None
        row, column = drawn.worst(self._at - len(self._events), self._cursor_cell)
        names = _OF_STATISTIC[drawn.source.statistic]
        step = int(drawn.source.steps[column]) if column >= 0 else None
        self.post_message(self.Shown(drawn.source.paths[row], names, step))

    def on_click(self, event: events.Click) -> None:
        at = event.y - len(self.top()) + self.scroll_offset.y
        places = [place for place, row in enumerate(self._rows_of) if row == at]
        if not places:
            return
        self._at = places[0]
        if self._is_on_map:
            cell = event.x - 1 - self._label - 1
            self._cell = cell if 0 <= cell < self._plot - 1 else None
        self.follow(False)
        if event.chain == 2:
            self.action_choose()

    @property
    def position(self) -> str:
        return ""

    # Drawing

    def notify_style_update(self) -> None:
        super().notify_style_update()
        if self.is_mounted:
            self.follow(False)

    def follow(self, moved: bool) -> None:
        overview = self.state.overview
        if overview is None:
            self._events, self._map, self._rows_of = (), None, []
            self.say("Reading the run…")
            return
        self._events = sorted(
            overview.events, key=lambda one: (_SEVERITIES.index(one.severity), one.index)
        )
        heat_map = self.state.heat_map
        self._label = self._label_width(heat_map)
        self._plot = max(self.room - self._label - 1, _LEAST_PLOT)
        axis = _PlotAxis(max(overview.last_step, 0), self._plot)
        head = self._verdict(overview)
        height = max(self.scrollable_content_region.height - len(head), 1)
        loss = self._loss(overview, axis, height)
        strip = [self._strip_of_events(axis)] if self._events and overview.last_step > 0 else []
        below = len(loss) + len(strip)
        self._map = self._drawn(heat_map, axis, height - below - min(len(self._events), 4) - 3)
        self._at = min(self._at, max(self._stops - 1, 0))
        findings = [
            self._finding(at, one, overview.findings[one.index])
            for at, one in enumerate(self._events)
        ]
        cells = self._map_rows()
        first_cell = len(findings) + below + (1 if cells else 0)
        self._rows_of = [
            *range(len(findings)),
            *(first_cell + at * self._tall // 2 for at in range(self._stops - len(findings))),
        ]
        caption = [self._caption(overview, heat_map)] if overview.last_step >= 0 else []
        legend = [self._legend(self._map.source)] if cells and self._map else []
        rows = [*findings, *loss, *strip, *caption[: bool(cells)], *cells, *legend]
        self.subtitle = self._statistics_offered() if cells else ""
        self.put([*rows, *self._told(overview)] if cells else [*rows, *self._without_map()], head)
        if self._rows_of:
            self.go(self._rows_of[self._at])

    def _label_width(self, heat_map: HeatMap | None) -> int:
        paths = heat_map.paths if heat_map else ()
        longest = max((cell_len(harmless(path)) for path in paths), default=0)
        return max(min(max(longest, _LABEL), _MOST_LABEL, self.room // 4), _LEAST_LABEL)

    def _verdict(self, overview: TrainingOverview) -> list[TextRow]:
        """The verdict in one or two lines, then the state of the run."""
        word = overview.verdict
        mark, style = _VERDICTS[word] if word else ("…", "muted")
        height = self.scrollable_content_region.height
        problems = [one for one in overview.findings if one.severity != "info"]
        told = problems[0].message if problems else _without_problems(overview)
        pieces: list[Piece] = [(f"{mark} {(word or 'waiting').capitalize()}: ", style)]
        lines = list(wrap([*pieces, (harmless(told), "path")], self.room, "  "))
        most = 3 if height >= 18 else 1
        if len(lines) > most:
            cut = fit_pieces(lines[most - 1], self.room - 1, fill=False)
            lines[most - 1 :] = [[*cut, ("…", "muted")]]
        status = overview.status
        state_style = "problem" if status.has_failed else "muted"
        facts = [
            (harmless(overview.name), "muted"),
            (" · ", "faint"),
            (harmless(status.full), state_style),
            (f" · {plural(overview.last_step + 1, 'step')}", "muted"),
            (f" · {plural(len(problems), 'problem')}" if len(problems) > 1 else "", "muted"),
        ]
        return [*map(TextRow, lines), TextRow(fit_pieces(facts, self.room, fill=False))]

    def _finding(self, at: int, event: FindingEvent, finding: Finding) -> TextRow:
        """When it began and what it is; for the first one, the verdict, also what to do."""
        mark, style = SEVERITY_MARKS[event.severity]
        since = "all steps" if event.is_of_all_steps else f"step {event.first_step:,}"
        said = harmless(event.message)
        if at == 0 and event.severity != "info":
            where = f"`{event.path}`" if event.path else "the model"
            remedy = remedy_of(finding)
            said = harmless(f"do: {remedy}" if remedy else f"{event.kind} in {where}")
        label = fit(f"{mark} {since}", self._label)
        words = (said, "path" if at == self._at else "plain")
        return TextRow(fit_pieces([(label + " ", style), words], self.room), at)

    def _loss(self, overview: TrainingOverview, axis: _PlotAxis, height: int) -> list[TextRow]:
        loss = overview.loss
        if loss is None:
            if overview.last_step < 0 or height < 10:
                return []
            return [
                text(
                    fit('No loss logged: watcher.log("loss", loss) shows it here', self.room),
                    "faint",
                )
            ]
        lines = 6 if height >= 30 else 3 if height >= 14 else 1
        is_log, picture, low, high = _loss_picture(
            loss, axis, 2 * lines, self.app.current_theme.dark
        )
        last = f"{loss.last:.4g}"
        scale = " log" if is_log else ""
        labels = [f"{harmless(loss.name)} {last}", *[""] * (lines - 1)]
        if lines >= 3:
            labels = [f"{harmless(loss.name)}{scale}", f"{high:.3g}", *[""] * (lines - 3)]
            labels.append(f"{low:.3g}")
        styles = ["heading", *["muted"] * (lines - 1)]
        return [
            TextRow([(fit(label, self._label) + " ", style)], pictures=[pixels])
            for label, style, pixels in zip(labels, styles, half_blocks(picture), strict=True)
        ]

    def _strip_of_events(self, axis: _PlotAxis) -> TextRow:
        """When the findings were: a mark at the first step of each, a line to the last one."""
        glyphs, styles = [" "] * axis.width, ["plain"] * axis.width
        for event in reversed(self._events):
            mark, style = SEVERITY_MARKS[event.severity]
            first, last = axis.cell_of(event.first_step), axis.cell_of(event.last_step)
            for cell in range(first, last + 1):
                glyphs[cell], styles[cell] = "━", style
            glyphs[first] = mark
        pieces = [(glyph, style) for glyph, style in zip(glyphs, styles, strict=True)]
        return TextRow([(fit("findings", self._label) + " ", "heading"), *pieces])

    # The map

    def _drawn(self, heat_map: HeatMap | None, axis: _PlotAxis, lines: int) -> _DrawnMap | None:
        if heat_map is None or not heat_map:
            return None
        lines, modules = max(lines, 2), len(heat_map.paths)
        self._tall = 1 if modules > lines else 2 * min(lines // modules, _TALLEST)
        rows = 2 * lines // self._tall
        if self._is_zoomed:
            self._top = min(self._top, max(modules - rows, 0))
            groups = [slice(at, at + 1) for at in range(self._top, min(self._top + rows, modules))]
        else:
            edges = np.linspace(0, modules, min(rows, modules) + 1).round().astype(int)
            groups = [slice(int(a), int(b)) for a, b in pairwise(edges)]
        cells = axis.cells(heat_map.steps)
        values, marks = heat_map.values, heat_map.nonfinite
        by_cell = np.full((modules, len(cells)), np.nan)
        bad = np.zeros(by_cell.shape, np.bool_)
        for at, cell in enumerate(cells):
            if cell.stop > cell.start:
                by_cell[:, at] = np.fmax.reduce(values[:, cell], axis=1)
                bad[:, at] = marks[:, cell].any(axis=1)
        joined = np.array([np.fmax.reduce(by_cell[group], axis=0) for group in groups])
        return _DrawnMap(
            source=heat_map,
            groups=groups,
            cells=cells,
            values=joined,
            nonfinite=np.array([bad[group].any(axis=0) for group in groups]),
        )

    def _map_rows(self) -> list[TextRow]:
        drawn = self._map
        if drawn is None:
            return []
        picture = _picture(drawn)
        at = self._at - len(self._events)
        if at >= 0:
            picture[at, self._cursor_cell] = CURSOR_COLORS[self.app.current_theme.dark]
        picture = picture.repeat(self._tall, axis=0)
        rows = []
        for line, pixels in enumerate(half_blocks(picture)):
            groups = {
                line * 2 // self._tall,
                min((line * 2 + 1) // self._tall, len(drawn.groups) - 1),
            }
            here = at in groups
            is_first = line * 2 % self._tall == 0
            named = drawn.groups[at if here else min(groups)]
            path = harmless(drawn.source.paths[named.start]) or harmless(self.state.model.name)
            label = fit_path(path, self._label) if is_first else " " * self._label
            rows.append(TextRow([(label + " ", "path" if here else "muted")], pictures=[pixels]))
        return rows

    def _caption(self, overview: TrainingOverview, heat_map: HeatMap | None) -> TextRow:
        """The statistic above the labels, and the first and last step above the map."""
        title = heat_map.title if heat_map else ""
        left, right = "step 0", f"{overview.last_step:,}"
        if self._is_on_map:
            here = self._cursor_cell
            between = max(self._plot - len(left) - len(right), 0)
            ruler = [" "] * between
            at = here - len(left)
            if 0 <= at < between:
                ruler[at] = "▾"
            middle = "".join(ruler)
        else:
            middle = " " * max(self._plot - len(left) - len(right), 0)
        return TextRow(
            [(fit(title, self._label) + " ", "heading"), (f"{left}{middle}{right}", "faint")]
        )

    def _legend(self, heat_map: HeatMap) -> TextRow:
        """The color scale."""
        low, high = _ends(heat_map)
        shades = np.linspace(0.0, 1.0, _LEGEND)[None, :].repeat(2, axis=0)
        log = " (log)" if heat_map.is_logarithmic else ""
        pieces: list[Piece] = [(f"{_number(low)} … {_number(high)}{log} ", "muted")]
        if heat_map.nonfinite.any():
            pieces += [("× ", "failed"), ("NaN or Inf ", "muted")]
        scale = half_blocks(paint(shades, Scale(low=0.0, high=1.0)))[0]
        return TextRow(pieces, pictures=[scale])

    def _told(self, overview: TrainingOverview) -> Iterable[TextRow]:
        """What the cursor is on."""
        drawn = self._map
        if drawn is None or not self._is_on_map:
            return
        group = self._at - len(self._events)
        row, column = drawn.worst(group, self._cursor_cell)
        members = drawn.groups[group]
        heat_map = drawn.source
        path = harmless(heat_map.paths[row]) or harmless(self.state.model.name)
        more = members.stop - members.start - 1
        value, style = "not measured", "muted"
        step = ""
        if column >= 0 and drawn.cells[self._cursor_cell].stop > 0:
            first, last = int(heat_map.steps[column]), int(heat_map.last_steps[column])
            step = f"step {first:,}" if first == last else f"steps {first:,}–{last:,}"
            if heat_map.nonfinite[row, column]:
                value, style = "NaN or Inf", "problem"
            elif not math.isnan(heat_map.values[row, column]):
                value, style = f"{heat_map.values[row, column]:.3g}", "number"
        pieces: list[Piece] = [
            (path, "path"),
            (f" and {more} more" if more else "", "faint"),
            (f"  {step}  ", "muted"),
            (f"{heat_map.title} ", "muted"),
            (value, style),
        ]
        yield TextRow(fit_pieces(pieces, self.room))

    def _without_map(self) -> list[TextRow]:
        if self.state.heat_statistics or not self.state.overview:
            return []
        if self.state.overview.last_step < 0:
            return []
        words = "No gradients or activations recorded: tg.watch(model) records them."
        return [text(fit(words, self.room), "faint")]

    def _statistics_offered(self) -> str:
        heat_map = self.state.heat_map
        known = self.state.heat_statistics
        if heat_map is None or len(known) < 2:
            return ""
        at = known.index(heat_map.statistic) + 1 if heat_map.statistic in known else 1
        return f"{STATISTICS[heat_map.statistic]} {at}/{len(known)}"


def _without_problems(overview: TrainingOverview) -> str:
    if overview.verdict is None:
        return "no steps recorded yet"
    if overview.status.has_failed:
        return f"the run was {overview.status}"
    return f"no problems found in {plural(overview.last_step + 1, 'step')}"


def _loss_picture(
    loss: LossCurve, axis: _PlotAxis, height: int, is_dark: bool
) -> tuple[bool, Picture, float, float]:
    """Whether the scale is logarithmic, the curve, and its lowest and highest value."""
    cells = axis.cells(loss.steps)
    columns = [
        [reduce.reduce(values[cell]) if cell.stop > cell.start else math.nan for cell in cells]
        for values, reduce in ((loss.low, np.fmin), (loss.high, np.fmax))
    ]
    low, high = (np.array(column, np.float64) for column in columns)
    finite = np.concatenate([low, high])
    finite = finite[np.isfinite(finite)]
    is_log = bool(finite.size and finite.min() > 0 and finite.max() > _LOG_LOSS * finite.min())
    lines = [np.log10(line) for line in (low, high)] if is_log else [low, high]
    # Odd, so that the highest and the lowest value have their own pixel.
    middle = (lines[0] + lines[1]) / 2
    picture, bottom, top = draw_bands(
        [lines[0], middle, lines[1]], _LOSS_COLORS[is_dark], max(height - 1, 1)
    )
    picture = np.vstack([picture, np.full((height - len(picture), axis.width), NOTHING, np.int32)])
    bad = np.array([bool(loss.nonfinite[cell].any()) for cell in cells])
    picture[-2:, bad] = NOT_A_NUMBER
    ends = (10**bottom, 10**top) if is_log else (bottom, top)
    return is_log, picture, *ends


def _ends(heat_map: HeatMap) -> tuple[float, float]:
    """The values of the darkest and the brightest color."""
    if not heat_map.is_logarithmic:
        return 0.0, 1.0
    low, high = finite_range([heat_map.values[heat_map.values > 0]])
    return max(low, high * 10.0**-_DECADES), high


def _picture(drawn: _DrawnMap) -> Picture:
    """A color for each group of modules and cell."""
    low, high = _ends(drawn.source)
    absent = np.isnan(drawn.values)
    # Zeros have the color of the smallest value.
    values = np.maximum(np.where(absent, low, drawn.values), low)
    if drawn.source.is_logarithmic and high > 0:
        values, low, high = np.log10(values), math.log10(low), math.log10(high)
    share = (values - low) / (high - low) if high > low else np.full(values.shape, 0.5)
    picture = paint(share, Scale(low=0.0, high=1.0))
    picture[absent] = NOTHING
    picture[drawn.nonfinite] = NOT_A_NUMBER
    return picture


def _number(value: float) -> str:
    return f"{value:.1e}" if value and not 1e-2 <= abs(value) < 1e4 else f"{value:.3g}"

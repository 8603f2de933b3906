"""The values of one step, by series."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, chain
from typing import NamedTuple, SupportsIndex

import numpy as np
from torch import Tensor

from torchglass.analyse.diagnosis.training_view import is_loss
from torchglass.analyse.histograms import merged
from torchglass.analyse.training_rules import Observation, is_always_checked, rows_with_problems
from torchglass.capture.histogram_reader import HistogramReading, MeasuredTensors
from torchglass.capture.tensor.device_reads import DeviceReads, LateNumber
from torchglass.capture.tensor.histograms import ROOM
from torchglass.errors import TargetError
from torchglass.records.model import Histogram, Stats
from torchglass.records.run import SeriesId, Sink
from torchglass.records.step_points import HistogramTable, PointTable, SeriesKind

Number = float | LateNumber


class SeriesName(NamedTuple):
    """Where a series belongs: the module's path, and what is measured there."""

    path: str
    name: str


class StepValues:
    """The readings of one step. Several readings of one series become one histogram."""

    def __init__(self) -> None:
        self.is_open = True
        self.numbers: dict[SeriesName, Number] = {}
        self.is_still: bool | None = None
        """Whether all optimizers stepped with a learning rate of 0; None before the first step."""
        self.rates: dict[int, list[float | LateNumber]] = {}
        """The learning rates of each optimizer that stepped, by its id."""
        self._readings: dict[SeriesName, HistogramReading] = {}
        self._more: list[tuple[SeriesName, HistogramReading]] = []
        """Further readings of series that were already read."""

    def put(self, place: SeriesName, reading: HistogramReading | None) -> None:
        """Add a reading of a series."""
        if reading is None:
            return
        if self._readings.setdefault(place, reading) is not reading:
            self._more.append((place, reading))

    def take_over(self, later: StepValues) -> None:
        """Add the values of what turned out to belong to the same step."""
        later.is_open = False
        self.numbers.update(later.numbers)
        self.rates.update(later.rates)
        for place, reading in later.readings():
            self.put(place, reading)

    def readings(self) -> Iterator[tuple[SeriesName, HistogramReading]]:
        """All readings, by series."""
        return chain(self._readings.items(), self._more)

    def drop_training(self) -> None:
        """Discard what was read in training mode: its step is not recorded."""
        kept = [(place, one) for place, one in self.readings() if place.name.startswith("eval:")]
        self._readings, self._more = {}, []
        for place, reading in kept:
            self.put(place, reading)

    def correct_scale(self, factor: float | LateNumber, *, is_scaled: bool) -> None:
        """Correct the factor of gradients that were assumed to be scaled."""
        for _, reading in self.readings():
            if reading.is_scaled:
                reading.factor, reading.is_scaled = factor, is_scaled

    def observations(self) -> Iterator[Observation]:
        """The observations of a step for the rules; a logged loss only if it is not finite."""
        for place, value in self.numbers.items():
            number = float(value)
            if not place.path and not math.isfinite(number) and is_loss(place.name):
                nan, inf = int(math.isnan(number)), int(math.isinf(number))
                yield Observation(*place, replace(_NO_NUMBER, nan=nan, inf=inf))
        tables = dict.fromkeys(one.table for _, one in self.readings() if one.table is not None)
        has_problem = {table: rows_with_problems(table.histograms.stats) for table in tables}
        for place, reading in self.readings():
            if reading.table is None:
                continue
            if has_problem[reading.table][reading.row] or is_always_checked(place.name):
                stats = reading.table.histograms.stats_at(reading.row)
                yield Observation(
                    *place, stats, reading.dims, reading.requires_grad, reading.is_scaled
                )

    def measured(self) -> dict[tuple[str, str], list[Stats]]:
        """The statistics of all readings, by series."""
        there: dict[tuple[str, str], list[Stats]] = {}
        for place, reading in self.readings():
            stats = reading.stats
            if stats is not None:
                there.setdefault(place, []).append(stats)
        return there

    def zeros(self) -> Iterator[tuple[SeriesName, float]]:
        """The share of zeros in each series, over all its readings."""
        found: dict[SeriesName, tuple[float, int]] = {}
        for place, reading in self.readings():
            if reading.zeros is not None and reading.stats is not None:
                zeros, count = found.get(place, (0.0, 0))
                more = reading.stats.count
                found[place] = zeros + reading.zeros * more, count + more
        return ((place, zeros / count) for place, (zeros, count) in found.items() if count)

    def clear(self) -> None:
        """Release all readings."""
        self._readings.clear()
        self._more.clear()
        self.numbers.clear()
        self.rates.clear()

    def __bool__(self) -> bool:
        return bool(self.numbers or self._readings or self.rates)

    def points(self, bins: int, *, zeros: bool) -> PointTable[SeriesName]:
        """All values as points of series, once the reader has finished; this ends the step.

        With `zeros`, also the share of zeros of each series.
        """
        self.is_open = False
        if zeros:
            for (path, name), share in self.zeros():
                self.numbers[SeriesName(path, f"{name}.zeros")] = share
        places, histograms = self._histograms(bins)
        numbers = {place: float(value) for place, value in self.numbers.items()}
        numbers.update(self._named_rates())
        return PointTable(places, histograms, numbers)

    def _histograms(self, bins: int) -> tuple[list[SeriesName], HistogramTable]:
        """The series with a histogram, and their histograms in the same order."""
        places = [*self._readings]
        of_each = [reading.table for reading in self._readings.values()]
        tables = [table for table in dict.fromkeys(of_each) if table is not None]
        self._add_scale([*tables, *(reading.table for _, reading in self._more)])
        repeated = self._repeated()
        joined = [merged(repeated[place], bins * ROOM) for place in places if place in repeated]
        parts = [*(table.histograms for table in tables), HistogramTable.of(joined)]
        *starts, start_of_joined = accumulate(map(len, parts[:-1]), initial=0)
        start_of = dict[MeasuredTensors | None, int](zip(tables, starts, strict=True))
        # A reading without a table has row 0.
        start_of[None] = -1
        rows = np.array([start_of[table] for table in of_each], np.intp)
        rows += np.array([reading.row for reading in self._readings.values()], np.intp)
        if repeated:
            rows[[place in repeated for place in places]] = start_of_joined + np.arange(len(joined))
        if rows.min(initial=0) < 0:
            places = [place for place, row in zip(places, rows, strict=True) if row >= 0]
        return places, HistogramTable.joined(parts).take(rows[rows >= 0])

    def _add_scale(self, tables: Iterable[MeasuredTensors | None]) -> None:
        """Log the scale of a `GradScaler`, if the readings in these tables were scaled."""
        if any(table.has_factors for table in dict.fromkeys(tables) if table is not None):
            for _, reading in self.readings():
                if float(reading.factor) != 1:
                    self.numbers[SeriesName("", "grad_scale")] = 1 / float(reading.factor)

    def _named_rates(self) -> Iterator[tuple[SeriesName, float]]:
        """Learning rates by name: `lr`, or numbered over all optimizers."""
        sizes = [len(rates) for rates in self.rates.values() if rates]
        for number, rate in enumerate(chain.from_iterable(self.rates.values())):
            is_alone = number == 0 and sizes[0] == 1
            yield SeriesName("", "lr" if is_alone else f"lr.{number}"), float(rate)

    def _repeated(self) -> dict[SeriesName, list[Histogram]]:
        """The readings of series that were read more than once."""
        parts: dict[SeriesName, list[Histogram]] = {}
        for place, reading in self._more:
            if place not in parts:
                first = self._readings[place].histogram
                parts[place] = [first] if first is not None else []
            if reading.histogram is not None:
                parts[place].append(reading.histogram)
        return {place: histograms for place, histograms in parts.items() if histograms}


class SeriesIds:
    """The ids that a sink has given to the series of a training."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._ids: dict[SeriesKind, dict[SeriesName, SeriesId]] = {"scalar": {}, "histogram": {}}
        self._last: tuple[Sequence[SeriesName], Sequence[SeriesId]] = ((), ())
        """Most steps have the same series as the one before."""

    def of(self, points: PointTable[SeriesName]) -> PointTable[SeriesId]:
        """The same points by the ids of their series."""
        if self._last[0] != points.histogram_keys:
            ids = [self._id(place, "histogram") for place in points.histogram_keys]
            self._last = points.histogram_keys, ids
        numbers = {self._id(place, "scalar"): value for place, value in points.numbers.items()}
        return PointTable(self._last[1], points.histograms, numbers)

    def _id(self, place: SeriesName, kind: SeriesKind) -> SeriesId:
        known = self._ids[kind]
        if place not in known:
            known[place] = self._sink.series(*place, kind)
        return known[place]


_NO_NUMBER = Stats(count=1, min=math.nan, max=math.nan, mean=math.nan, std=math.nan)


def step_number(number: SupportsIndex) -> int:
    """The number of a step; a tensor that is a counter is read now."""
    try:
        whole = operator.index(number)
    except (TypeError, ValueError, RuntimeError):
        whole = -1
    if whole < 0:
        raise TargetError(f"step(…) expects an integer of at least 0, not {number!r}")
    return whole


def logged_number(name: str, value: float | Tensor, reads: DeviceReads) -> Number:
    """One number of a step; a number on another device is read later."""
    if not isinstance(value, Tensor):
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            raise _no_number(name, repr(value)) from None
    if value.numel() != 1:
        raise _no_number(name, f"a tensor of shape {tuple(value.shape)}")
    if value.is_meta or value.is_complex():
        raise _no_number(name, "a tensor on the meta device" if value.is_meta else "a complex one")
    return reads.number(value.detach())


def _no_number(name: str, what: str) -> TargetError:
    return TargetError(f"log({name!r}, …) expects one number, not {what}")

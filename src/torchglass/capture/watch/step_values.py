"""The values of one step, by series."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import NamedTuple, SupportsIndex

from torch import Tensor

from torchglass.analyse.diagnosis.training_view import is_loss
from torchglass.analyse.histograms import merged
from torchglass.analyse.training_rules import Observation, can_show_problem
from torchglass.capture.tensor.device_reads import DeviceReads, LateNumber
from torchglass.capture.tensor.histograms import ROOM
from torchglass.capture.tensor_reader import HistogramReading
from torchglass.errors import TargetError
from torchglass.records.model import Histogram, Stats
from torchglass.records.run import Point

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

    def has_bad_values(self) -> bool:
        """Whether any value may be NaN or Inf."""
        if any(not math.isfinite(float(value)) for value in self.numbers.values()):
            return True
        every = (reading.stats for _, reading in self.readings())
        return any(stats is not None and (stats.nan or stats.inf) for stats in every)

    def observations(self) -> Iterator[Observation]:
        """The observations of a step for the rules; a logged loss only if it is not finite."""
        for place, value in self.numbers.items():
            number = float(value)
            if not place.path and not math.isfinite(number) and is_loss(place.name):
                nan, inf = int(math.isnan(number)), int(math.isinf(number))
                yield Observation(*place, replace(_NO_NUMBER, nan=nan, inf=inf))
        for place, reading in self.readings():
            stats = _stats(reading)
            if stats is not None and can_show_problem(place.name, stats):
                yield Observation(
                    *place, stats, reading.dims, reading.requires_grad, reading.is_scaled
                )

    def measured(self) -> dict[tuple[str, str], list[Stats]]:
        """The statistics of all readings, by series."""
        there: dict[tuple[str, str], list[Stats]] = {}
        for place, reading in self.readings():
            stats = _stats(reading)
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

    def add_derived(self, *, zeros: bool) -> None:
        """Add what follows from the readings: the scale of gradients, and the shares of zeros."""
        for _, reading in self.readings():
            if float(reading.factor) != 1:
                self.numbers[SeriesName("", "grad_scale")] = 1 / float(reading.factor)
        if zeros:
            for (path, name), share in self.zeros():
                self.numbers[SeriesName(path, f"{name}.zeros")] = share

    def clear(self) -> None:
        """Release all readings."""
        self._readings.clear()
        self._more.clear()
        self.numbers.clear()
        self.rates.clear()

    def __bool__(self) -> bool:
        return bool(self.numbers or self._readings or self.rates)

    def points(self, bins: int) -> dict[SeriesName, Point]:
        """All values as points of series, once the reader has finished; this ends the step."""
        self.is_open = False
        points: dict[SeriesName, Point] = {}
        for place, reading in self._readings.items():
            if reading.histogram is not None:
                points[place] = reading.histogram
        for place, parts in self._repeated().items():
            points[place] = merged(parts, bins * ROOM)
        self.numbers = {place: float(value) for place, value in self.numbers.items()}
        numbers = chain(self.numbers.items(), self._named_rates())
        points.update((place, float(value)) for place, value in numbers)
        return points

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


_NO_NUMBER = Stats(count=1, min=math.nan, max=math.nan, mean=math.nan, std=math.nan)


def _stats(reading: HistogramReading) -> Stats | None:
    """The statistics of a reading without the scale of a `GradScaler`."""
    return reading.stats if reading.histogram is None else reading.histogram.stats


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

"""A folder of runs as a table: find, sort, filter and group them.

runs = tg.runs("runs")
print(runs.where("lr < 1e-3").sort("loss"))
best = runs.sort("loss").open(0)
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from itertools import chain
from operator import attrgetter
from pathlib import Path, PurePosixPath
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from torchglass.analyse.training_overview import loss_name, loss_series
from torchglass.errors import LookupFailedError, TargetError, ViewError
from torchglass.records.findings import verdict_of
from torchglass.records.run import RunEntry, worst_status
from torchglass.records.urls import place_text, url_of
from torchglass.results.files import run_identity
from torchglass.results.report import ListReport
from torchglass.results.run import SavedRun, import_pandas, open_entry
from torchglass.store.run_index import RunIndex
from torchglass.store.store_index import StoreIndex
from torchglass.tables.filter import Filter
from torchglass.tables.text import (
    Column,
    format_bytes,
    format_time,
    harmless,
    left_out,
    note_lines,
    plural,
    select_columns,
    shorten,
    table_text,
    wrapped,
)
from torchglass.targets.names import near_or_all

if TYPE_CHECKING:
    import pandas as pd


_MOST_ROWS = 100
_MOST_SETTINGS = 6
"""Number of differing settings that get a column by default."""
_COMMIT = 8
_CURVE_POINTS = 200
"""The points of a curve among many."""
_TEXT = 40
_DIGITS = 4

Value = str | int | float | bool | None


class RunFolder:
    """A folder of runs that is listed again and again: only what has changed is read."""

    def __init__(self, folder: Path) -> None:
        url = url_of(folder)
        if url is None and not folder.is_dir():
            what = "is a file, not a folder of runs" if folder.exists() else "does not exist"
            raise TargetError(f"{folder} {what}")
        self.folder = folder
        self._index = RunIndex(folder) if url is None else StoreIndex(url)
        self._listed: dict[str, RunEntry] = {}
        """The runs of the last table, by path."""

    def table(self) -> RunTable:
        """The runs as they are now, the latest first."""
        entries = self._index.entries()
        readable = [entry for entry in entries if not (entry.unreadable or entry.is_trace)]
        runs = sorted(one_each(readable), key=lambda entry: (-entry.run.created_ns, entry.path))
        self._listed = {entry.path: entry for entry in runs}
        broken = sorted((entry for entry in entries if entry.unreadable), key=attrgetter("path"))
        return RunTable(self.folder, runs, broken)

    def cells(self, *, where: str, sort: str, count: int) -> dict[str, Any]:
        """The first runs of the table as texts, filtered and sorted."""
        table = self.table()
        table = table.where(where) if where else table
        return (table.sort(sort) if sort else table).cells(count)

    def losses(self, paths: Sequence[str]) -> dict[str, npt.NDArray[np.float64]]:
        """The loss of some runs of the table, thinned: a row of steps and one of values each."""
        if not set(paths) <= self._listed.keys():
            self.table()
        entries = self._listed

        def read(path: str) -> npt.NDArray[np.float64]:
            with open_entry(self.folder, entries[path]) as run:
                series = loss_series(run.reader.series())
                if series is None:
                    return np.empty((2, 0))
                (found,) = run.reader.points_of([series.id], most=_CURVE_POINTS)
            return np.stack([found.steps.astype(np.float64), found.column("value")])

        return self._index.curves([path for path in paths if path in entries], read)

    def traces(self) -> list[RunEntry]:
        """The saved traces of single forwards, which the table leaves out."""
        return [entry for entry in self._index.entries() if entry.is_trace]


def one_each(entries: Sequence[RunEntry]) -> Iterator[RunEntry]:
    """One entry for each run: the ranks of a run in one folder are one."""
    groups: defaultdict[object, list[RunEntry]] = defaultdict(list)
    for entry in entries:
        if entry.run.world_size == 1:
            yield entry
        else:
            groups[PurePosixPath(entry.path).parent, run_identity(entry.run)].append(entry)
    for ranks in groups.values():
        if len({entry.run.rank for entry in ranks}) == len(ranks):
            yield _of_all_ranks(ranks)
        else:
            yield from ranks


def _of_all_ranks(ranks: Sequence[RunEntry]) -> RunEntry:
    first = min(ranks, key=lambda entry: entry.run.rank)
    status = worst_status(entry.status for entry in ranks)
    worst = next(entry for entry in ranks if entry.status == status)
    found = sorted(ranks, key=lambda entry: ("error", "warning", "").index(entry.severity))
    names = dict.fromkeys(chain.from_iterable(entry.values for entry in ranks))
    values = {
        name: math.fsum(every := [entry.values[name] for entry in ranks if name in entry.values])
        / len(every)
        for name in names
    }
    return replace(
        first,
        ending=worst.ending,
        last_step=min(entry.last_step for entry in ranks),
        values=values,
        problems=found[0].problems,
        severity=found[0].severity,
        bytes=sum(entry.bytes for entry in ranks),
        ranks=len(ranks),
    )


def started(entry: RunEntry) -> str:
    """When a run began, in this machine's time: "2026-11-18 08:57:03"."""
    return f"{datetime.fromtimestamp(entry.run.created_ns / 1e9):%Y-%m-%d %H:%M:%S}"


def _verdict(entry: RunEntry) -> str:
    return verdict_of([entry.severity], entry.ending.state) if entry.last_step >= 0 else ""


def _loss(entry: RunEntry) -> float | None:
    name = loss_name(entry.values)
    return None if name is None else entry.values[name]


_FACTS: dict[str, Callable[[RunEntry], Value]] = {
    "name": lambda entry: entry.path.removesuffix(".glass"),
    "id": lambda entry: entry.id,
    "model": lambda entry: entry.run.name,
    "started": started,
    "status": lambda entry: str(entry.status),
    "state": lambda entry: entry.ending.state,
    "steps": lambda entry: entry.last_step + 1,
    "verdict": _verdict,
    "loss": _loss,
    "problem": lambda entry: entry.problems[0] if entry.problems else "",
    "seconds": lambda entry: entry.seconds,
    "commit": lambda entry: entry.run.git_commit,
    "notes": lambda entry: entry.run.notes,
    "host": lambda entry: entry.run.host,
    "command": lambda entry: entry.run.command,
    "ranks": lambda entry: entry.ranks,
    "bytes": lambda entry: entry.bytes,
    "path": lambda entry: entry.path,
}
"""What every run has, by the name that filters and columns use."""


def value_of(entry: RunEntry, name: str) -> Value:
    """A value of a run by its name: a fact, a setting ("lr") or a logged value ("accuracy").

    "config.NAME" and "values.NAME" are unambiguous.
    """
    if name in _FACTS:
        return _FACTS[name](entry)
    group, _, inner = name.partition(".")
    if group == "config" and inner in entry.run.config:
        return entry.run.config[inner]
    if group == "values" and inner in entry.values:
        return entry.values[inner]
    return entry.run.config.get(name, entry.values.get(name))


class RunTable(ListReport[RunEntry]):
    """The runs of a folder. Print it, index it, or filter, sort and group it.

    Args:
        folder: The folder.
        entries: Its runs, in the order of the table.
        unreadable: The files that are not runs, or are corrupt.
        columns: The columns to show; None for the usual ones.
    """

    def __init__(
        self,
        folder: Path,
        entries: Sequence[RunEntry],
        unreadable: Sequence[RunEntry] = (),
        columns: Sequence[str] | None = None,
    ) -> None:
        self.folder = folder
        self.entries = tuple(entries)
        self.unreadable = tuple(unreadable)
        self._shown_columns = columns

    @property
    def title(self) -> str:
        """The folder."""
        return place_text(self.folder)

    @property
    def answer(self) -> str:
        """The number of runs, and how many are in which state."""
        counts = defaultdict(int, {"running": 0})
        for entry in self.entries:
            counts[entry.ending.state if not entry.status.is_over else _verdict(entry)] += 1
        parts = [
            f"{count:,} {name}"
            for name in ("running", "stalled", "broken", "warning", "healthy")
            if (count := counts[name])
        ]
        told = f": {', '.join(parts)}" if parts else ""
        return f"{plural(len(self.entries), 'run')} in {self.title}{told}"

    def where(self, expression: str | None = None, /, **settings: Value) -> RunTable:
        """The runs that pass a filter.

        Args:
            expression: Comparisons of facts, settings and logged values, such as
                `"lr < 1e-3 and state == 'finished'"` or `"'cnn' in name"`. Put names
                that are not identifiers in backquotes. A run without a value does not pass.
            **settings: Values that the runs have, such as `optimizer="adam"`.

        Returns:
            A table of these runs.

        Raises:
            ViewError: The expression is not valid, or no run has a value of that name.
        """
        found: Iterable[RunEntry] = self.entries
        if expression is not None:
            passes = Filter(expression)
            self._expect(passes.names)
            found = [entry for entry in found if passes(lambda name, e=entry: value_of(e, name))]  # type: ignore[misc]
        self._expect(settings)
        kept = [
            entry
            for entry in found
            if all(value_of(entry, name) == value for name, value in settings.items())
        ]
        return self._with(kept)

    def sort(self, by: str) -> RunTable:
        """The runs in the order of a value; "-loss" puts the highest first.

        Runs without the value, or with NaN, come last.

        Args:
            by: The name of a fact, a setting or a logged value.

        Returns:
            A table of the same runs.

        Raises:
            ViewError: No run has a value of that name.
        """
        name = by.removeprefix("-")
        self._expect([name])
        known = [(value_of(entry, name), entry) for entry in self.entries]
        there = [pair for pair in known if not _is_missing(pair[0])]
        there.sort(key=lambda pair: _order(pair[0]), reverse=by.startswith("-"))
        missing = [entry for value, entry in known if _is_missing(value)]
        return self._with([*(entry for _, entry in there), *missing])

    def select(self, *columns: str) -> RunTable:
        """The table with these columns.

        Args:
            *columns: Names of facts, settings and logged values.

        Returns:
            A table of the same runs.

        Raises:
            ViewError: No run has a value of that name.
        """
        self._expect(columns)
        return RunTable(self.folder, self.entries, self.unreadable, columns)

    def group(self, *by: str) -> RunGroups:
        """One line for all runs with the same values.

        Args:
            *by: Names of facts, settings or logged values.

        Returns:
            A table with a line for each group, the lowest loss first.

        Raises:
            ViewError: No run has a value of that name.
        """
        self._expect(by)
        groups: defaultdict[tuple[Value, ...], list[RunEntry]] = defaultdict(list)
        for entry in self.entries:
            groups[tuple(value_of(entry, name) for name in by)].append(entry)
        return RunGroups(self.folder, by, [RunGroup(key, runs) for key, runs in groups.items()])

    def open(self, which: int | str) -> SavedRun:
        """A run, opened for reading; `runs.open(0)` is the first one of the table.

        Args:
            which: Its index in the table, its name, its id, or the start of its id.

        Returns:
            The run, as from `tg.open`.

        Raises:
            LookupFailedError: There is no such run, or there are several.
            StoreError: It cannot be read.
        """
        return open_entry(self.folder, self[which])

    def to_pandas(self) -> pd.DataFrame:
        """A row for each run, with a column for each fact, setting and logged value."""
        names, rows = self._csv()
        frame: pd.DataFrame = import_pandas().DataFrame(list(rows), columns=list(names))
        return frame

    def to_dict(self) -> dict[str, Any]:
        """The table as dicts, lists, strings and numbers."""
        return {
            "title": self.title,
            "answer": self.answer,
            "entries": [run_facts(entry) for entry in self.entries],
            "unreadable": [
                {"path": entry.path, "problem": entry.unreadable} for entry in self.unreadable
            ],
            "notes": self._notes(),
        }

    def table(self, *, width: int | None = None, rows: int | None = _MOST_ROWS) -> str:
        """The table as text.

        Args:
            width: Terminal columns to fit into; what is left out is named below the table.
            rows: Maximum number of runs to show; None for all.
        """
        shown = self.entries[:rows]
        columns = select_columns(self._columns(), self._shown_columns)
        more = left_out(self.entries, shown)
        below = note_lines(self._notes(), width)
        head = wrapped(harmless(self.answer), width)
        if not self.entries:
            return "\n".join([*head, *below])
        return "\n".join([*head, table_text(columns, shown, more, below, room=width)])

    def cells(self, count: int) -> dict[str, Any]:
        """The first rows as texts, with what a view needs to show and to open them."""
        shown = self.entries[:count]
        columns = select_columns(self._columns(), self._shown_columns)
        return {
            "answer": self.answer,
            "notes": self._notes(),
            "total": len(self.entries),
            "columns": [
                {"key": one.key, "heading": one.heading, "right": one.right} for one in columns
            ],
            "rows": [
                {
                    "path": entry.path,
                    "id": entry.id,
                    "verdict": _verdict(entry),
                    "cells": [column.text(entry) for column in columns],
                }
                for entry in shown
            ],
        }

    def __getitem__(self, which: int | str) -> RunEntry:
        if isinstance(which, int):
            try:
                return self.entries[which]
            except IndexError:
                raise LookupFailedError(
                    f"there is no run {which}: the table has {plural(len(self.entries), 'run')}"
                ) from None
        return self._named(which)

    def __iter__(self) -> Iterator[RunEntry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def _named(self, text: str) -> RunEntry:
        exact = [one for one in self.entries if text in (one.id, one.path, _FACTS["name"](one))]
        found = exact or [one for one in self.entries if one.id.startswith(text)]
        if len(found) == 1:
            return found[0]
        if found:
            paths = ", ".join(one.path for one in found[:5])
            raise LookupFailedError(f"{len(found)} runs are called {text!r}: {paths}")
        names = [str(_FACTS["name"](one)) for one in self.entries]
        raise LookupFailedError(f"no run is called {text!r}{near_or_all(text, names)}")

    def _with(self, entries: Sequence[RunEntry]) -> RunTable:
        return RunTable(self.folder, entries, self.unreadable, self._shown_columns)

    def _expect(self, names: Iterable[str]) -> None:
        """Raise for a name that no run has a value of."""
        for name in names:
            if name not in self._names and self.entries:
                known = dict.fromkeys([*_FACTS, *self._settings, *self._logged])
                raise ViewError(f"no run has a value {name!r}{near_or_all(name, known)}")

    @cached_property
    def _settings(self) -> list[str]:
        return list(dict.fromkeys(chain.from_iterable(one.run.config for one in self.entries)))

    @cached_property
    def _logged(self) -> list[str]:
        return list(dict.fromkeys(chain.from_iterable(one.values for one in self.entries)))

    @cached_property
    def _names(self) -> set[str]:
        """All names that a filter, an order or a column can use."""
        settings = {f"config.{name}" for name in self._settings}
        logged = {f"values.{name}" for name in self._logged}
        return {*_FACTS, *self._settings, *self._logged, *settings, *logged}

    def _notes(self) -> list[str]:
        if not self.unreadable:
            return []
        count = len(self.unreadable)
        files = "1 file cannot" if count == 1 else f"{count:,} files cannot"
        first = harmless(self.unreadable[0].unreadable)
        return [f"{files} be read. The first: {first.removesuffix('.')}"]

    def _columns(self) -> Sequence[Column[RunEntry]]:
        has_notes = any(entry.run.notes for entry in self.entries)
        has_commits = len({entry.run.git_commit for entry in self.entries}) > 1
        models = len({entry.run.name for entry in self.entries})
        usual = [
            _text_column("name", "Run", spare=0),
            _text_column("model", "Model", spare=7, usual=models > 1),
            Column("started", "Started", lambda e: started(e)[:16], False, 5, value=started),
            _text_column("status", "Status", spare=3),
            _number_column("steps", "Steps", spare=2),
            _text_column("verdict", "Verdict", spare=1),
            _number_column("loss", "Loss", spare=0),
            *self._varying(),
            Column(
                "commit",
                "Commit",
                lambda e: e.run.git_commit[:_COMMIT],
                False,
                8,
                has_commits,
                value=_FACTS["commit"],
            ),
            _text_column("notes", "Notes", spare=9, usual=has_notes),
        ]
        known = {column.key for column in usual}
        others = [name for name in _FACTS if name not in known]
        every = [*usual, *(_any_column(name) for name in others)]
        known.update(others)
        for group, names in (("config", self._settings), ("values", self._logged)):
            for name in names:
                every.append(_any_column(f"{group}.{name}", in_file=True))
                if name not in known:
                    every.append(_any_column(name, in_file=False))
        return every

    def _varying(self) -> Iterator[Column[RunEntry]]:
        """Columns of the settings that differ between the runs."""
        found = 0
        for name in self._settings:
            values = {entry.run.config.get(name) for entry in self.entries}
            # A setting that is never the same, such as a folder, is a name.
            is_name = len(values) == len(self.entries) > 2 and isinstance(next(iter(values)), str)
            if len(values) > 1 and not is_name and name not in _FACTS and found < _MOST_SETTINGS:
                found += 1
                is_text = any(isinstance(value, str) for value in values)
                column = _any_column(name, in_file=False)
                yield replace(column, usual=True, spare=6, right=not is_text)


def run_facts(entry: RunEntry) -> dict[str, Any]:
    """Everything a table has about a run, as dicts, lists, strings and numbers."""
    facts = {name: fact(entry) for name, fact in _FACTS.items()}
    grouped = {
        "values": dict(entry.values),
        "config": dict(entry.run.config),
        "problems": list(entry.problems),
    }
    return {**facts, **grouped}


def _is_missing(value: Value) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _order(value: Value) -> tuple[bool, Any]:
    """Numbers before texts."""
    return isinstance(value, str), value


def value_text(value: Value) -> str:
    """A value as a cell shows it."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.{_DIGITS}g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return shorten(harmless(str(value)), _TEXT)


def _text_column(name: str, heading: str, *, spare: int, usual: bool = True) -> Column[RunEntry]:
    fact = _FACTS[name]
    return Column(name, heading, lambda e: value_text(fact(e)), False, spare, usual, value=fact)


def _number_column(name: str, heading: str, *, spare: int) -> Column[RunEntry]:
    fact = _FACTS[name]
    return Column(name, heading, lambda e: value_text(fact(e)), True, spare, value=fact)


def _any_column(name: str, *, in_file: bool = True) -> Column[RunEntry]:
    """A column of any value, which is shown where it is selected."""
    formats: dict[str, Callable[[Any], str]] = {"seconds": format_time, "bytes": format_bytes}
    text = formats.get(name, value_text)
    return Column(
        name,
        name,
        lambda entry: text(value_of(entry, name)),
        usual=False,
        value=(lambda entry: value_of(entry, name)) if in_file else None,
    )


@dataclass(frozen=True)
class RunGroup:
    """Runs that have some values in common."""

    key: tuple[Value, ...]
    """These values."""
    runs: Sequence[RunEntry]

    @cached_property
    def losses(self) -> list[float]:
        """The last losses of the runs, the lowest first."""
        found = (_loss(entry) for entry in self.runs)
        return sorted(loss for loss in found if loss is not None and not math.isnan(loss))

    @property
    def best(self) -> RunEntry | None:
        """The run with the lowest loss."""
        known = [entry for entry in self.runs if not _is_missing(_loss(entry))]
        return min(known, key=lambda entry: _loss(entry) or 0.0, default=None)


class RunGroups(ListReport[RunGroup]):
    """Groups of runs, the lowest loss first.

    Args:
        folder: The folder of the runs.
        by: The names of the values that the runs of a group have in common.
        groups: The groups.
    """

    def __init__(self, folder: Path, by: Sequence[str], groups: Sequence[RunGroup]) -> None:
        self.folder = folder
        self.by = tuple(by)
        self.entries = tuple(sorted(groups, key=lambda one: (one.losses or [math.inf])[0]))

    @property
    def title(self) -> str:
        """The folder."""
        return place_text(self.folder)

    @property
    def answer(self) -> str:
        """How many groups there are, and which has the lowest loss."""
        count = f"{plural(len(self.entries), 'group')} by {', '.join(self.by)}"
        first = next((one for one in self.entries if one.best is not None), None)
        if first is None or first.best is None:
            return count
        named = ", ".join(
            f"{name}={value_text(value)}" for name, value in zip(self.by, first.key, strict=True)
        )
        loss = value_text(first.losses[0])
        return f"{count}; the lowest loss is {loss} with {named} ({_FACTS['name'](first.best)})"

    def _columns(self) -> Sequence[Column[RunGroup]]:
        def key(at: int) -> Callable[[RunGroup], Value]:
            return lambda one: one.key[at]

        def name(one: RunGroup) -> str:
            return str(_FACTS["name"](one.best)) if one.best is not None else ""

        def loss(pick: Callable[[Sequence[float]], float]) -> Callable[[RunGroup], float | None]:
            return lambda one: pick(one.losses) if one.losses else None

        def broken(one: RunGroup) -> int:
            return sum(_verdict(entry) == "broken" for entry in one.runs)

        def column(
            name: str, heading: str, value: Callable[[RunGroup], Value], *, right: bool = True
        ) -> Column[RunGroup]:
            return Column(name, heading, lambda one: value_text(value(one)), right, value=value)

        return [
            *(column(by, by, key(at), right=False) for at, by in enumerate(self.by)),
            column("runs", "Runs", lambda one: len(one.runs)),
            column("lowest_loss", "Lowest loss", loss(min)),
            column("median_loss", "Median loss", loss(median)),
            column("broken", "Broken", broken),
            column("best", "Best run", name, right=False),
        ]

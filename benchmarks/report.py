"""Measured tables as Markdown, which reads well in a terminal too, and as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.rows import OURS, PEERS, Effort, Reading, Row, Table

BEGIN = "<!-- measured -->"
END = "<!-- /measured -->"

_MET = {True: "yes", False: "**no**", None: ""}


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Where and when a run was made, and how busy the machine was."""

    when: str
    effort: Effort
    processor: str
    cores: int
    system: str
    versions: dict[str, str]
    load: tuple[float, float]
    """How many processes wanted a core, on average, before and after."""
    minutes: float


def gather_facts(effort: Effort, load_before: float, seconds: float) -> Facts:
    """The facts of a run that has just ended."""
    return Facts(
        when=f"{datetime.now():%Y-%m-%d}",
        effort=effort,
        processor=_processor(),
        cores=os.cpu_count() or 1,
        system=platform.system(),
        versions={
            "Python": platform.python_version(),
            **{name: _version(name) for name in ("torch", OURS, *PEERS)},
        },
        load=(load_before, current_load()),
        minutes=seconds / 60,
    )


def current_load() -> float:
    """How many processes have wanted a core in the last minute, on average."""
    return os.getloadavg()[0]


def markdown(tables: Sequence[Table], facts: Facts) -> str:
    """All of it, as text for people."""
    return "\n\n".join([_facts_text(facts), *map(_table_text, tables)]) + "\n"


def to_json(tables: Sequence[Table], facts: Facts) -> str:
    """All of it, each round's number included."""
    rows = {table.topic.name: [_row_dict(row) for row in table.rows] for table in tables}
    return json.dumps({"facts": asdict(facts), "topics": rows}, ensure_ascii=False, indent=1)


def has_marks(page: Path) -> bool:
    """Whether there is a page that says where its measured part begins and ends."""
    if not page.is_file():
        return False
    _, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    return bool(begin) and END in rest


def write_between_marks(page: Path, text: str, begin: str = BEGIN, end: str = END) -> None:
    """Put a text where a page has its measured part; the rest of the page stays."""
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}\n\n{text}\n{end}{after}", encoding="utf-8")


def _facts_text(facts: Facts) -> str:
    rounds = f"at most {facts.effort.rounds} rounds a row"
    machine = f"{facts.processor}, {facts.cores} cores, {facts.system}"
    before, after = facts.load
    versions = ", ".join(f"{name} {number}" for name, number in facts.versions.items())
    lines = [
        f"- Measured on {facts.when} in {facts.minutes:.0f} minutes: one thread, {rounds}.",
        f"- On: {machine}; load average {before:.1f} before, {after:.1f} after.",
        f"- With: {versions}.",
    ]
    if facts.effort.quick:
        lines.append(
            "- **A quick run on small sizes: it shows that all of it runs, not how fast.**"
        )
    return "\n".join(lines)


def _table_text(table: Table) -> str:
    contenders = table.contenders
    heads = ["", *contenders, "goal", "met"]
    lines = [heads, *(_cells(row, contenders) for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    ruler = ["-" * width for width in widths]
    body = "\n".join(_line(cells, widths) for cells in (heads, ruler, *lines[1:]))
    return f"### {table.topic.title}\n\n{table.topic.about}\n\n{body}"


def row_text(row: Row) -> str:
    """What was measured of one thing, in a line."""
    readings = [f"{name} {_reading_text(row, name)}" for name in row.readings]
    goal = [f"goal {_goal_text(row)} {_MET[row.is_met]}"] if row.goal is not None else []
    return ", ".join([*readings, *goal])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return f"| {' | '.join(padded)} |"


def _cells(row: Row, contenders: Sequence[str]) -> list[str]:
    readings = (_reading_text(row, name) for name in contenders)
    return [row.name, *readings, _goal_text(row), _MET[row.is_met]]


def _goal_text(row: Row) -> str:
    return "" if row.goal is None else f"≤ {row.goal:g}{_suffix(row.readings[OURS].unit)}"


def _reading_text(row: Row, contender: str) -> str:
    reading = row.readings.get(contender)
    if reading is None:
        return ""
    if not reading.samples:
        return reading.why_not
    factor = row.times_ours(contender)
    compared = f" = {_number(factor)} × ours" if factor is not None else ""
    return f"{_number(reading.median)}{_suffix(reading.unit)}{_spread(reading)}{compared}"


def _spread(reading: Reading) -> str:
    low, high = map(_number, reading.spread)
    return f" ({low}–{high})" if len(reading.samples) > 1 else ""


def _suffix(unit: str) -> str:
    return unit if unit == "×" else f" {unit}"


def _number(value: float) -> str:
    """Three digits that count, and never an exponent."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    decimals = 1 if abs(value) >= 10 else 2
    return f"{value:.{decimals}f}" if abs(value) >= 0.1 or value == 0 else f"{value:.3f}"


def _row_dict(row: Row) -> dict[str, object]:
    readings = {name: asdict(reading) for name, reading in row.readings.items()}
    return {"name": row.name, "goal": row.goal, "met": row.is_met, "readings": readings}


def _version(package: str) -> str:
    try:
        return version(package.lower())
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        described = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2] for line in described.splitlines() if "model name" in line)
    return next(names, platform.machine()).strip()

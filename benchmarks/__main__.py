"""Torchglass beside its peers in one run: `python -m benchmarks`, or `make bench`."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import (
    explorer,
    flops,
    guard,
    imports,
    memory,
    page,
    report,
    runs,
    statistics,
    store,
    structure,
    summary,
    tensor,
    timing,
    tracing,
    watching,
)
from benchmarks.rows import Case, Effort, Table, Topic

TOPICS = (
    summary.TOPIC,
    structure.TOPIC,
    imports.TOPIC,
    tracing.TOPIC,
    tensor.TOPIC,
    statistics.TOPIC,
    timing.TOPIC,
    flops.TOPIC,
    memory.TOPIC,
    guard.TOPIC,
    watching.TOPIC,
    store.TOPIC,
    runs.TOPIC,
    explorer.TOPIC,
    page.TOPIC,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write what was asked for."""
    options = _options(arguments)
    effort = Effort(rounds=1 if options.quick else options.rounds, quick=options.quick)
    load, started = report.current_load(), time.monotonic()
    tables = _measured([(topic, _chosen(topic, options.only)) for topic in TOPICS], effort)
    facts = report.gather_facts(effort, load, time.monotonic() - started)
    text = report.markdown(tables, facts)
    print(text)
    if options.json:
        options.json.write_text(report.to_json(tables, facts), encoding="utf-8")
    if options.write:
        report.write_between_marks(options.write, text)
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add("--only", nargs="+", metavar="NAME", help="topics, or parts of the names of rows")
    add("--rounds", type=int, default=Effort.rounds, help="most rounds of each (%(default)s)")
    add("--quick", action="store_true", help="one round on small sizes: does it all run?")
    add("--json", type=Path, metavar="FILE", help="write every number there")
    add("--write", type=Path, metavar="FILE", help="renew the measured part of a page")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("there is at least one round")
    if not any(_chosen(topic, options.only) for topic in TOPICS):
        names = ", ".join(topic.name for topic in TOPICS)
        parser.error(f"nothing is called {' or '.join(options.only)}; the topics are {names}")
    if options.write and options.only:
        parser.error("a page is written from a whole run: leave --only out, or use --json")
    if options.write and not report.has_marks(options.write):
        parser.error(f"{options.write} has no part between {report.BEGIN} and {report.END}")
    return options


def _chosen(topic: Topic, only: Sequence[str] | None) -> list[Case]:
    if not only or topic.name in only:
        return list(topic.cases)
    wanted = [part.lower() for part in only]
    return [case for case in topic.cases if any(part in case.name.lower() for part in wanted)]


def _measured(chosen: Sequence[tuple[Topic, Sequence[Case]]], effort: Effort) -> list[Table]:
    total = sum(len(cases) for _, cases in chosen)
    numbers = itertools.count(1)
    tables = []
    for topic, cases in chosen:
        rows = []
        for case in cases:
            print(f"{next(numbers)}/{total} {topic.name}: {case.name} …", file=sys.stderr)
            row = case.row(effort)
            print(f"    {report.row_text(row)}", file=sys.stderr, flush=True)
            rows.append(row)
        if rows:
            tables.append(Table(topic=topic, rows=rows))
    return tables


if __name__ == "__main__":
    sys.exit(main())

"""Findings and explanations as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from torchglass.analyse.failure.failure import ExceptionContext, Failure, code_at
from torchglass.analyse.nonfinite_cause import cause
from torchglass.records.findings import Evidence, Finding, ReplayRecord
from torchglass.records.model import Model
from torchglass.records.tensors import Stats
from torchglass.records.trace import TraceRecord
from torchglass.tables.text import aligned_rows
from torchglass.views.failure_words import Part, digest, headline, parts
from torchglass.views.formats import harmless, shape_text, shorten

_INDENT = "  "
_LONGEST_CODE = 88
_MOST_TENSORS = 12


def finding_text(finding: Finding) -> str:
    """A finding in full, its message first."""
    told = [*_where(finding), *_table(finding.tensors, finding.facts.get("first_index"))]
    reason = cause(finding)
    if reason:
        told.append(f"why: {reason}")
    if finding.op and finding.kind in ("nan", "inf"):
        told.append(_how_to_allow(finding))
    if "dump" in finding.facts:
        told.append(f"rerun: torchglass replay {finding.facts['dump']}")
    if "not_dumped" in finding.facts:
        told.append(f"cannot be rerun: {finding.facts['not_dumped']}")
    return f"\n{_INDENT}".join([harmless(finding.message), *map(harmless, told)])


def _how_to_allow(finding: Finding) -> str:
    """How to allow a finding that is intended."""
    name = finding.path or finding.op
    either = f', or allow=["{finding.path}"] for the module' if finding.path else ""
    if finding.phase == "optimizer":
        return f'if intended: tg.guard(model, allow=["{name}"])'
    back = "; backward=False leaves out gradients" if finding.phase == "backward" else ""
    return f'if intended: tg.guard(model, allow=["{finding.op}"]){either}{back}'


def findings_text(findings: Iterable[Finding]) -> str:
    """Several findings below each other, or that there are none."""
    return "\n\n".join(map(finding_text, findings)) or "No NaN or Inf found"


def replay_text(replay: ReplayRecord) -> str:
    """The result of rerunning an op."""
    op = harmless(replay.finding.op)
    verdict = "reproduced" if replay.reproduced else "not reproduced"
    lines = [
        f"{op}, run alone: {verdict}",
        f"then: {harmless(replay.finding.message)}",
        *map(harmless, _where(replay.finding)),
        *map(harmless, _table(replay.tensors)),
    ]
    return f"\n{_INDENT}".join(lines)


def _where(finding: Finding) -> Iterator[str]:
    source = finding.source
    if source is not None:
        yield f'File "{source.file}", line {source.line}, in {source.function}'
        code = code_at(source)
        if code:
            yield f"{_INDENT}{shorten(code, _LONGEST_CODE)}"
    if finding.call > 1:
        yield f"in call {finding.call} of that module"


def _table(tensors: tuple[Evidence, ...], first_index: list[int] | None = None) -> Iterator[str]:
    """The tensors, one a line, their names, kinds and ranges below each other."""
    shown = (
        tensors if len(tensors) <= _MOST_TENSORS else (*tensors[: _MOST_TENSORS - 1], tensors[-1])
    )
    rows = [[_name(one), _kind(one), _numbers(one)] for one in shown]
    if rows and first_index:
        rows[-1][-1] += f", the first at {first_index}"
    yield from aligned_rows(rows)
    if len(shown) < len(tensors):
        yield f"… and {len(tensors) - len(shown)} more tensors"


def _name(one: Evidence) -> str:
    if one.role == "saved":
        return f"{one.name} (of the forward)"
    holder = one.holder if one.holder != one.name else ""
    return f"{one.name} ({holder})" if holder else one.name


def _kind(one: Evidence) -> str:
    return f"{shape_text(one.spec)} {one.spec.dtype}"


def _numbers(one: Evidence) -> str:
    if one.stats is None:
        return "overwritten since"
    made = f" (produced by {one.maker})" if one.maker else ""
    return _range(one.stats) + made


def _range(stats: Stats) -> str:
    parts = [] if math.isnan(stats.min) else [f"{stats.min:.4g} … {stats.max:.4g}"]
    parts += [f"{stats.nan:,} NaN"] if stats.nan else []
    parts += [f"{stats.inf:,} Inf"] if stats.inf else []
    return ", ".join(parts)


def failure_note(record: TraceRecord, model: Model, clues: ExceptionContext | None = None) -> str:
    """What an exception can be told to add: the op, its module, its line, its operands and why."""
    told = [part for part in parts(Failure(record, model, clues)) if part.in_note]
    lines = [line for part in told for line in _lines(part)]
    return f"\n{_INDENT}".join([f"torchglass: {lines[0]}", *lines[1:]])


def failure_text(failure: Failure) -> str:
    """The whole story of a forward that raised."""
    who, what = headline(failure)
    blocks = [f"{who} {what}", *("\n".join(_block(part)) for part in parts(failure))]
    return "\n\n".join(blocks)


def digest_text(failure: Failure) -> str:
    """Two lines on a forward that did not raise."""
    return "\n".join(digest(failure.anatomy))


def _block(part: Part) -> Iterator[str]:
    yield f"{_INDENT}{part.title}"
    yield from (f"{_INDENT * 2}{line}" for line in _lines(part))


def _lines(part: Part) -> Iterator[str]:
    """The rows of a part, with their cells below each other."""
    table = iter(aligned_rows([row for row in part.rows if len(row) > 1]))
    bullet = "• " if part.listed else ""
    for row in part.rows:
        line = row[0] if len(row) == 1 else next(table)
        yield from f"{bullet}{line}".rstrip().split("\n")

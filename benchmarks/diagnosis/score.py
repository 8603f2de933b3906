"""Compares findings with what was planted, and writes the tables."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence

from benchmarks.diagnosis.cases import Case, all_cases
from benchmarks.diagnosis.runner import Found, Result
from benchmarks.diagnosis.traincheck import NOT_PORTED

FIRST = 3
"""A finding after the third one is not read."""
QUIET = ("note", "info")
"""Severities that are not an alarm."""

_PARAMETER = re.compile(r"\.?(weight|bias)[^.]*$")


def rank_of_right(case: Case, found: Sequence[Found]) -> int | None:
    """The position, from 0, of the first finding of the right kind at the right place."""
    for number, one in enumerate(found):
        if one.kind in case.kinds and is_right_place(case, one.path):
            return number
    return None


def is_right_place(case: Case, path: str) -> bool:
    """Whether a path is one of those planted, or a parameter of such a module."""
    module = _PARAMETER.sub("", path)
    return any(
        fnmatch.fnmatchcase(path, one) or fnmatch.fnmatchcase(module, one) for one in case.at
    )


def alarms(result: Result) -> list[Found]:
    """Findings that would wake somebody."""
    return [one for one in result.found if one.severity not in QUIET]


def markdown(results: Sequence[Result]) -> str:
    """The score for each log_freq, then every miss and every false alarm in one line."""
    cases = all_cases()
    freqs = sorted({result.log_freq for result in results})
    parts = [_score_table(results, freqs, cases), _families(results, freqs, cases)]
    for group in ("planted", "traincheck"):
        missed = [one for one in results if cases[one.case].group == group and not _is_named(one)]
        parts.append(_misses(f"Missed: {group}", missed, cases))
    if any(cases[one.case].group == "traincheck" for one in results):
        parts.append(_not_ported())
    false = [one for one in results if cases[one.case].group == "healthy" and _is_wrong(one)]
    parts.append(_false_alarms(false))
    return "\n\n".join(part for part in parts if part) + "\n"


def _is_named(result: Result) -> bool:
    rank = rank_of_right(all_cases()[result.case], result.found)
    return rank is not None and rank < FIRST


def _is_early(result: Result) -> bool:
    """Whether the mistake is named at the step in which it first shows, or at the next one."""
    case = all_cases()[result.case]
    rank = rank_of_right(case, result.found)
    if rank is None or rank >= FIRST:
        return False
    step = result.found[rank].step
    return step is not None and step <= case.since + 1


def _is_wrong(result: Result) -> bool:
    return bool(alarms(result) or result.error)


def _score_table(results: Sequence[Result], freqs: Iterable[int], cases: dict[str, Case]) -> str:
    columns = [
        "log_freq",
        "mistakes",
        f"named among the first {FIRST}",
        "named first",
        "healthy trainings",
        "with a false alarm",
    ]
    with_traincheck = any(cases[one.case].group == "traincheck" for one in results)
    if with_traincheck:
        columns += ["TrainCheck's bugs", f"named among the first {FIRST}", "within a step"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for freq in freqs:
        by_group: dict[str, list[Result]] = {"planted": [], "healthy": [], "traincheck": []}
        for one in results:
            if one.log_freq == freq:
                by_group[cases[one.case].group].append(one)
        planted, healthy, ported = by_group.values()
        first = [rank_of_right(cases[one.case], one.found) == 0 for one in planted]
        named = sum(map(_is_named, planted))
        cells = [
            freq,
            len(planted),
            _share(named, len(planted)),
            _share(sum(first), len(planted)),
            len(healthy),
            sum(map(_is_wrong, healthy)),
        ]
        if with_traincheck:
            cells += [len(ported), sum(map(_is_named, ported)), sum(map(_is_early, ported))]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _families(results: Sequence[Result], freqs: Sequence[int], cases: dict[str, Case]) -> str:
    """How many mistakes of each family are named."""
    groups: dict[str, list[Result]] = {}
    for one in results:
        if cases[one.case].group == "planted":
            groups.setdefault(cases[one.case].family, []).append(one)
    if not groups:
        return ""
    columns = ("family", "mistakes", *(f"named at log_freq {freq}" for freq in freqs))
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for family, group in groups.items():
        named = [sum(_is_named(one) for one in group if one.log_freq == freq) for freq in freqs]
        count = len({one.case for one in group})
        lines.append(f"| {family} | {count} | {' | '.join(map(str, named))} |")
    return "\n".join(lines)


def _not_ported() -> str:
    lines = ["| TrainCheck's bug | why it is not ported |", "|---|---|"]
    lines += [f"| {name} | {reason} |" for name, reason in NOT_PORTED.items()]
    return "\n".join(lines)


def _share(count: int, total: int) -> str:
    return f"{count} ({count / total:.0%})" if total else "0"


def _misses(title: str, missed: Sequence[Result], cases: dict[str, Case]) -> str:
    if not missed:
        return ""
    lines = [f"### {title}", "", "| case | log_freq | expected | found |", "|---|---|---|---|"]
    for name, group in _by_case(missed).items():
        case = cases[name]
        freqs = ", ".join(str(one.log_freq) for one in group)
        expected = f"{' or '.join(case.kinds)} at {_places(case.at)}"
        lines.append(f"| {name} | {freqs} | {expected} | {_found_text(group[0])} |")
    return "\n".join(lines)


def _false_alarms(false: Sequence[Result]) -> str:
    if not false:
        return ""
    lines = ["### False alarms", "", "| healthy training | log_freq | found |", "|---|---|---|"]
    for name, group in _by_case(false).items():
        freqs = ", ".join(str(one.log_freq) for one in group)
        lines.append(f"| {name} | {freqs} | {_found_text(group[0])} |")
    return "\n".join(lines)


def _by_case(results: Iterable[Result]) -> dict[str, list[Result]]:
    groups: dict[str, list[Result]] = {}
    for one in results:
        groups.setdefault(one.case, []).append(one)
    return groups


def _places(at: Sequence[str]) -> str:
    return ", ".join(f"`{path}`" if path else "the model" for path in at)


def _found_text(result: Result) -> str:
    if result.error:
        return f"failed: {result.error.splitlines()[0]}"
    texts = [f"{one.kind} at {_places([one.path])}" for one in alarms(result)[:FIRST]]
    return "; ".join(texts) or "nothing"


def losses_text(results: Sequence[Result]) -> str:
    """The first and last loss, and the time, of each case."""
    lines = ["| case | log_freq | first loss | last loss | seconds |", "|---|---|---|---|---|"]
    for one in results:
        losses = f"{one.first_loss:.4g} | {one.last_loss:.4g}"
        lines.append(f"| {one.case} | {one.log_freq} | {losses} | {one.seconds:.2f} |")
    return "\n".join(lines)

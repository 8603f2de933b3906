"""The result of `compare`: what two models have in common, and where they diverge."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torchglass.analyse.model_diff import ModelDiff, ModuleChange
from torchglass.analyse.run_diff import CurveChange, SettingChange
from torchglass.records.comparison import (
    Divergence,
    ExecutedOp,
    ExecutionComparison,
    OperandStats,
    TensorChange,
)
from torchglass.records.json_data import nan_as_none, to_json_data
from torchglass.records.measures import ReportRecord, ReportSection
from torchglass.results.report import Report
from torchglass.tables.export import File, html_text, written
from torchglass.tables.text import (
    Column,
    aligned_rows,
    csv_rows,
    format_shape,
    harmless,
    note_lines,
    plural,
    table_text,
    wrapped,
)

RowKind = Literal["module", "tensor", "op", "setting", "curve"]
_MOST_ROWS = 30
_SAME_STRUCTURE = "Same structure."


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """One difference of two models."""

    kind: RowKind
    name: str
    """The path of a module, the dotted name of a tensor, an op, a setting or a curve."""
    change: str
    before: str = ""
    after: str = ""
    distance: float | None = None
    cosine: float | None = None
    largest: float | None = None


class Comparison(Report):
    """What is different between two models, checkpoints, traces or runs. Print it to read it.

    Args:
        names: What both are called.
        structure: The modules of both.
        tensors: The tensors of both, by values; None if they were not compared.
        execution: Both forwards; None without inputs.
        rows: More differences, of the settings and curves of runs.
        notes: What was compared, and what cannot be known.
        source_lines: The source lines at which `a` and `b` diverge.
    """

    def __init__(
        self,
        names: tuple[str, str],
        structure: ModelDiff | None = None,
        tensors: Sequence[TensorChange] | None = None,
        execution: ExecutionComparison | None = None,
        rows: Sequence[ComparisonRow] = (),
        notes: Sequence[str] = (),
        source_lines: tuple[str, str] = ("", ""),
    ) -> None:
        self.names = names
        self.structure = structure
        self.tensors = None if tensors is None else tuple(tensors)
        """Every tensor that both have, equal ones included; None if values were not compared."""
        self.execution = execution
        self._more = tuple(rows)
        self._notes = tuple(notes)
        self.source_lines = source_lines

    @property
    def first_divergence(self) -> Divergence | None:
        """The first op whose results differ by more than rounding; None if none does."""
        return None if self.execution is None else self.execution.divergence

    @property
    def changed_tensors(self) -> tuple[TensorChange, ...]:
        """The tensors whose values or shapes differ."""
        return tuple(one for one in self.tensors or () if not one.is_equal)

    @property
    def same(self) -> bool:
        """Whether no difference was found; names, and other ways to compute the same, do not count.

        With inputs, what was computed decides: a port has other modules and weights.
        """
        if self.execution is not None:
            return self.execution.divergence is None and self._outputs_agree
        is_changed = self.structure is not None and any(
            one.verdict != "changed" or _is_own_change(one)
            for one in self.structure.changes.values()
        )
        return not is_changed and not self.changed_tensors and not self._more

    @property
    def exit_code(self) -> int:
        """What `torchglass compare` exits with: 0 same, 1 different."""
        return 0 if self.same else 1

    @property
    def title(self) -> str:
        """Both names."""
        return f"{self.names[0]} and {self.names[1]}"

    @property
    def summary(self) -> str:
        """The answer in a few sentences."""
        return " ".join(self._answers())

    @property
    def conclusions(self) -> list[str]:
        """The sentences of the summary, the most important first.

        What both compute comes before what they are made of, and a difference before what is equal.
        """
        ran = "" if self.execution is None else self._execution_answer(self.execution)
        order = [ran, *(one for one in self._answers() if one not in (ran, _SAME_STRUCTURE))]
        same = [one for one in self._answers() if one == _SAME_STRUCTURE]
        return [one for one in [*order, *same] if one]

    def _answers(self) -> Iterator[str]:
        if self.structure is not None:
            yield _structure_answer(self.structure)
        if self.tensors is not None:
            yield self._tensor_answer()
        if self.execution is not None:
            yield self._execution_answer(self.execution)
        settings = [row for row in self._more if row.kind == "setting"]
        curves = [
            row for row in self._more if row.kind == "curve" and row.change.startswith("diverges")
        ]
        if settings or curves:
            yield _run_answer(settings, curves)
        elif self.structure is None and self.execution is None:
            yield "The runs are the same."

    def _tensor_answer(self) -> str:
        tensors, changed = self.tensors or (), self.changed_tensors
        if not tensors:
            return "They have no tensor in common."
        if not changed:
            return f"All {plural(len(tensors), 'tensor')} are equal."
        ranks = [one for one in changed if one.rank is not None]
        low = ""
        if ranks and len(ranks) == len(changed):
            low = f", each by a change of rank {max(one.rank or 0 for one in ranks)} or less"
        nan = [one for one in changed if one.nan_before != one.nan_after]
        spoiled = f" {plural(len(nan), 'tensor')} with NaN at different positions." if nan else ""
        verb = "differs" if len(changed) == 1 else "differ"
        return f"{len(changed):,} of {plural(len(tensors), 'tensor')} {verb}{low}.{spoiled}"

    @property
    def _outputs_agree(self) -> bool:
        outputs = self.execution.outputs if self.execution else ()
        return all(one.distance <= one.rounding for one in outputs)

    def _execution_answer(self, execution: ExecutionComparison) -> str:
        found = execution.divergence
        if found is None:
            if self._outputs_agree:
                far = max((one.distance for one in execution.outputs), default=0.0)
                said = "identical" if not far else "equal up to rounding"
                return f"The outputs are {said}: no operation diverges."
            return "The outputs differ, but no operation could be named."
        own = found.b or found.a
        where = f"First divergence: {_op_text(own)}" if own is not None else "They diverge"
        return f"{where}: {found.reason}."

    @property
    def rows(self) -> tuple[ComparisonRow, ...]:
        """Every difference: the first divergence, modules, tensors, settings and curves."""
        return tuple(self._all_rows())

    def _all_rows(self) -> Iterator[ComparisonRow]:
        found = self.first_divergence
        if found is not None:
            yield ComparisonRow(
                kind="op",
                name=found.b.label if found.b else found.a.label if found.a else "",
                change=found.reason,
                before=_op_text(found.a) if found.a else "",
                after=_op_text(found.b) if found.b else "",
                distance=found.distance,
            )
        if self.structure is not None:
            for change in self.structure.changes.values():
                yield from _module_rows(change, self.structure)
        for tensor in self.changed_tensors:
            yield _tensor_row(tensor)
        yield from self._more

    def table(self, *, width: int | None = None) -> str:
        """The answer, the differences as a table, and what was measured.

        Args:
            width: Terminal columns to fit into.
        """
        parts = ["\n".join(wrapped(harmless(self.summary), width))]
        if self.first_divergence is not None:
            parts.append("\n".join(self._divergence_lines(self.first_divergence, width)))
        rows = [row for row in self.rows if row.kind != "op"]
        notes = note_lines(self.notes, width)
        if rows:
            shown = rows[:_MOST_ROWS]
            rest = len(rows) - len(shown)
            more = [f"… and {rest:,} more; .rows and to_csv have all"] if rest else []
            parts.append(table_text(self._columns(rows), shown, more, notes, room=width))
        elif notes:
            parts.append("\n".join(notes))
        return "\n\n".join(parts)

    def __str__(self) -> str:
        return self.table()

    @property
    def notes(self) -> list[str]:
        """What was compared, and what cannot be known."""
        return [*self._notes, *_execution_notes(self.execution)]

    def _columns(self, rows: Sequence[ComparisonRow]) -> list[Column[ComparisonRow]]:
        def number(value: float | None) -> str:
            return "" if value is None else f"{value:.3g}"

        return [
            Column("kind", "", lambda row: row.kind, False, 3, value=lambda row: row.kind),
            Column("name", "Name", lambda row: harmless(row.name), False, value=_name_of),
            Column("change", "Change", lambda row: harmless(row.change), False, value=_change_of),
            Column("before", "a", lambda row: harmless(row.before), False, 1, value=_before),
            Column("after", "b", lambda row: harmless(row.after), False, 1, value=_after),
            Column(
                "distance",
                "Distance" if any(row.distance is not None for row in rows) else "",
                lambda row: number(row.distance),
                value=lambda row: row.distance,
            ),
            Column(
                "cosine",
                "Cosine" if any(row.cosine is not None for row in rows) else "",
                lambda row: number(row.cosine),
                spare=4,
                value=lambda row: row.cosine,
            ),
            Column(
                "largest",
                "Largest change" if any(row.largest is not None for row in rows) else "",
                lambda row: number(row.largest),
                spare=5,
                value=lambda row: row.largest,
            ),
        ]

    def _divergence_lines(self, found: Divergence, width: int | None) -> Iterator[str]:
        for fact in self.divergence_facts(found):
            yield from wrapped(fact, width)
        sides = (
            ("a", found.a, found.operands_a, found.result_a, self.source_lines[0]),
            ("b", found.b, found.operands_b, found.result_b, self.source_lines[1]),
        )
        for name, op, operands, result, code in sides:
            if op is None:
                continue
            yield f"{name}  {harmless(_op_text(op))}"
            if code:
                yield f"     {harmless(code.strip())}"
            for operand in operands:
                yield f"     reads    {harmless(operand_text(operand))}"
            if result is not None:
                yield f"     returns  {harmless(operand_text(result, named=False))}"

    def divergence_facts(self, found: Divergence) -> Iterator[str]:
        """What is the same before the first divergence, and how large it is."""
        execution = self.execution
        if execution is not None:
            yield (
                f"Same until there: {plural(execution.same_ops, 'op')} before it "
                f"{'computes' if execution.same_ops == 1 else 'compute'} the same "
                f"values (a runs {execution.ops_a:,}, b {execution.ops_b:,})."
            )
        if found.distance is not None:
            explained = f"; rounding explains {found.rounding:.1e}" if found.rounding else ""
            yield f"Difference: {_percent(found.distance)} of the result{explained}."

    def to_html(self, file: File | None = None) -> str:
        """Both trees side by side as a self-contained page, also written to `file` if given."""
        from torchglass.results.comparison_page import page_data
        from torchglass.views.web.saved_page import render_view

        return written(render_view(self.title, "reports", {"reports": [page_data(self)]}), file)

    def tree_record(self) -> ReportRecord:
        """The comparison as the explorer shows it beside the tree: where both first diverge."""
        return ReportRecord(
            kind="Comparison",
            answer=" ".join(self.conclusions),
            sections=tuple(filter(None, (self._divergence_section(), *self._row_sections()))),
            notes=tuple(self.notes),
        )

    def _divergence_section(self) -> ReportSection | None:
        found = self.first_divergence
        if found is None:
            return None
        lines = list(self._divergence_lines(found, None))
        # Both lines of code come first.
        start = next((at for at, line in enumerate(lines) if line[:3] in ("a  ", "b  ")), 0)
        path = found.b.path if found.b else found.a.path if found.a else None
        return ReportSection(
            title="First divergence",
            lines=(*lines[start:], *lines[:start]),
            paths=(path,) * len(lines),
        )

    def _row_sections(self) -> Iterator[ReportSection]:
        """What differs in the runs, and the largest changes of values."""
        if self._more:
            rows = [(row.name, row.change, row.before, row.after) for row in self._more]
            yield ReportSection(title="Settings and curves", lines=tuple(aligned_rows(rows)))
        moved = [one for one in self.changed_tensors if one.distance is not None]
        moved.sort(key=_distance_rank)
        if moved:
            shown = moved[:_MOST_ROWS]
            lines = aligned_rows([(one.name, _distance_text(one)) for one in shown])
            paths = tuple(one.name.rpartition(".")[0] for one in shown)
            yield ReportSection(title="Largest changes", lines=tuple(lines), paths=paths)

    def to_dict(self) -> dict[str, Any]:
        """The comparison as dicts, lists, strings and numbers."""
        plain: dict[str, Any] = nan_as_none(
            {
                "a": self.names[0],
                "b": self.names[1],
                "same": self.same,
                "summary": self.summary,
                "first_divergence": None
                if self.first_divergence is None
                else to_json_data(self.first_divergence),
                "outputs": [to_json_data(one) for one in self.execution.outputs]
                if self.execution
                else None,
                "differences": [to_json_data(row) for row in self.rows],
                "notes": self.notes,
            }
        )
        return plain

    def _csv(self) -> tuple[Sequence[str], Iterable[Iterable[Any]]]:
        return csv_rows(self._columns(self.rows), self.rows)

    def _repr_html_(self) -> str:
        columns = [column for column in self._columns(self.rows) if column.heading]
        head = "".join(f"<th>{html_text(column.heading)}</th>" for column in columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html_text(one.text(row))}</td>" for one in columns) + "</tr>"
            for row in self.rows
        )
        details = ""
        if self.first_divergence is not None:
            text = "\n".join(self._divergence_lines(self.first_divergence, None))
            details = f"<pre>{html_text(text)}</pre>"
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        notes = "".join(f"<li>{html_text(note)}.</li>" for note in self.notes)
        return (
            f"<h1>{html_text(self.title)}</h1><p><b>{html_text(self.summary)}</b></p>{details}"
            f"{table if body else ''}<ul>{notes}</ul>"
        )


def _is_own_change(change: ModuleChange) -> bool:
    """Whether a module itself changed, not only the values of its tensors or its name."""
    shapes = any(
        slot.before is None or slot.after is None or slot.before.shape != slot.after.shape
        for slot in change.slots
    )
    return bool(change.class_before or change.extra_before is not None or change.sharing or shapes)


def _structure_answer(structure: ModelDiff) -> str:
    changes = structure.changes.values()
    counts = {
        "added": sum(one.verdict == "added" for one in changes),
        "removed": len(structure.removed),
        "changed": sum(one.verdict == "changed" and _is_own_change(one) for one in changes),
        "renamed or moved": sum(one.path_before is not None for one in changes),
    }
    found = [f"{count:,} {word}" for word, count in counts.items() if count]
    if not found:
        return _SAME_STRUCTURE
    total = sum(counts.values())
    return f"Structure: {', '.join(found)} module{'s' * (total != 1)}."


def _run_answer(settings: Sequence[ComparisonRow], curves: Sequence[ComparisonRow]) -> str:
    words = []
    if settings:
        verb = "differs" if len(settings) == 1 else "differ"
        words.append(f"{plural(len(settings), 'setting')} {verb}: " + _few(settings))
    if curves:
        loss = [row for row in curves if row.name == "loss"]
        first = f"{(*loss, *curves)[0].name} {(*loss, *curves)[0].change}"
        rest = f" ({plural(len(curves), 'curve')} in total)" if len(curves) > 1 else ""
        words.append(f"Curves diverge: {first}{rest}")
    return ". ".join(words) + "."


def _few(rows: Sequence[ComparisonRow]) -> str:
    shown = ", ".join(row.name for row in rows[:3])
    return shown + (", …" if len(rows) > 3 else "")


def _module_rows(change: ModuleChange, structure: ModelDiff) -> Iterator[ComparisonRow]:
    name = change.path or structure.model.name
    if change.verdict != "changed":
        module = structure.model.find(change.path)
        kind = "" if module is None else module.kind
        is_new = change.verdict == "added"
        yield ComparisonRow(
            kind="module",
            name=name,
            change=change.verdict,
            before="" if is_new else kind,
            after=kind if is_new else "",
        )
        return
    module = structure.model.find(change.path)
    if change.path_before is not None:
        yield ComparisonRow(
            kind="module",
            name=name,
            change="renamed or moved",
            before=change.path_before,
            after=change.path,
        )
    if change.class_before and module is not None:
        yield ComparisonRow(
            kind="module",
            name=name,
            change="class",
            before=change.class_before.rpartition(".")[2],
            after=module.kind,
        )
    if change.extra_before is not None and module is not None:
        yield ComparisonRow(
            kind="module",
            name=name,
            change="arguments",
            before=change.extra_before,
            after=module.extra,
        )
    if change.sharing:
        yield ComparisonRow(kind="module", name=name, change=change.sharing)
    for slot in change.slots:
        if slot.before is None or slot.after is None:
            is_new = slot.before is None
            spec = slot.after or slot.before
            yield ComparisonRow(
                kind="tensor",
                name=f"{name}.{slot.name}",
                change="added" if is_new else "removed",
                before="" if is_new else format_shape(spec.shape if spec else None),
                after=format_shape(spec.shape if spec else None) if is_new else "",
            )


def _tensor_row(tensor: TensorChange) -> ComparisonRow:
    shapes = format_shape(tensor.before.shape), format_shape(tensor.after.shape)
    if tensor.distance is None:
        return ComparisonRow(
            kind="tensor", name=tensor.name, change="shape", before=shapes[0], after=shapes[1]
        )
    words = ["values"]
    if tensor.before.dtype != tensor.after.dtype:
        words = ["values and dtype"]
    if tensor.rank is not None:
        words.append(f"rank {tensor.rank}")
    if tensor.nan_before or tensor.nan_after:
        words.append(f"NaN {tensor.nan_before:,} → {tensor.nan_after:,}")
    return ComparisonRow(
        kind="tensor",
        name=tensor.name,
        change=", ".join(words),
        before=tensor.before.dtype if tensor.before.dtype != tensor.after.dtype else "",
        after=tensor.after.dtype if tensor.before.dtype != tensor.after.dtype else "",
        distance=tensor.distance if not math.isnan(tensor.distance) else None,
        cosine=tensor.cosine,
        largest=tensor.largest,
    )


def _distance_rank(tensor: TensorChange) -> float:
    """Larger changes first; NaN on one side, and what was all zeros, before all others."""
    distance = tensor.distance or 0.0
    return -math.inf if math.isnan(distance) else -distance


def _distance_text(tensor: TensorChange) -> str:
    distance = tensor.distance or 0.0
    if math.isnan(distance):
        return f"NaN {tensor.nan_before:,} → {tensor.nan_after:,}"
    rank = "" if tensor.rank is None else f", rank {tensor.rank}"
    return "was all zeros" if math.isinf(distance) else f"Δ {distance:.3g}{rank}"


def _op_text(op: ExecutedOp) -> str:
    """An op with its module and its line: "`blocks.2.norm` layer_norm at model.py:41"."""
    path = f"`{op.path}` " if op.path else ""
    line = f" at {Path(op.source.file).name}:{op.source.line}" if op.source else ""
    return f"{path}{op.label or op.function}{line}"


def operand_text(operand: OperandStats, *, named: bool = True) -> str:
    """A tensor that an op read or returned, with its statistics."""
    name = f"{operand.name} " if named else ""
    stats = operand.stats
    values = (
        f": mean {stats.mean:.3g}, std {stats.std:.3g}, min {stats.min:.3g}, max {stats.max:.3g}"
        if stats is not None
        else ""
    )
    spoiled = f", {stats.nan:,} NaN" if stats is not None and stats.nan else ""
    return f"{name}{format_shape(operand.shape)} {operand.dtype}{values}{spoiled}"


def _percent(distance: float) -> str:
    if math.isinf(distance):
        return "all"
    return f"{distance:.1%}" if distance >= 1e-3 else f"{distance:.1e}"


def _execution_notes(execution: ExecutionComparison | None) -> Iterator[str]:
    if execution is None:
        return
    if not execution.measured:
        yield "rounding was estimated, not measured: a recorded trace cannot be run again"
    else:
        yield (
            "rounding was measured: a ran once more, each result changed by up to "
            f"{execution.eps:.1e} of itself. One input says nothing about others"
        )
    yield from execution.notes


def setting_row(change: SettingChange) -> ComparisonRow:
    """The row of a setting that two runs do not share."""
    return ComparisonRow(
        kind="setting",
        name=change.name,
        change="setting",
        before=change.before,
        after=change.after,
    )


def curve_row(change: CurveChange) -> ComparisonRow:
    """The row of a curve of two runs."""
    since = f"differs from step {change.different_from:,}"
    apart = change.apart_from
    where = f"diverges at step {apart:,}" if apart is not None else "within its noise"
    return ComparisonRow(
        kind="curve",
        name=change.name,
        change=where if apart == change.different_from else f"{where}, {since}",
        before=_last_text(change.last_before, change.nan_from_before),
        after=_last_text(change.last_after, change.nan_from_after),
    )


def _last_text(value: float, nan_from: int | None) -> str:
    return f"{value:.4g}" if nan_from is None else f"NaN from step {nan_from:,}"


def _name_of(row: ComparisonRow) -> str:
    return row.name


def _change_of(row: ComparisonRow) -> str:
    return row.change


def _before(row: ComparisonRow) -> str:
    return row.before


def _after(row: ComparisonRow) -> str:
    return row.after

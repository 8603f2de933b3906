"""The panels of one forward: the ops that ran inside a module, and why the forward failed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from rich.cells import cell_len

from torchglass.analyse.failure.failure import Failure, code_at
from torchglass.analyse.signatures import argument_name, settings_text, signature
from torchglass.records.model import Module, Progress
from torchglass.records.trace import Operand, OpId, OpRecord, TraceRecord
from torchglass.tables.text import format_bytes, format_time, harmless, shape_text
from torchglass.views.failure_text import Part, headline, parts
from torchglass.views.tui.explorer_state import SHARED, ExplorerState, OpMaps, TracedForward
from torchglass.views.tui.keys import bindings
from torchglass.views.tui.panels.panel import Panel
from torchglass.views.tui.panels.tensor_viewer import map_rows
from torchglass.views.tui.styled_text import (
    LazyRows,
    TableCell,
    TextRow,
    fit,
    heading,
    line_width,
    paragraph,
    section,
    sections,
    table,
    text,
    wrap,
)


def shared_note(state: ExplorerState, module: Module, width: int) -> Iterator[TextRow]:
    """A note on a shared module: where its calls are recorded."""
    if module.alias_of is not None:
        first = harmless(state.path_of_calls(module)) or "the model"
        words = f"{SHARED} Same module as {first}. The calls of both are recorded there."
        yield from paragraph(words, width, "note")


_NAME, _SHAPE, _TIME = 32, 16, 9
_MOST_RELATIVES = 200
_LINES_OF_OP, _LEAST_MAPS = 14, 10
"""The lines above the maps of an op, and the least that these get."""


class TensorFlowPanel(Panel):
    """The ops of a module; an opened op with its inputs and the ops that use it."""

    key: ClassVar[str] = "w"
    title: ClassVar[str] = "Tensor flow"
    missing: ClassVar[str] = "No traced forward: use tg.explore(model, *inputs) or --input"
    has_cursor = True
    BINDINGS: ClassVar = bindings("panel:tensor flow")

    def __init__(self, state: ExplorerState) -> None:
        super().__init__(state)
        self._pass: TracedForward | None = None
        self._ops: Sequence[OpId] = ()
        self._walked: list[OpId] = []
        """The ops that were opened one after another; the last one is shown. Empty for the list."""
        self._maps: dict[OpId, OpMaps | None] = {}
        """The pictures of the op that was opened last."""

    @classmethod
    def available(cls, state: ExplorerState) -> bool:
        return state.document(TraceRecord) is not None

    def follow(self, moved: bool) -> None:
        trace = self.state.traced_forward
        if trace is None or (not moved and trace is self._pass):
            self._draw()
            return
        path = self.state.path_of_calls(self.module)
        self._walked = []

        def name_ops(_: Progress) -> tuple[TracedForward, Sequence[OpId]]:
            # Names and relations take long on a large trace: they are computed here, in a thread.
            _names = trace.anatomy.labels, trace.anatomy.children
            return trace, trace.ops(path)

        self.work("Naming ops", name_ops, self._take_ops)

    def _take_ops(self, found: tuple[TracedForward, Sequence[OpId]]) -> None:
        self._pass, self._ops = found
        self._draw()

    def pick(self, op: OpId) -> None:
        # The op of its own cursor comes back from the screen, and must not be announced again.
        if op in self._ops and not self._walked and op != self._op():
            self.go(self._ops.index(op))

    def stood(self) -> None:
        op = self._op()
        if op is not None and not self._walked:
            self.post_message(self.Picked(op))

    def choose(self, row: TextRow) -> None:
        if isinstance(row.target, int):
            self._walk(OpId(row.target))
        else:
            super().choose(row)

    def action_relative(self, direction: int) -> None:
        op = self._op()
        if op is None or self._pass is None:
            return
        relatives = self._pass.op(op).parents if direction < 0 else self._pass.anatomy.children[op]
        if relatives:
            self._walk(relatives[0])

    def action_return(self) -> None:
        self.action_back()

    def action_module(self) -> None:
        op = self._op()
        if op is not None and self._pass is not None:
            self.post_message(self.Jump(self._pass.path(op)))

    def close_inner(self) -> bool:
        if not self._walked:
            return False
        left = self._walked.pop()
        self.row = 0
        self._draw()
        if not self._walked and left in self._ops:
            self.go(self._ops.index(left))
        elif self._walked:
            self.post_message(self.Picked(self._walked[-1]))
        return True

    def _op(self) -> OpId | None:
        if self._walked:
            return self._walked[-1]
        return self._ops[self.row] if self.row < len(self._ops) else None

    def _walk(self, op: OpId) -> None:
        self._walked.append(op)
        self.row = 0
        self.turn_to(y=0)
        self._draw()
        self.post_message(self.Picked(op))

    def _want_maps(self, op: OpId) -> None:
        """Compute the pictures of an op in the background."""
        maps = self.state.maps
        if maps is None or op in self._maps:
            return

        def take(found: OpMaps | None) -> None:
            self._maps = {op: found}
            self._draw()

        self.work("Drawing maps", lambda _: maps(op), take)

    def _pictures(self, op: OpId) -> list[TextRow]:
        """The maps of an op, if they are drawn already."""
        found = self._maps.get(op)
        if found is None:
            return []
        height = max(self.window - _LINES_OF_OP, _LEAST_MAPS)
        drawn = map_rows(found.maps, found.scale, self.room, height, shades=self.has_few_colors)
        return [*paragraph(harmless(found.heading), self.room, "muted"), *drawn]

    def _draw(self) -> None:
        trace, count = self._pass, len(self._ops)
        if trace is None:
            return
        if self._walked:
            self.subtitle = f"{len(self._walked)} opened"
            rows = _opened(trace, self._walked[-1], self.room, self._pictures(self._walked[-1]))
            self.put(rows)
            self._want_maps(self._walked[-1])
            # The cursor starts at the first row that leads somewhere.
            if self.row == 0:
                self.row = next((at for at, row in enumerate(rows) if row.target is not None), 0)
            return
        # If they do not fit, the position says how many there are.
        self.subtitle = "" if count > self.window else f"{count:,} op{'s' * (count != 1)}"
        if not count:
            self.say(f"{harmless(self.module.path)} did not run in the traced forward.")
            return
        path = self.state.path_of_calls(self.module)
        # Names end in numbers, so the longest are among the last.
        near = [*self._ops[:_MOST_RELATIVES], *self._ops[-_MOST_RELATIVES:]]
        names = max(cell_len(trace.name(op)) for op in near)
        width = min(names, _NAME, max(self.room // 3, 8))
        self.put(
            LazyRows(count, lambda at: _listed(trace, self._ops[at], path, width)),
            list(shared_note(self.state, self.module, self.room)),
        )


def _listed(trace: TracedForward, id: OpId, path: str, width: int) -> TextRow:
    """An op in one line: name, output, time and module."""
    op, where = trace.op(id), trace.path(id)
    inner = where[len(path) :].lstrip(".") if where.startswith(path) else where
    pieces = [
        (f"{fit(harmless(trace.name(id)), width)}  ", "muted" if op.kind != "op" else "extra"),
        (f"{fit(_made(op), _SHAPE)} ", "shape"),
        (f"{_time(op):>{_TIME}}  ", "number"),
        (harmless(inner), "muted"),
    ]
    return TextRow(pieces, id)


def _made(op: OpRecord) -> str:
    more = f" +{len(op.outputs) - 1}" if len(op.outputs) > 1 else ""
    return (shape_text(op.outputs[0].spec) if op.outputs else "no output") + more


def _time(op: OpRecord) -> str:
    return "" if op.kind != "op" else format_time((op.end_ns - op.start_ns) / 1e9)


def _opened(
    trace: TracedForward, id: OpId, width: int, pictures: Sequence[TextRow] = ()
) -> list[TextRow]:
    """An op with its inputs, the ops that use it, and pictures of its output."""
    op = trace.op(id)
    children = trace.anatomy.children[id][:_MOST_RELATIVES]
    uses = table(
        [("→", trace.name(one), _made(trace.op(one)), trace.path(one)) for one in children],
        "mark extra shape muted",
    )
    return sections(
        _about(trace, op, width),
        section("Inputs", _sources(trace, op)),
        section("Used by", map(TextRow, uses, children)),
        section("Maps", pictures),
    )


def _about(trace: TracedForward, op: OpRecord, width: int) -> Iterator[TextRow]:
    where = trace.path(op.id) or "the model itself"
    lines = [[(harmless(trace.name(op.id)), "class"), (f"  in {harmless(where)}", "muted")]]
    if op.kind == "op":
        settings = f"({harmless(settings_text(op))})" if op.settings else "()"
        lines.append([(harmless(op.function), "definition"), (settings, "plain")])
    for line in lines:
        yield from map(TextRow, wrap(line, width, "  "))
    for value in op.outputs:
        spec = value.spec
        pieces = [
            (f"{harmless(value.place)} " if value.place else "", "muted"),
            (f"{shape_text(spec)} ", "shape"),
            (f"{harmless(spec.dtype)} ", "dtype"),
            (format_bytes(spec.bytes), "bytes"),
        ]
        yield TextRow(pieces)
    facts = [_time(op), "in place" if op.writes else "", op.grad_fn]
    if told := " · ".join(harmless(fact) for fact in facts if fact):
        yield from paragraph(told, width, "muted")
    if field := trace.field(op.id):
        yield from paragraph(harmless(f"receptive field {field}"), width, "muted")
    if op.source is not None:
        place = f"{op.source.file}:{op.source.line} in {op.source.function}"
        yield from paragraph(harmless(place), width, "muted")
        if code := code_at(op.source):
            yield text(f"  {harmless(code)}", "string")


def _sources(trace: TracedForward, op: OpRecord) -> Iterator[TextRow]:
    names = signature(op.function)
    cells, targets = [], []
    for operand in op.operands[:_MOST_RELATIVES]:
        for source, target, style in _origins(trace, operand):
            argument = argument_name(operand.place, names)
            name = TableCell(harmless(source), style)
            cells.append(("←", name, shape_text(operand.spec), argument))
            targets.append(target)
    return map(TextRow, table(cells, "mark plain shape muted"), targets)


def _origins(trace: TracedForward, operand: Operand) -> Iterator[tuple[str, int | str | None, str]]:
    """The sources of an operand: name, target of a jump, and style."""
    for parent in operand.parents:
        yield trace.name(parent), parent, "extra"
    stored = operand.parameter or operand.buffer
    if stored:
        yield stored, stored.rpartition(".")[0], "name"
    elif not operand.parents:
        yield "created outside this forward", None, "muted"


class ExplanationPanel(Panel):
    """Why the forward failed: where, with which tensors, what would fit, and what ran before."""

    key: ClassVar[str] = "E"
    title: ClassVar[str] = "Explanation"
    missing: ClassVar[str] = "No forward has failed"

    @classmethod
    def available(cls, state: ExplorerState) -> bool:
        return state.failure is not None

    def follow(self, moved: bool) -> None:
        if self.state.failure is not None:
            self.put(describe_failure(self.state.failure, self.room))


def describe_failure(failure: Failure, width: int) -> list[TextRow]:
    """The rows of a failed forward."""
    who, what = headline(failure)
    error = [row for line in what.splitlines() for row in paragraph(line, width, "problem")]
    return sections(
        [text(f"✗ {who}", "heading"), *error],
        *([heading(part.title), *_rows(part, width)] for part in parts(failure)),
    )


def _rows(part: Part, width: int) -> Iterator[TextRow]:
    lines = iter(table([row for row in part.rows if len(row) > 1], "name shape dtype muted"))
    bullet = "• " if part.listed else ""
    for row in part.rows:
        if len(row) == 1:
            for words in row[0].split("\n"):
                indent = " " * (len(words) - len(words.lstrip()) + len(bullet))
                yield from paragraph(f"{bullet}{words}", width, "plain", indent)
            continue
        line = next(lines)
        if line_width(line) <= width:
            yield TextRow(line)
        else:
            # What does not fit beside the rest goes below it.
            *first, (last, style) = line
            yield TextRow(first)
            yield from paragraph(f"  {last.strip()}", width, style, "  ")

"""Findings, and the explanation of a failed forward, as text and HTML."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from torchglass.analyse.failure.failure import ExceptionContext, Failure, SizeOrigin, code_at
from torchglass.analyse.failure.operands import TensorArgument, module_name
from torchglass.analyse.nonfinite_cause import cause
from torchglass.analyse.trace import TraceStructure
from torchglass.records.findings import Evidence, Finding, ReplayRecord
from torchglass.records.model import Model
from torchglass.records.trace import CallRecord, OpId, OpRecord, SourceLine, TraceRecord
from torchglass.tables.export import html_text, stylesheet
from torchglass.tables.text import (
    aligned_rows,
    format_ns,
    format_shape,
    harmless,
    plural,
    shape_text,
    shorten,
)
from torchglass.views.model_text import brief, forward_signature, misled_class

_LONGEST_CODE = 88
_MOST_GIVEN = 12
_CARRIERS = ("_call_impl", "_wrapped_call_impl", "__getattr__")
"""Functions of torch that only forward a call of the user's code."""

PartRow = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A heading and its rows; rows of several cells are a table."""

    title: str
    rows: tuple[PartRow, ...]
    listed: bool = False
    """Whether the rows are alternatives."""
    in_note: bool = False
    """Whether it is part of the note on the exception."""


def parts(failure: Failure) -> tuple[Part, ...]:
    """Where it failed, the tensors, why, what would fit, and what ran before."""
    given = "Tensors involved" if failure.op is not None else "Arguments of the module"
    every = (
        Part(title="Where", rows=tuple(_where(failure)), in_note=True),
        Part(title=given, rows=tuple(_given(failure)), in_note=True),
        Part(title="Why", rows=tuple(_why(failure)), in_note=True),
        Part(title="What would fit here", rows=tuple(_fits(failure)), listed=True),
        Part(title="The last operations before it", rows=tuple(_last(failure))),
    )
    return tuple(part for part in every if part.rows)


def digest(anatomy: TraceStructure) -> tuple[str, str]:
    """Two lines about a pass that completed."""
    record = anatomy.record
    ops = plural(sum(op.kind == "op" for op in record.ops), "op")
    calls = plural(len(record.calls), "module call")
    taken = format_ns(record.end_ns - record.start_ns)
    ran = f"{harmless(record.model)} completed: {ops} in {calls}, {taken}."
    return ran, f"{_ends(record.ops, 'input')} → {_ends(record.ops, 'output')}"


def _ends(ops: Sequence[OpRecord], kind: str) -> str:
    ends = [op for op in ops if op.kind == kind]
    specs = [(op.function, op.outputs[0].spec) for op in ends[:_MOST_GIVEN]]
    told = [f"{harmless(name)} {shape_text(spec)} {spec.dtype}".lstrip() for name, spec in specs]
    return ", ".join(told) or "no tensors"


def headline(failure: Failure) -> tuple[str, str]:
    """What raised, and which error."""
    return f"{harmless(failure.record.model)} raised", lines(failure.error)


def lines(text: str) -> str:
    """A text of several lines, each safe to print."""
    return "\n".join(harmless(line) for line in text.splitlines())


def _op_and_module(failure: Failure) -> str:
    """The op and the module it ran in: "linear in fc1, Linear(in_features=400, …)"."""
    module = failure.module
    where = harmless(failure.call.path) if failure.call is not None else ""
    if module is not None:
        made = harmless(f"{module.kind}({module.extra})".removesuffix("()"))
        where = f"{module_name(where) if where else 'the model itself'}, {made}"
    function = harmless(failure.op.function) if failure.op is not None else ""
    return " in ".join(filter(None, (function, where)))


def _where(failure: Failure) -> Iterator[PartRow]:
    """The op, the module and the line, and how often it worked before."""
    yield (_op_and_module(failure) or "before the model's forward began",)
    if failure.call is not None and failure.call.number > 1:
        yield (f"in call {failure.call.number} of that module",)
    if failure.earlier:
        yield (_earlier(failure),)
    if failure.source is not None:
        source = failure.source
        yield (harmless(f'File "{source.file}", line {source.line}, in {source.function}'),)
        code = _code(source)
        if code:
            yield (f"    {code}",)
    if failure.op is None:
        torchs = failure.context.torch_source
        if torchs is None or torchs.function in _CARRIERS:
            yield ("no torch operation failed: the exception came from Python code",)
        else:
            file = harmless(PurePath(torchs.file).name)
            yield (f"raised by torch's own Python code: {file}:{torchs.line}, {torchs.function}",)


def _earlier(failure: Failure) -> str:
    """How often the op worked before, and what was different then."""
    count = len(failure.earlier)
    often = "once" if count == 1 else "twice" if count == 2 else f"{count} times"
    now = [tensor for tensor in failure.tensors if not tensor.is_held]
    then = [
        operand
        for operand in failure.earlier[-1].operands
        if not operand.parameter and not operand.buffer
    ]
    told = f"it ran {often} earlier in this pass"
    changed = [
        f"{tensor.name} {shape_text(operand.spec)} then, {shape_text(tensor.operand.spec)} now"
        for tensor, operand in zip(now, then, strict=False)
        if tensor.operand.spec.shape != operand.spec.shape
    ]
    return f"{told}: {', '.join(changed)}" if changed else told


def _given(failure: Failure) -> Iterator[PartRow]:
    tensors = failure.tensors
    devices = {tensor.operand.spec.device for tensor in tensors}
    for tensor in tensors[:_MOST_GIVEN]:
        spec = tensor.operand.spec
        device = f" {spec.device}" if len(devices) > 1 else ""
        yield (
            harmless(tensor.name),
            shape_text(spec),
            spec.dtype + device,
            _origin(failure, tensor),
        )
    if len(tensors) > _MOST_GIVEN:
        yield (f"… and {len(tensors) - _MOST_GIVEN} more",)


def _origin(failure: Failure, tensor: TensorArgument) -> str:
    """Where a tensor came from."""
    operand = tensor.operand
    if operand.parameter or operand.buffer:
        role = "parameter" if operand.parameter else "buffer"
        return f"{role} {harmless(operand.parameter or operand.buffer)}"
    if operand.op is None:
        return "created outside this pass"
    return _made_by(failure, operand.op)


def _made_by(failure: Failure, id: OpId) -> str:
    """An op by its label, the module it ran in and its line."""
    op = failure.record.ops[id]
    if op.kind == "input":
        name = "" if op.function == "input" else harmless(op.function)
        return f"the model's input {name}".rstrip()
    calls = failure.anatomy.modules(id)
    words = [str(failure.anatomy.labels[id])]
    if calls:
        module = failure.model.find(calls[-1].path)
        kind = f" ({brief(module.kind, module.extra)})" if module else ""
        words.append(f"in {module_name(harmless(failure.anatomy.call_name(calls[-1])))}{kind}")
    source = failure.source_of(op)
    if source is not None and source != failure.source:
        words.append(f"at {_short_place(source)}")
    return " ".join(words)


def _why(failure: Failure) -> Iterator[PartRow]:
    if failure.op is None:
        yield from _signature(failure)
    if failure.verdict is not None:
        yield (harmless(failure.verdict.why),)
        for found in failure.set_sizes:
            # The table already says everything about an unchanged tensor.
            if found.op.id != found.tensor.operand.op or found.op.operands:
                yield (_set(failure, found),)


def _signature(failure: Failure) -> Iterator[PartRow]:
    """The arguments that the module takes, if it was called with others."""
    misled, module = misled_class(failure.error), failure.module
    source = failure.model.classes.get(module.class_name) if misled and module else None
    if source is None or module is None:
        return
    classes = [module.class_name, *(ancestor.class_name for ancestor in source.ancestors)]
    is_its_own = misled in [name.rpartition(".")[2] for name in classes]
    if is_its_own and (signature := forward_signature(source)):
        yield (harmless(f"the forward of {module.kind} expects {signature}"),)


def _set(failure: Failure, found: SizeOrigin) -> str:
    """The op that set a size, and its input shape."""
    op = found.op
    if op.kind == "input":
        return f"the {found.size} of {found.tensor.name} comes from {_made_by(failure, op.id)}"
    told = (
        f"the {found.size} of {harmless(found.tensor.name)} was set by {_made_by(failure, op.id)}"
    )
    used = [operand.spec for operand in op.operands if not operand.parameter]
    made = op.outputs[0].spec if op.outputs else None
    if len(used) == 1 and made is not None and made.shape != used[0].shape:
        told += f" ({shape_text(used[0])} → {shape_text(made)})"
    source = failure.source_of(op)
    code = _code(source) if source is not None and source != failure.source else ""
    return f"{told}:\n    {code}" if code else told


def _fits(failure: Failure) -> Iterator[PartRow]:
    images = failure.images
    if images is not None:
        least, *most = map(format_shape, images.shapes)
        is_least = failure.verdict is not None and failure.verdict.least_side is not None
        also = " or larger" if is_least else f" (up to {most[0]} also fits)" if most else ""
        yield (f"resize {_made_by(failure, images.input.id)} to {least}{also}",)
    if failure.verdict is not None:
        yield from ((harmless(advice),) for advice in failure.verdict.fits)


def _last(failure: Failure) -> Iterator[PartRow]:
    for op in failure.last_ops:
        calls = failure.anatomy.modules(op.id)
        where = _named(failure, calls[-1]) if calls else ""
        made = ", ".join(shape_text(value.spec) for value in op.outputs[:3])
        source = failure.source_of(op)
        line = _short_place(source) if source is not None else ""
        yield (str(failure.anatomy.labels[op.id]), made, where, line)
    where = _named(failure, failure.call) if failure.call and failure.call.path else ""
    line = _short_place(failure.source) if failure.source else ""
    done = harmless(failure.op.function) if failure.op else "raise"
    yield (f"✗ {done}", "", where, line)


def _named(failure: Failure, call: CallRecord) -> str:
    """A call and what its module is: "features.0: Conv2d(3→16, 5×5)"."""
    module = failure.model.find(call.path)
    kind = f": {brief(module.kind, module.extra)}" if module else ""
    return harmless(failure.anatomy.call_name(call)) + kind


def _short_place(source: SourceLine) -> str:
    return harmless(f"{PurePath(source.file).name}:{source.line}")


def _code(source: SourceLine) -> str:
    return shorten(harmless(code_at(source)), _LONGEST_CODE)


_INDENT = "  "
_MOST_TENSORS = 12


def finding_text(finding: Finding) -> str:
    """A finding in full, its message first."""
    told = [*_finding_place(finding), *_table(finding.tensors, finding.facts.get("first_index"))]
    reason = cause(finding)
    if reason and reason not in finding.message:
        told.append(f"why: {reason}")
    if finding.op and finding.kind in ("nan", "inf"):
        told.append(_how_to_allow(finding))
    if "dump" in finding.facts:
        told.append(f"rerun: torchglass replay {finding.facts['dump']}")
    if "not_dumped" in finding.facts:
        told.append(f"cannot be rerun: {finding.facts['not_dumped']}")
    return f"\n{_INDENT}".join([harmless(finding.message), *map(harmless, told)])


def _how_to_allow(finding: Finding) -> str:
    name = finding.path or finding.op
    either = f', or allow=["{finding.path}"] for the module' if finding.path else ""
    if finding.phase == "optimizer":
        return f'if intended: tg.guard(model, allow=["{name}"])'
    back = "; backward=False leaves out gradients" if finding.phase == "backward" else ""
    return f'if intended: tg.guard(model, allow=["{finding.op}"]){either}{back}'


def findings_text(findings: Iterable[Finding]) -> str:
    """Several findings, or a line that there are none."""
    return "\n\n".join(map(finding_text, findings)) or "No NaN or Inf found"


def replay_text(replay: ReplayRecord) -> str:
    """The result of rerunning an op."""
    verdict = "reproduced" if replay.reproduced else "not reproduced"
    lines = [
        f"{replay.finding.op}, run alone: {verdict}",
        f"then: {replay.finding.message}",
        *_finding_place(replay.finding),
        *_table(replay.tensors),
    ]
    return f"\n{_INDENT}".join(map(harmless, lines))


def _finding_place(finding: Finding) -> Iterator[str]:
    source = finding.source
    if source is not None:
        yield f'File "{source.file}", line {source.line}, in {source.function}'
        code = code_at(source)
        if code:
            yield f"{_INDENT}{shorten(code, _LONGEST_CODE)}"
    if finding.call > 1:
        yield f"in call {finding.call} of that module"


def _table(tensors: tuple[Evidence, ...], first_index: list[int] | None = None) -> Iterator[str]:
    """A line per tensor: its name, kind and range."""
    shown = tensors
    if len(tensors) > _MOST_TENSORS:
        shown = (*tensors[: _MOST_TENSORS - 1], tensors[-1])
    rows = [[_name(one), f"{shape_text(one.spec)} {one.spec.dtype}", _range(one)] for one in shown]
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


def _range(one: Evidence) -> str:
    stats = one.stats
    if stats is None:
        return "overwritten since"
    parts = [] if math.isnan(stats.min) else [f"{stats.min:.4g} … {stats.max:.4g}"]
    parts += [
        f"{count:,} {what}" for count, what in ((stats.nan, "NaN"), (stats.inf, "Inf")) if count
    ]
    return ", ".join(parts) + (f" (produced by {one.maker})" if one.maker else "")


def failure_note(record: TraceRecord, model: Model, context: ExceptionContext | None = None) -> str:
    """The note for an exception: the op, its module, its line, its operands and why it failed."""
    told = [part for part in parts(Failure(record, model, context)) if part.in_note]
    lines = [line for part in told for line in _lines(part)]
    return f"\n{_INDENT}".join([f"torchglass: {lines[0]}", *lines[1:]])


def failure_text(failure: Failure) -> str:
    """The full explanation of a forward that raised."""
    blocks = [" ".join(headline(failure))]
    for part in parts(failure):
        lines = (f"{_INDENT * 2}{line}" for line in _lines(part))
        blocks.append("\n".join([f"{_INDENT}{part.title}", *lines]))
    return "\n\n".join(blocks)


def digest_text(failure: Failure) -> str:
    """Two lines on a forward that did not raise."""
    return "\n".join(digest(failure.anatomy))


def _lines(part: Part) -> Iterator[str]:
    """The rows of a part as lines with aligned cells."""
    table = iter(aligned_rows([row for row in part.rows if len(row) > 1]))
    bullet = "• " if part.listed else ""
    for row in part.rows:
        line = row[0] if len(row) == 1 else next(table)
        yield from f"{bullet}{line}".rstrip().split("\n")


def failure_fragment(failure: Failure) -> str:
    """The explanation as HTML without scripts; two lines for a forward that completed."""
    if not failure.error:
        inside = [f"<p>{html_text(line)}</p>" for line in digest(failure.anatomy)]
    else:
        who, what = headline(failure)
        inside = [f'<h3>{html_text(who)} <span class="error">{_html_lines(what)}</span></h3>']
        inside += (html for part in parts(failure) for html in _html_part(part))
    opening = '<div class="torchglass-failure">'
    return "\n".join([stylesheet("failure.css"), opening, *inside, "</div>"])


def _html_part(part: Part) -> Iterator[str]:
    yield f"<h4>{html_text(part.title)}</h4>"
    if part.listed:
        yield "<ul>" + "".join(f"<li>{_html_lines(row[0])}</li>" for row in part.rows) + "</ul>"
    elif len(part.rows[0]) > 1:
        rows = ("".join(f"<td>{html_text(cell)}</td>" for cell in row) for row in part.rows)
        cells = "".join(f"<tr>{row}</tr>" for row in rows)
        yield f"<table><tbody>{cells}</tbody></table>"
    else:
        yield from (f"<p>{_html_lines(row[0])}</p>" for row in part.rows)


def _html_lines(content: str) -> str:
    """Lines of text; indented ones are code."""
    return "<br>".join(
        f"<code>{html_text(line.strip())}</code>" if line.startswith("    ") else html_text(line)
        for line in content.split("\n")
    )

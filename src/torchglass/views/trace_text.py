"""A trace and its ops as text, and a trace as HTML."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from torchglass.analyse.signatures import settings_text
from torchglass.analyse.trace import TraceStructure, parameters_of
from torchglass.records.model import Model, Module, Stats, TensorSpec
from torchglass.records.trace import CallRecord, OpId, OpRecord
from torchglass.tables.export import html_text, stylesheet
from torchglass.tables.text import (
    TextColumn,
    ends,
    first_shape,
    fitted,
    format_bytes,
    format_count,
    format_ns,
    format_shape,
    harmless,
    lined_up,
    plural,
    shape_text,
    sparkline,
)

Saved = Collection[tuple[OpId, int]]
"""The tensors that were saved, by number of the op and of its output."""

_WIDTH = 72
"""Terminal cells of a line of an op, which is indented by two tabs of four."""
_MOST_OPERATIONS = 60
_PATHS_A_LINE = 8
_MOST_LINES = 200
"""Longer lists are cut in the middle."""


def trace_text(
    anatomy: TraceStructure,
    model: Model,
    saved: Saved,
    random_seed: int | None = None,
    *,
    as_log: bool = False,
) -> str:
    """The structure of a pass, its tensors, parameters, and each op with its shape and module.

    With `as_log`, as TorchLens prints it: the modules, then the layers by their labels alone.
    """
    is_marked = bool(saved) and any((op, 0) not in saved for op in anatomy.listed)
    starred = {op for op, _ in saved} if is_marked else set()
    lines = list(_beginning(anatomy, model, saved, random_seed))
    if not as_log:
        lines += [_heading(anatomy, is_marked, "Operations"), *_operations(anatomy, starred)]
    else:
        lines += ["\tModule Hierarchy:", *_cut(list(_hierarchy(model, model.root, "\t\t")))]
        layers = [
            f"\t\t{place}: {anatomy.labels[op]} {'*' if op in starred else ''}"
            for place, op in enumerate(anatomy.listed)
        ]
        lines += [_heading(anatomy, is_marked, "Layers"), *_cut(layers)]
    return "\n".join(lines)


def _beginning(
    anatomy: TraceStructure, model: Model, saved: Saved, random_seed: int | None
) -> Iterator[str]:
    record = anatomy.record
    yield f"Log of {harmless(record.model)} forward pass:"
    if record.error:
        yield f"\tStopped by an error: {harmless(record.error)}"
    yield f"\tModel structure: {_structure(anatomy, model)}."
    yield f"\t{_tensors(anatomy, saved)}."
    yield f"\t{_parameter_ops(anatomy)}."
    if random_seed is not None:
        yield f"\tRandom seed: {random_seed}"
    yield f"\tTime elapsed: {(record.end_ns - record.start_ns) / 1e9:.3f}s"
    for note in record.notes:
        yield f"\tNote: {note}."


def _structure(anatomy: TraceStructure, model: Model) -> str:
    """The shape of the graph, and how many modules the model has."""
    loops = anatomy.loops
    kind = f"recurrent (at most {loops} loops)" if loops > 1 else "purely feedforward"
    branching = "with branching" if anatomy.is_branching else "without branching"
    modules = sum(module.alias_of is None for module in model.modules) - 1
    return f"{kind}, {branching}; {modules} total modules"


def _tensors(anatomy: TraceStructure, saved: Saved) -> str:
    """How many tensors the pass created, and how many of them were saved."""
    specs = {
        (op.id, index): value.spec
        for op in anatomy.record.ops
        for index, value in enumerate(op.outputs)
    }
    kept = [specs[key] for key in saved if key in specs]
    return f"{_sum(specs.values())} computed in forward pass; {_sum(kept)} saved"


def _parameter_ops(anatomy: TraceStructure) -> str:
    """How many ops used parameters, and the size of these, each counted once."""
    operations = sum(bool(parameters_of(op)) for op in anatomy.record.ops)
    specs = anatomy.parameters.values()
    elements = sum(spec.elements for spec in specs)
    size = format_bytes(sum(spec.bytes for spec in specs))
    return f"{operations} parameter operations ({elements} params total; {size})"


def _sum(specs: Collection[TensorSpec]) -> str:
    size = format_bytes(sum(spec.bytes for spec in specs))
    return f"{plural(len(specs), 'tensor')} ({size})"


def _heading(anatomy: TraceStructure, marked: bool, what: str) -> str:
    if marked:
        return f"\t{what} (* where the tensor is saved):"
    left_out = len(anatomy.record.ops) - len(anatomy.listed)
    return f"\t{what} ({left_out} without a saved tensor left out):" if left_out else f"\t{what}:"


def _operations(anatomy: TraceStructure, starred: set[OpId]) -> list[str]:
    """A line for each op: its index, its label, the shape of its output, the module it ran in."""
    places = list(enumerate(anatomy.listed))
    first, left_out, last = ends(places, _MOST_OPERATIONS)
    shown = [*first, *last]
    if not shown:
        return []
    ops = [anatomy.record.ops[op] for _, op in shown]
    columns = [
        TextColumn([str(place) for place, _ in shown]),
        TextColumn(["*" if op in starred else " " * bool(starred) for _, op in shown]),
        TextColumn([str(anatomy.labels[op]) for _, op in shown], right=False),
        TextColumn([first_shape(op.outputs) for op in ops], right=False),
        TextColumn([_module(anatomy, op) for _, op in shown], right=False),
    ]
    used = [column for column in columns if column.width]
    lines = [f"\t\t{line}" for line in lined_up(fitted(used, _WIDTH))]
    if left_out:
        more = f"\t\t… {left_out:,} more operations: trace[{len(first)}:{len(first) + left_out}]"
        lines.insert(len(first), f"{more}, or trace.to_pandas() for all")
    return lines


def _module(anatomy: TraceStructure, op: OpId) -> str:
    calls = anatomy.modules(op)
    return harmless(anatomy.call_name(calls[-1])) if calls and calls[-1].path else ""


def _cut(lines: Sequence[str]) -> list[str]:
    first, left_out, last = ends(lines, _MOST_LINES)
    middle = [f"\t\t… {left_out} more lines …"] if left_out else []
    return [*first, *middle, *last]


def _hierarchy(model: Model, module: Module, indent: str) -> Iterator[str]:
    """The modules below a module; siblings without children share a line."""
    children = list(model.children(module))
    apart = module is model.root and any(child.children for child in children)
    for is_leaf, group in groupby(children, lambda child: not child.children and not apart):
        if is_leaf:
            yield from _wrapped([harmless(child.path) for child in group], indent)
            continue
        for child in group:
            yield f"{indent}{harmless(child.path)}{':' if child.children else ''}"
            yield from _hierarchy(model, child, indent + "    ")


def _wrapped(paths: Sequence[str], indent: str) -> Iterator[str]:
    for start in range(0, len(paths), _PATHS_A_LINE):
        after = ", " if start + _PATHS_A_LINE < len(paths) else ""
        yield indent + ", ".join(paths[start : start + _PATHS_A_LINE]) + after


_MOST_OUTPUTS = 4
_MOST_NAMES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPreview:
    """What is shown of a saved tensor."""

    corner: str
    """Its first values; "" if there are none."""
    stats: Stats | None = None
    histogram: Sequence[float] = ()


def op_line(anatomy: TraceStructure, id: OpId) -> str:
    """An op's label, its outputs and its module."""
    op = anatomy.record.ops[id]
    specs = (value.spec for value in op.outputs[:_MOST_OUTPUTS])
    made = ", ".join(f"{shape_text(spec)} {spec.dtype}" for spec in specs)
    calls = anatomy.modules(id)
    where = f" in {harmless(anatomy.call_name(calls[-1]))}" if calls else ""
    return f"<{anatomy.labels[id]}: {made}{where}>"


def op_text(
    anatomy: TraceStructure,
    id: OpId,
    previews: Mapping[int, TensorPreview],
    *,
    gradient: TensorPreview | None = None,
    code: str = "",
    field: str = "",
) -> str:
    """Everything about an op: `previews` of its outputs, its source line, its receptive field."""
    op = anatomy.record.ops[id]
    label = anatomy.labels[id]
    this_pass = f" (pass {label.number}/{label.passes})" if label.passes > 1 else ""
    total = len(anatomy.record.ops)
    return "\n".join(
        [
            f"Layer {label.layer}{this_pass}, operation {id + 1}/{total}:",
            *_outputs(op, previews),
            f"\tParams: {_parameters(op)}",
            f"\tParent Layers: {_names(anatomy, op.parents)}",
            f"\tChild Layers: {_names(anatomy, anatomy.children[id])}",
            *_function(anatomy, op),
            *_output_of(anatomy, id),
            f"\tLookup keys: {', '.join(map(str, _keys(anatomy, id)))}",
            *_values("Values", list(previews.values())[:_MOST_OUTPUTS]),
            *_values("Gradient", [gradient] if gradient else []),
            *([f"\tArguments: {harmless(settings_text(op))}"] if op.settings else []),
            *([f"\tReceptive field: {harmless(field)}"] if field else []),
            *_relatives(anatomy, id),
            *_source(op, code),
        ]
    )


def _outputs(op: OpRecord, previews: Mapping[int, TensorPreview]) -> Iterator[str]:
    several = len(op.outputs) > 1
    for index, value in enumerate(op.outputs[:_MOST_OUTPUTS]):
        preview = previews.get(index)
        number = f" {index}" if several else ""
        unsaved = "" if preview is not None else " (not saved)"
        yield f"\tOutput tensor{number}: {_spec(value.spec)}{unsaved}"
        if preview is not None and preview.corner:
            yield f"\t\t{preview.corner}"
    if len(op.outputs) > _MOST_OUTPUTS:
        yield f"\t… and {len(op.outputs) - _MOST_OUTPUTS} more output tensors"


def _spec(spec: TensorSpec) -> str:
    device = f", device={spec.device}" if spec.device != "cpu" else ""
    layout = f", layout={spec.layout}" if spec.layout != "strided" else ""
    size = format_bytes(spec.bytes)
    return f"shape={spec.shape}, dtype=torch.{spec.dtype}, size={size}{device}{layout}"


def _parameters(op: OpRecord) -> str:
    specs = parameters_of(op).values()
    if not specs:
        return "no params used"
    shapes = ", ".join(str(shape) for shape in sorted(spec.shape or () for spec in specs))
    elements = sum(spec.elements for spec in specs)
    size = format_bytes(sum(spec.bytes for spec in specs))
    return f"Computed from params with shape {shapes}; {elements} params total ({size})"


def _function(anatomy: TraceStructure, op: OpRecord) -> Iterator[str]:
    if op.kind != "op":
        yield f"\t{op.kind.capitalize()} of the model: {harmless(op.function) or 'all of it'}"
        return
    in_place = "in place" if op.writes else ""
    yield f"\tFunction: {harmless(op.function)} (gradfunc={op.grad_fn or None}) {in_place}"
    calls = anatomy.modules(op.id)
    where = _call_names(anatomy, calls[-1:]) or "not computed inside a module"
    yield f"\tComputed inside module: {where}"
    yield f"\tTime elapsed: {(op.end_ns - op.start_ns) / 1e9: .3E}s"


def _output_of(anatomy: TraceStructure, id: OpId) -> Iterator[str]:
    calls = anatomy.output_of(id)
    yield f"\tOutput of modules: {_call_names(anatomy, calls) or 'none'}"
    if calls:
        yield f"\tOutput of bottom-level module: {_call_names(anatomy, calls[:1])}"


def _keys(anatomy: TraceStructure, id: OpId) -> Iterator[int | str]:
    """The keys of an op, without those that only drop the second number of its label."""
    label = anatomy.labels[id]
    for key in anatomy.lookup.keys(id):
        if key not in (label.short, f"{label.short}:{label.number}"):
            yield harmless(key) if isinstance(key, str) else key


def _values(title: str, previews: Sequence[TensorPreview]) -> Iterator[str]:
    for preview in previews:
        if preview.stats is not None:
            yield f"\t{title}: {_numbers(preview.stats)}  {_bars(preview.histogram)}".rstrip()


def _bars(histogram: Sequence[float]) -> str:
    # A sparkline starts at its smallest value; bars of counts start at zero.
    return sparkline((0.0, *histogram), len(histogram) + 1)[1:]


def _numbers(stats: Stats) -> str:
    """The statistics of a tensor in a line; NaN and Inf only if there are any."""
    moments = (("min", stats.min), ("mean", stats.mean), ("max", stats.max), ("std", stats.std))
    counts = (("NaN", stats.nan), ("Inf", stats.inf))
    return ", ".join(
        [
            *(f"{name} {value:.4g}" for name, value in moments),
            *(f"{count} {name}" for name, count in counts if count),
        ]
    )


def _relatives(anatomy: TraceStructure, id: OpId) -> Iterator[str]:
    for title, relatives in (
        ("Shares parents with", anatomy.siblings(id)),
        ("Shares children with", anatomy.spouses(id)),
    ):
        if relatives:
            yield f"\t{title}: {_names(anatomy, relatives)}"


def _source(op: OpRecord, code: str) -> Iterator[str]:
    if op.source is not None:
        place = f"{op.source.file}:{op.source.line} in {op.source.function}"
        yield f"\tSource: {harmless(place)}" + (f": {harmless(code)}" if code else "")


def _names(anatomy: TraceStructure, ops: Sequence[OpId]) -> str:
    names = [str(anatomy.labels[op]) for op in ops[:_MOST_NAMES]]
    more = [f"… and {len(ops) - _MOST_NAMES} more"] if len(ops) > _MOST_NAMES else []
    return ", ".join([*names, *more]) or "none"


def _call_names(anatomy: TraceStructure, calls: Sequence[CallRecord]) -> str:
    return ", ".join(harmless(anatomy.call_name(call)) for call in calls)


_MOST_HTML_ROWS = 1_000
_HEADINGS = (
    ("", "number"),
    ("Layer", ""),
    ("Shape", ""),
    ("Type", ""),
    ("Size", "number"),
    ("Params", "number"),
    ("Module", ""),
    ("Parents", ""),
    ("Time", "number"),
)


def trace_fragment(anatomy: TraceStructure, model: Model, saved: Saved) -> str:
    """The facts of a pass, and a table of its ops."""
    record = anatomy.record
    facts = (
        _structure(anatomy, model),
        _tensors(anatomy, saved),
        _parameter_ops(anatomy),
        f"{format_ns(record.end_ns - record.start_ns)} elapsed",
    )
    heads = "".join(f'<th class="{kind}">{title}</th>' for title, kind in _HEADINGS)
    return "\n".join(
        [
            stylesheet("trace.css"),
            '<div class="torchglass-trace">',
            f"<h3>{html_text(record.model)}: forward pass</h3>",
            *([f'<p class="error">{html_text(record.error)}</p>'] if record.error else []),
            "<ul>",
            *(f"<li>{html_text(fact)}</li>" for fact in facts),
            "</ul>",
            f'<div class="layers"><table><thead><tr>{heads}</tr></thead><tbody>',
            *_html_rows(anatomy),
            "</tbody></table></div></div>",
        ]
    )


def _html_rows(anatomy: TraceStructure) -> Iterator[str]:
    longest = max((op.end_ns - op.start_ns for op in anatomy.record.ops), default=0)
    listed = [(place, anatomy.record.ops[op]) for place, op in enumerate(anatomy.listed)]
    first, left_out, last = ends(listed, _MOST_HTML_ROWS)
    for place, op in first:
        yield _html_row(anatomy, place, op, longest)
    if left_out:
        yield f'<tr><td colspan="{len(_HEADINGS)}" class="quiet">… {left_out} more …</td></tr>'
    for place, op in last:
        yield _html_row(anatomy, place, op, longest)


def _html_row(anatomy: TraceStructure, place: int, op: OpRecord, longest: int) -> str:
    spec = op.outputs[0].spec if op.outputs else None
    calls = anatomy.modules(op.id)
    used = sum(parameter.elements for parameter in parameters_of(op).values())
    size = sum(value.spec.bytes for value in op.outputs)
    parents = ", ".join(str(anatomy.labels[parent]) for parent in op.parents)
    return (
        "<tr>"
        f'<td class="number quiet">{place}</td>'
        f"<td>{html_text(anatomy.labels[op.id])}</td>"
        f"<td>{html_text(format_shape(spec.shape) if spec else '')}</td>"
        f'<td class="quiet">{html_text(spec.dtype if spec else "")}</td>'
        f'<td class="number">{format_bytes(size)}</td>'
        f'<td class="number">{format_count(used) if used else ""}</td>'
        f'<td class="quiet">{html_text(anatomy.call_name(calls[-1]) if calls else "")}</td>'
        f'<td class="quiet">{html_text(parents)}</td>'
        f"{_html_time(op, longest)}"
        "</tr>"
    )


def _html_time(op: OpRecord, longest: int) -> str:
    taken = op.end_ns - op.start_ns
    if not taken:
        return "<td></td>"
    share = f"{taken / longest:.1%}"
    return f'<td class="number time" style="--share: {share}">{format_ns(taken)}</td>'

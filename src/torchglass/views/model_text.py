"""The facts and notes of a summary, and the model as a tree.

ResNet(
├── 11.7M parameters
├── conv1: Conv2d(3→64, 7×7) [9.4K params]
├── layer1: Sequential [148.0K params]
│   └── 0: BasicBlock [74.0K params]
└── fc: Linear(512→1000) [513.0K params]
"""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import textwrap
import tokenize
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from torchglass.analyse.signatures import facts_of, split_settings
from torchglass.analyse.summary import SummaryReport, SummaryRow
from torchglass.records.model import ClassSource, FilePart, Model
from torchglass.tables.text import (
    NOT_RUN,
    SAME_AS,
    Fact,
    first_shape,
    format_bytes,
    format_count,
    guides,
    harmless,
    missing_note,
    name_text,
    plural,
    shorten,
    shortened,
    width,
    wrapped,
)

_MOST_NOTES = 10
_FEW_PARTS = 20


def facts(report: SummaryReport) -> list[Fact]:
    """Parameters, bytes and memory, as far as they are known."""
    return [*_parameter_facts(report), *_memory_facts(report)]


def notes(report: SummaryReport) -> list[str]:
    """Notes on other contents of the file, shared tensors, folded rows and problems."""
    model = report.model
    tied = [
        f"tied: {harmless(first)} = {harmless(' = '.join(others))}"
        for first, *others in model.tied.values()
    ]
    aliases = [
        f"alias: {harmless(one.path)} is {harmless(model[one.alias_of].path or 'the model itself')}"
        for one in model.modules
        if one.alias_of is not None
    ]
    problems = [
        f"problem: {harmless(one.path or model.name)}: {harmless(one.problem)}"
        for one in model.modules
        if one.problem
    ]
    is_folded = any(row.module.children and len(row.members) > 1 for row in report.rows)
    folded = ["folded: a row of several modules shows the inside of the first one"] * is_folded
    return [
        *also_in_file(model),
        *_few(tied, "tied weights"),
        *_few(aliases, "aliases"),
        *folded,
        *_signs(report),
        *_few(problems, "problems"),
    ]


def also_in_file(model: Model) -> list[str]:
    """A sentence on what else a checkpoint contains, if anything."""
    parts = model.also_in_file
    told = [part_text(part) for part in parts[:_FEW_PARTS]]
    more = [f"{len(parts) - _FEW_PARTS:,} more"] if len(parts) > _FEW_PARTS else []
    return [f"Also in this file: {', '.join((*told, *more))}"] if told else []


def part_text(part: FilePart) -> str:
    """A part of a file: "epoch=3", "optimizer (state of Adam, 12 tensors, 3.4 MB)"."""
    name = harmless(part.name)
    if not part.tensors:
        return f"{name}={harmless(part.text)}"
    told = [harmless(part.text), plural(part.tensors, "tensor"), format_bytes(part.bytes)]
    return f"{name} ({', '.join(filter(None, told))})"


def _parameter_facts(report: SummaryReport) -> Iterator[Fact]:
    total, per_use = report.counts.total, report.counts.per_use
    yield Fact("Parameters", _number(total.parameters))
    if total.frozen:
        yield Fact("  trainable", _part(total.trainable, total.parameters))
        yield Fact("  frozen", _part(total.frozen, total.parameters))
    elif total.parameters:
        yield Fact("  trainable", "all")
    if per_use.parameters != total.parameters:
        yield Fact(
            "  per use",
            _number(per_use.parameters),
            "counting shared parameters once per module",
        )
    if total.buffers:
        yield Fact("Buffers", _number(total.buffers))
    yield Fact("Bytes", format_bytes(total.bytes), "parameters and buffers")


def _memory_facts(report: SummaryReport) -> Iterator[Fact]:
    memory = report.memory
    if report.ran:
        yield Fact(
            "Inference",
            f"≈ {format_bytes(memory.inference_bytes)}",
            "weights + largest input and output",
        )
    if not report.counts.total.trainable:
        return
    kept = memory.activation_bytes
    activations = "" if kept is None else f" + {format_bytes(kept)} of module outputs"
    without = ", without activations" if kept is None else ""
    yield Fact(
        "Training",
        f"≈ {format_bytes(memory.training_bytes)}",
        f"weights + gradients + Adam's two moments{activations}{without}",
    )


def _number(count: int) -> str:
    return f"{count:,} ({format_count(count)})" if count >= 1_000 else f"{count}"


def _part(count: int, whole: int) -> str:
    """A number of parameters and its share, with digits for a small share."""
    percent = 100 * count / whole
    share = f"{percent:.0f}%" if percent >= 10 or not count else f"{percent:.2g}%"
    return f"{_number(count)}, {share}"


def _signs(report: SummaryReport) -> Iterator[str]:
    """What the signs in the rows mean."""
    if report.ran and any(not row.calls and row.module.alias_of is None for row in report.rows):
        yield "–: not called in this forward"
    if any(row.calls and len(row.calls[0].outputs) > 1 for row in report.rows):
        yield "+1: one more output tensor"


def _few(lines: list[str], what: str) -> list[str]:
    more = len(lines) - _MOST_NOTES
    return [*lines[:_MOST_NOTES], f"… and {more} more {what}"] if more > 0 else lines


NO_TENSOR = "no tensor"


def row_name(row: SummaryRow, model: Model) -> str:
    """What a row is called: its name, or "12 × Block (0–11)" for identical siblings."""
    module = row.module
    if row.depth == 0:
        return harmless(model.name)
    if len(row.members) == 1:
        return harmless(module.name)
    last = model[row.members[-1]]
    return (
        f"{len(row.members)} × {harmless(module.kind)} ({harmless(f'{module.name}–{last.name}')})"
    )


def same_as(row: SummaryRow, model: Model) -> str:
    """The first path of a module that has several, or of a tensor it shares; else ""."""
    if row.module.alias_of is not None:
        return harmless(model[row.module.alias_of].path) or "the model itself"
    if not row.tied_to:
        return ""
    more = f" +{len(row.tied_to) - 1}" if len(row.tied_to) > 1 else ""
    return harmless(row.tied_to[0]) + more


def output_text(row: SummaryRow, report: SummaryReport) -> str:
    """The output shape of a module; "–" if it did not run, "" without a forward."""
    if not row.calls:
        return unseen_text(row, report)
    calls = f" · {len(row.calls)} calls" if len(row.calls) > 1 else ""
    return (first_shape(row.calls[0].outputs) or NO_TENSOR) + calls


def unseen_text(row: SummaryRow, report: SummaryReport) -> str:
    """The text in place of the shapes of a module that was not called."""
    return NOT_RUN if report.ran and row.module.alias_of is None else ""


class _RowText(NamedTuple):
    """One text to describe a row."""

    text: str
    left_out: tuple[str, ...] = ()


def tree_text(report: SummaryReport, room: int | None = None) -> str:
    """The rows of a report, each with its module's settings, output shape and parameters.

    Rows that do not fit into the width are shortened; the last line says what is missing.
    """
    below = report.rows[1:]
    deepest = max((row.depth for row in below), default=0)
    # The guides of a deep tree would leave no room for the names.
    arm = "──" if room is None or 2 * len("├── ") * deepest <= room else ""
    texts = [
        _fitting(guide, _row_texts(row, report), room)
        for row, guide in zip(below, guides(below, arm), strict=True)
    ]
    total = f"{'├' if texts else '└'}── {format_count(report.counts.total.parameters)} parameters"
    missing = missing_note((what for text in texts for what in text.left_out), room)
    beside = [line for note in also_in_file(report.model) for line in wrapped(note, room)]
    lines = (text.text for text in texts)
    return "\n".join([f"{harmless(report.model.name)}(", total, *lines, *missing, *beside])


def _fitting(guide: str, texts: Iterator[_RowText], room: int | None) -> _RowText:
    """The longest description of a row that fits; names are shortened last."""
    text = next(texts)
    while room is not None and width(guide + text.text) > room:
        shorter = next(texts, None)
        if shorter is None:
            return _RowText(shortened(guide + text.text, room), text.left_out)
        text = shorter
    return _RowText(guide + text.text, text.left_out)


def _row_texts(row: SummaryRow, report: SummaryReport) -> Iterator[_RowText]:
    """Descriptions of a row, from the full one to its name alone."""
    module, model = row.module, report.model
    name = name_text(row_name(row, model))
    other = same_as(row, model)
    if module.alias_of is not None:
        yield _RowText(f"{name}: {harmless(module.kind)} {SAME_AS} {other}")
        yield _RowText(f"{name} {SAME_AS} {other}", ("classes",))
        yield _RowText(f"{name} {SAME_AS}", ("classes", "originals"))
        return
    is_one = len(row.members) == 1
    kind = f"{name}: {harmless(module.kind)}" if is_one else name
    what = f"{name}: {brief(module.kind, module.extra)}" if is_one else name
    shape = f" → {output_text(row, report)}" if row.calls else ""
    params = f" [{format_count(row.total.parameters)} params"
    tied, problem = (", tied" if other else ""), ("  !" if module.problem else "")
    whole_tied = f"{tied} to {other}" if other else ""
    whole_problem = f"{problem} {harmless(module.problem)}" if module.problem else ""
    yield _RowText(f"{what}{shape}{params}{whole_tied}]{whole_problem}")
    less = [word for word, there in (("tied names", tied), ("problems", problem)) if there]
    yield _RowText(f"{what}{shape}{params}{tied}]{problem}", tuple(less))
    less += ["settings"] * (what != kind)
    yield _RowText(f"{kind}{shape}{params}{tied}]{problem}", tuple(less))
    less += ["classes"] * (kind != name)
    yield _RowText(f"{name}{shape}{params}{tied}]{problem}", tuple(less))
    less += ["shapes"] * bool(shape)
    yield _RowText(f"{name}{params}{tied}]{problem}", tuple(less))
    yield _RowText(f"{name}{problem}", (*less, "parameters"))


Facts = Mapping[str, str]
"""The settings of a module by name; unnamed ones are numbered."""

_LONGEST = 48
_UNSAID = {"inplace=False", "bias=True"}
_IN_AND_OUT = (("in_features", "out_features"), ("in_channels", "out_channels"), ("nx", "nf"))
_RECURRENT = ("num_layers", "bidirectional")
_DIMENSIONS = re.compile(r"([123])d$")


@lru_cache(maxsize=1 << 12)
def brief(kind: str, extra: str) -> str:
    """A class name and its most important settings."""
    settings = harmless(_settings(kind, extra)) if extra else ""
    return f"{harmless(kind)}({settings})" if settings else harmless(kind)


@lru_cache(maxsize=1 << 12)
def kernel_size(kind: str, extra: str) -> str:
    """The kernel size of a module, "" if it has none."""
    return _times(facts_of(extra).get("kernel_size", ""), _dimensions(kind))


def _settings(kind: str, extra: str) -> str:
    parsed = facts_of(extra)
    for matches, write in _WRITERS:
        if matches(kind):
            written = write(kind, parsed)
            if written:
                return written
    return _through(parsed) or _anything(extra)


def _convolution(kind: str, facts: Facts) -> str:
    return _join(_sizes(facts), _times(facts["kernel_size"])) if "kernel_size" in facts else ""


def _embedding(kind: str, facts: Facts) -> str:
    return _sizes(facts)


def _recurrent(kind: str, facts: Facts) -> str:
    return _join(_sizes(facts), *(f"{name}={facts[name]}" for name in facts if name in _RECURRENT))


def _pool(kind: str, facts: Facts) -> str:
    dimensions = _dimensions(kind)
    size = facts.get("kernel_size") or facts.get("output_size", "")
    written, stride = _times(size, dimensions), facts.get("stride", size)
    return (
        written if _times(stride, dimensions) == written else f"{written}, stride={_times(stride)}"
    )


def _norm(kind: str, facts: Facts) -> str:
    return ", ".join(_times(value) for name, value in facts.items() if name.isdecimal())


_WRITERS: tuple[tuple[Callable[[str], bool], Callable[[str, Facts], str]], ...] = (
    (lambda kind: "Conv" in kind, _convolution),
    (lambda kind: "Embedding" in kind, _embedding),
    (lambda kind: kind.startswith(("RNN", "LSTM", "GRU")), _recurrent),
    (lambda kind: "Pool" in kind, _pool),
    (lambda kind: "Norm" in kind, _norm),
)


def _sizes(facts: Facts) -> str:
    """The input and output size, which are the first two settings."""
    return _arrow(facts["0"], facts["1"]) if "0" in facts and "1" in facts else ""


def _join(sizes: str, *more: str) -> str:
    return ", ".join((sizes, *more)) if sizes else ""


def _through(facts: Facts) -> str:
    """Input and output features, under any of their names."""
    for into, out in _IN_AND_OUT:
        if into in facts and out in facts:
            return _arrow(facts[into], facts[out])
    return ""


def _anything(extra: str) -> str:
    kept = [part for part in split_settings(extra) if part not in _UNSAID]
    return shorten(", ".join(kept), _LONGEST)


def _arrow(into: str, out: str) -> str:
    # A lazy module learns its input size at its first forward.
    return f"{'?' if into == '0' else into}→{out}"


def _dimensions(kind: str) -> int:
    found = _DIMENSIONS.search(kind)
    return int(found[1]) if found else 1


def _times(size: str, dimensions: int = 1) -> str:
    """A size with multiplication signs: "(7, 7)" is "7×7", and so is "7" in two dimensions."""
    parts = list(split_settings(size.strip("()[] ")))
    return "×".join(parts * dimensions if len(parts) == 1 else parts)


_WRONG_ARGUMENTS = re.compile(r"TypeError: (?:.*\.)?(\w+)\.forward\(\) (?:missing|takes|got) ")


def misled_class(error: str) -> str:
    """The class whose forward was called with wrong arguments; "" for other errors."""
    found = _WRONG_ARGUMENTS.match(error)
    return found[1] if found else ""


def forward_signature(source: ClassSource) -> str:
    """The arguments of a forward, "(x, mask=None)"; "" if its code is not found."""
    if source.forward_line is None:
        return ""
    lines = linecache.getlines(source.forward_file or source.file)[source.forward_line - 1 :]
    try:
        (function,) = ast.parse(textwrap.dedent("".join(inspect.getblock(lines)))).body
    except (SyntaxError, ValueError, tokenize.TokenError):
        return ""
    if not isinstance(function, ast.FunctionDef):
        return ""
    arguments = function.args
    del (arguments.posonlyargs or arguments.args)[:1]
    return f"({ast.unparse(arguments)})"

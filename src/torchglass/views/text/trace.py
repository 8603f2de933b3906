"""A trace as text: what the pass was, and its operations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from torchglass.analyse.trace.anatomy import Anatomy
from torchglass.records.model import Model, Module
from torchglass.records.trace import OpId
from torchglass.views.columns import first_shape
from torchglass.views.formats import harmless
from torchglass.views.text.fitting import Cells, fitted
from torchglass.views.text.frame import lined_up
from torchglass.views.trace_facts import Saved, ends, parameters, structure, tensors

_WIDTH = 72
"""Terminal cells of a line of an op, which is indented by two tabs of four."""
_MOST_OPERATIONS = 60
_PATHS_A_LINE = 8
_MOST_LINES = 200
"""More lines than this of one kind are cut in the middle."""


def trace_text(anatomy: Anatomy, model: Model, saved: Saved, random_seed: int | None = None) -> str:
    """The structure of a pass, its tensors, parameters, and each op with its shape and module."""
    marked = bool(saved) and any((op, 0) not in saved for op in anatomy.listed)
    return "\n".join(
        [
            *_beginning(anatomy, model, saved, random_seed),
            _heading(anatomy, marked, "Operations"),
            *_operations(anatomy, saved if marked else ()),
        ]
    )


def log_text(anatomy: Anatomy, model: Model, saved: Saved, random_seed: int | None = None) -> str:
    """The same as TorchLens prints it: the modules, then the layers by their labels alone."""
    marked = bool(saved) and any((op, 0) not in saved for op in anatomy.listed)
    return "\n".join(
        [
            *_beginning(anatomy, model, saved, random_seed),
            "\tModule Hierarchy:",
            *_cut(list(_hierarchy(model, model.root, "\t\t"))),
            _heading(anatomy, marked, "Layers"),
            *_cut(list(_layers(anatomy, saved if marked else ()))),
        ]
    )


def _beginning(
    anatomy: Anatomy, model: Model, saved: Saved, random_seed: int | None
) -> Iterator[str]:
    record = anatomy.record
    yield f"Log of {harmless(record.model)} forward pass:"
    if record.error:
        yield f"\tStopped by an error: {harmless(record.error)}"
    yield f"\tModel structure: {structure(anatomy, model)}."
    yield f"\t{tensors(anatomy, saved)}."
    yield f"\t{parameters(anatomy)}."
    if random_seed is not None:
        yield f"\tRandom seed: {random_seed}"
    yield f"\tTime elapsed: {(record.end_ns - record.start_ns) / 1e9:.3f}s"
    for note in record.notes:
        yield f"\tNote: {note}."


def _heading(anatomy: Anatomy, marked: bool, what: str) -> str:
    if marked:
        return f"\t{what} (* where the tensor is saved):"
    left_out = len(anatomy.record.ops) - len(anatomy.listed)
    return f"\t{what} ({left_out} without a saved tensor left out):" if left_out else f"\t{what}:"


def _operations(anatomy: Anatomy, marked: Saved) -> list[str]:
    """A line for each op: its place, its label, the shape of its output, the module it ran in."""
    places = list(enumerate(anatomy.listed))
    first, left_out, last = ends(places, _MOST_OPERATIONS)
    shown = [*first, *last]
    if not shown:
        return []
    starred = {op for op, _ in marked}
    ops = [anatomy.record.ops[op] for _, op in shown]
    columns = [
        Cells([str(place) for place, _ in shown]),
        Cells(["*" if op in starred else " " for _, op in shown] if marked else [""] * len(shown)),
        Cells([str(anatomy.labels[op]) for _, op in shown], right=False),
        Cells([first_shape(op.outputs) for op in ops], right=False),
        Cells([_module(anatomy, op) for _, op in shown], right=False),
    ]
    used = [column for column in columns if column.width]
    lines = [f"\t\t{line}" for line in lined_up(fitted(used, _WIDTH))]
    if left_out:
        more = f"\t\t… {left_out:,} more operations: trace[{len(first)}:{len(first) + left_out}]"
        lines.insert(len(first), f"{more}, or trace.to_pandas() for all")
    return lines


def _module(anatomy: Anatomy, op: OpId) -> str:
    calls = anatomy.modules(op)
    return harmless(anatomy.call_name(calls[-1])) if calls and calls[-1].path else ""


def _cut(lines: Sequence[str]) -> list[str]:
    first, left_out, last = ends(lines, _MOST_LINES)
    middle = [f"\t\t… {left_out} more lines …"] if left_out else []
    return [*first, *middle, *last]


def _hierarchy(model: Model, module: Module, indent: str) -> Iterator[str]:
    """The modules below one; neighbours that have none below them share a line."""
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


def _layers(anatomy: Anatomy, marked: Saved) -> Iterator[str]:
    starred = {op for op, _ in marked}
    for place, op in enumerate(anatomy.listed):
        yield f"\t\t{place}: {anatomy.labels[op]} {'*' if op in starred else ''}"

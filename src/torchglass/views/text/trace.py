"""A trace as text: what the pass was, and its layers by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from torchglass.analyse.trace.anatomy import Anatomy
from torchglass.records.model import Model, Module
from torchglass.views.formats import harmless
from torchglass.views.trace_facts import Saved, ends, parameters, structure, tensors

_PATHS_A_LINE = 8
_MOST_LINES = 200
"""More lines than this of one kind are cut in the middle."""


def trace_text(anatomy: Anatomy, model: Model, saved: Saved, random_seed: int | None = None) -> str:
    """The structure of a pass, its tensors, parameters, modules and layers."""
    record = anatomy.record
    error = [f"\tStopped by an error: {harmless(record.error)}"] if record.error else []
    seed = [f"\tRandom seed: {random_seed}"] if random_seed is not None else []
    marked = bool(saved) and any((op, 0) not in saved for op in anatomy.listed)
    return "\n".join(
        [
            f"Log of {harmless(record.model)} forward pass:",
            *error,
            f"\tModel structure: {structure(anatomy, model)}.",
            f"\t{tensors(anatomy, saved)}.",
            f"\t{parameters(anatomy)}.",
            *seed,
            f"\tTime elapsed: {(record.end_ns - record.start_ns) / 1e9:.3f}s",
            *(f"\tNote: {note}." for note in record.notes),
            "\tModule Hierarchy:",
            *_cut(list(_hierarchy(model, model.root, "\t\t"))),
            _heading(anatomy, marked),
            *_cut(list(_layers(anatomy, saved if marked else ()))),
        ]
    )


def _heading(anatomy: Anatomy, marked: bool) -> str:
    if marked:
        return "\tLayers (* where the tensor is saved):"
    left_out = len(anatomy.record.ops) - len(anatomy.listed)
    return f"\tLayers ({left_out} without a saved tensor left out):" if left_out else "\tLayers:"


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

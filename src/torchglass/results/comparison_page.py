"""What the page shows of a comparison: both trees row by row, and where they first diverge."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchglass.analyse.model_diff import ModelDiff, ModulePair, SlotChange
from torchglass.records.comparison import Divergence, ExecutedOp, OperandStats, TensorChange
from torchglass.records.json_data import to_json_data
from torchglass.records.model import Module, TensorSpec, join_path
from torchglass.records.trace import SourceLine
from torchglass.tables.text import format_shape

if TYPE_CHECKING:
    from torchglass.results.comparison import Comparison

Data = dict[str, Any]


def page_data(comparison: Comparison) -> Data:
    """A comparison as the page draws it; what is at its default is left out."""
    structure, found = comparison.structure, comparison.first_divergence
    tensors = {one.name: one for one in comparison.tensors or ()}
    others = [row for row in comparison.rows if row.kind in ("setting", "curve")]
    return {
        "kind": "comparison",
        "title": comparison.title,
        "names": list(comparison.names),
        "answers": comparison.conclusions,
        "rows": [] if structure is None else list(_rows(structure, tensors)),
        **({} if found is None else {"divergence": _divergence(comparison, found)}),
        "others": [to_json_data(row) for row in others],
        "notes": comparison.notes,
    }


def _rows(structure: ModelDiff, tensors: Mapping[str, TensorChange]) -> Iterator[Data]:
    for pair in structure.side_by_side:
        change = pair.change
        optional = {
            "a": pair.before and _module(pair.before, structure.before.name),
            "b": pair.after and _module(pair.after, structure.after.name),
            "verdict": change and change.verdict,
            "words": list(_words(pair)),
            "distance": change and change.distance,
            "tensors": [
                _tensor(slot, tensors.get(join_path(change.path, slot.name)))
                for slot in change.slots
            ]
            if change
            else [],
        }
        yield {"depth": pair.depth, **_without_defaults(optional)}


def _module(module: Module, model: str) -> Data:
    name = module.path.rpartition(".")[2] or model
    return {"path": module.path, "name": name, "class": module.kind}


def _words(pair: ModulePair) -> Iterator[str]:
    """What changed of the module itself, a sentence each."""
    change, old, new = pair.change, pair.before, pair.after
    if change is None or old is None or new is None:
        return
    if change.path_before is not None:
        yield f"Renamed or moved: {change.path_before} → {change.path}"
    if change.class_before:
        yield f"Class: {old.kind} → {new.kind}"
    if change.extra_before is not None:
        yield f"Arguments: {change.extra_before or 'none'} → {new.extra or 'none'}"
    if change.sharing:
        yield f"Sharing: {change.sharing}"


def _tensor(slot: SlotChange, values: TensorChange | None) -> Data:
    optional: Data = {
        "before": _spec(slot.before),
        "after": _spec(slot.after),
        "distance": slot.distance,
        "histograms": slot.histograms and to_json_data(slot.histograms),
    }
    if values is not None:
        optional |= {
            "cosine": values.cosine,
            "largest": values.largest,
            "nan": [values.nan_before, values.nan_after],
            "rank": values.rank,
        }
        if not any(optional["nan"]):
            del optional["nan"]
    return {"name": slot.name, **_without_defaults(optional)}


def _spec(spec: TensorSpec | None) -> str:
    return "" if spec is None else f"{format_shape(spec.shape)} {spec.dtype}"


def _divergence(comparison: Comparison, found: Divergence) -> Data:
    sides = (
        ("a", found.a, found.operands_a, found.result_a, comparison.source_lines[0]),
        ("b", found.b, found.operands_b, found.result_b, comparison.source_lines[1]),
    )
    return {
        "reason": found.reason,
        "facts": list(comparison.divergence_facts(found)),
        "sides": {
            name: _side(op, operands, result, code)
            for name, op, operands, result, code in sides
            if op is not None
        },
    }


def _side(
    op: ExecutedOp, operands: tuple[OperandStats, ...], result: OperandStats | None, code: str
) -> Data:
    from torchglass.results.comparison import operand_text

    return {
        "op": op.label or op.function,
        "path": op.path,
        "place": _place(op.source) if op.source else "",
        "code": code.strip(),
        "reads": [operand_text(one) for one in operands],
        "returns": "" if result is None else operand_text(result, named=False),
    }


def _place(source: SourceLine) -> str:
    """File and line, from the working directory if it is below it."""
    path = Path(source.file)
    with contextlib.suppress(ValueError, OSError):
        path = path.resolve().relative_to(Path.cwd())
    return f"{path.as_posix()}:{source.line}"


def _without_defaults(optional: Data) -> Data:
    return {name: value for name, value in optional.items() if value not in (None, "", [])}

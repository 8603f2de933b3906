"""The floating-point operations of a recorded op, by the formulas that counting a model uses."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from torchglass.analyse.flops.formulas import formula_of
from torchglass.records.trace import Op


def flops(op: Op) -> int | None:
    """The operations of an op; 0 for one without products, None where they cannot be told."""
    formula = formula_of(op.type) if op.kind == "op" else None
    if formula is None:
        return 0
    positional, named = _arguments(op)
    made = [value.spec.shape or () for value in op.outputs]
    try:
        return formula(*positional, **named, out_shape=made[0] if len(made) == 1 else made)
    except (IndexError, TypeError, ValueError):
        # A record knows what was written in the call, which need not be all that the op took.
        return None


def _arguments(op: Op) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of the call as they were given, with shapes in place of the tensors."""
    found: dict[str, Any] = {}
    for operand in op.operands:
        _put(found, operand.place.split("."), operand.spec.shape or ())
    for place, text in op.settings:
        _put(found, place.split("."), _value(text))
    positional = [name for name in found if name.isdigit()]
    last = max(map(int, positional), default=-1)
    named = {name: _listed(value) for name, value in found.items() if not name.isdigit()}
    return [_listed(found.get(str(place))) for place in range(last + 1)], named


def _put(found: dict[str, Any], parts: list[str], value: Any) -> None:
    """Put an argument in its place, inside of lists where it was in some."""
    *outer, name = parts
    for part in outer:
        inner = found.setdefault(part, {})
        if not isinstance(inner, dict):
            return
        found = inner
    found.setdefault(name, value)


def _listed(value: Any) -> Any:
    return [_listed(part) for part in value.values()] if isinstance(value, Mapping) else value


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text

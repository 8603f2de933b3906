"""Which ops of a pass someone means by names, modules, ordinals, parts of names, or a test.

"all", None                 everything, nothing
7, -1                       by place
"conv2d_3_7", "conv2d_3"    a layer, with all its passes
"linear_1_1:2"              one pass
"features.3", "features.3:2"  what a module returned, in all its calls or in one
"relu"                      every op with that in its name
lambda op: op.type == "relu"
[any, of, these]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torchglass.analyse.trace.anatomy import Anatomy
from torchglass.errors import LookupFailedError
from torchglass.records.trace import Op, OpId

Selection = Any
"""One of the forms above."""


def at_once(selection: Selection) -> Callable[[Op], bool] | None:
    """The test to make while the pass runs; None where names must be known, which come after it."""
    if selection is None or selection == "none" or _is_empty(selection):
        return lambda op: False
    return selection if callable(selection) else None


def select(selection: Selection, anatomy: Anatomy) -> frozenset[OpId]:
    """The ops that a selection means."""
    return frozenset(_selected(selection, anatomy))


def is_everything(selection: Selection) -> bool:
    """Whether nothing is left out."""
    return selection is True or selection == "all"


def _selected(selection: Selection, anatomy: Anatomy) -> Iterable[OpId]:
    if is_everything(selection):
        return [op.id for op in anatomy.record.ops]
    if selection is None or selection == "none":
        return ()
    if isinstance(selection, str):
        return _named(selection.lower(), anatomy)
    if isinstance(selection, int):
        return [anatomy.lookup.find(selection)]
    if callable(selection):
        return [op.id for op in anatomy.record.ops if selection(op)]
    return [op for part in selection for op in _selected(part, anatomy)]


def _named(name: str, anatomy: Anatomy) -> tuple[OpId, ...]:
    if name in anatomy.layers:
        return anatomy.layers[name]
    returned = tuple(dict.fromkeys(_returned_by(name, anatomy)))
    if returned:
        return returned
    try:
        return (anatomy.lookup.find(name),)
    except LookupFailedError:
        labels = zip(anatomy.record.ops, anatomy.labels, strict=True)
        parts = tuple(op.id for op, label in labels if name in str(label))
        if parts:
            return parts
        raise


def _returned_by(name: str, anatomy: Anatomy) -> Iterator[OpId]:
    for call in anatomy.record.calls:
        if name in (call.path.lower(), f"{call.path}:{call.number}".lower()):
            yield from (value.op for value in call.outputs if value.op is not None)


def _is_empty(selection: Selection) -> bool:
    return isinstance(selection, (list, tuple, set, frozenset)) and not selection

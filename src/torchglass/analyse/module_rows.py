"""Measurements of modules as table rows: as a tree, or as one sorted list."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar, get_args

from torchglass.analyse.flops import ModuleFlops
from torchglass.analyse.latency import ModuleTime
from torchglass.analyse.memory import ModuleMemory
from torchglass.errors import ViewError
from torchglass.records.measures import Measures, ModuleMeasure
from torchglass.records.model import Model

Sort = Literal["total", "self"]

UNATTRIBUTED = "unattributed"


class HasPath(Protocol):
    """What was measured of one module."""

    @property
    def path(self) -> str | None:
        """Where the module is; None for what belongs to no module."""


M = TypeVar("M", bound=HasPath)


@dataclass(frozen=True, slots=True)
class ModuleRow(Generic[M]):
    """One line of a table: a module, or what belongs to none, with its place in the tree."""

    measured: M
    name: str
    depth: int
    last: bool
    """Whether no sibling follows."""


def check_order(sort: str | None, depth: int | None) -> None:
    """Raise for an order or a number of levels that there is not."""
    if sort is not None and sort not in get_args(Sort):
        raise ViewError(f"sort must be one of {', '.join(get_args(Sort))}, not {sort!r}")
    if depth is not None and depth < 0:
        raise ViewError(f"depth must be 0 or more, not {depth}")


def paths_of(model: Model, measured: Iterable[str]) -> Iterable[str]:
    """The paths of all modules, each once, then of those that were made as the model ran."""
    known = (module.path for module in model.modules if module.alias_of is None)
    return dict.fromkeys([*known, *measured])


def ranked(
    measured: Iterable[M], model: Model, size: Callable[[M], int], depth: int | None
) -> list[ModuleRow[M]]:
    """One list of all modules down to a depth, the largest first."""
    shown = [one for one in measured if depth is None or _level(one) <= depth]
    shown.sort(key=size, reverse=True)
    return [ModuleRow(one, full_name(one.path, model), 0, True) for one in shown]


def tree(
    measured: Iterable[M], model: Model, size: Callable[[M], int] | None, depth: int | None
) -> list[ModuleRow[M]]:
    """The tree of modules down to a depth; with a size, the largest of siblings comes first."""
    below: dict[str | None, list[M]] = {}
    for one in measured:
        below.setdefault(_parent(one.path), []).append(one)
    if size is not None:
        for siblings in below.values():
            siblings.sort(key=size, reverse=True)
    return list(_walk(below, model, depth))


def full_name(path: str | None, model: Model) -> str:
    """The path of a module; the name of the model for the model itself."""
    return UNATTRIBUTED if path is None else path or model.name


def _walk(
    below: dict[str | None, list[M]], model: Model, depth: int | None
) -> Iterator[ModuleRow[M]]:
    waiting = [ModuleRow(root, model.name, 0, True) for root in below.get(None, ())]
    while waiting:
        row = waiting.pop()
        yield row
        if row.measured.path is None or (depth is not None and row.depth >= depth):
            continue
        children = below.get(row.measured.path, [])
        waiting += reversed(
            [
                ModuleRow(child, _name(child), row.depth + 1, child is children[-1])
                for child in children
            ]
        )


def _parent(path: str | None) -> str | None:
    """The path of a module's parent; what belongs to no module is a child of the model."""
    if path is None:
        return ""
    return path.rpartition(".")[0] if path else None


def _name(measured: HasPath) -> str:
    return UNATTRIBUTED if measured.path is None else measured.path.rpartition(".")[2]


def _level(measured: HasPath) -> int:
    return measured.path.count(".") + 1 if measured.path else 0


def measures(
    times: Mapping[str, ModuleTime],
    flops: Mapping[str, ModuleFlops],
    memory: Mapping[str, ModuleMemory],
    notes: tuple[str, ...] = (),
) -> Measures:
    """The rows of all modules that one of these tells of; what none tells is None."""
    paths = dict.fromkeys([*times, *flops, *memory])
    rows = (_row(path, times.get(path), flops.get(path), memory.get(path)) for path in paths)
    return Measures(rows=tuple(rows), notes=notes)


def _row(
    path: str, time: ModuleTime | None, flops: ModuleFlops | None, memory: ModuleMemory | None
) -> ModuleMeasure:
    forward = time.forward if time else None
    backward = time.backward if time else None
    return ModuleMeasure(
        path=path,
        calls=time.calls if time else flops.calls if flops else 0,
        total_forward_ns=forward.total_ns if forward else None,
        self_forward_ns=forward.self_ns if forward else None,
        total_backward_ns=backward.total_ns if backward else None,
        self_backward_ns=backward.self_ns if backward else None,
        total_forward_flops=flops.forward.total_flops if flops else None,
        self_forward_flops=flops.forward.self_flops if flops else None,
        total_backward_flops=(flops.backward.total_flops if flops else 0) or None,
        self_backward_flops=(flops.backward.self_flops if flops else 0) or None,
        total_activation_bytes=memory.total.activation_bytes if memory else None,
        self_activation_bytes=memory.own.activation_bytes if memory else None,
        total_peak_bytes=memory.total.peak_bytes if memory else None,
        gradient_bytes=memory.total.gradient_bytes if memory else None,
    )

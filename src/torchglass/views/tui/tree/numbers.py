"""The components of the labels that are numbers: what each is for a module, None if unknown."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torchglass.analyse.model.parameters import ModuleCounts
from torchglass.records.model import Module
from torchglass.records.series import Series
from torchglass.records.tensors import TensorSpec
from torchglass.views.formats import format_time
from torchglass.views.tui.flows import Flow
from torchglass.views.tui.subject import Subject
from torchglass.views.tui.tree.columns import Number


def held(number: Callable[[ModuleCounts], int]) -> Number:
    """What a module holds; None as long as it is being counted."""

    def of_module(subject: Subject, module: Module) -> float | None:
        counts = subject.counts(module)
        return None if counts is None else number(counts)

    return of_module


def flown(
    number: Callable[[Flow], float | None],
) -> Number:
    """What a module took to run."""
    return lambda subject, module: number(subject.flow(module))


def knows(field: str) -> Callable[[Subject], bool]:
    """Whether anything tells this field of a flow."""
    return lambda subject: subject.has_flow(field)


def seconds(nanoseconds: float) -> str:
    """A duration in the unit that suits it."""
    return format_time(nanoseconds / 1e9)


def bytes_of(specs: Iterable[TensorSpec]) -> int | None:
    """What tensors take; None where there are none."""
    sizes = [spec.bytes for spec in specs]
    return sum(sizes) if sizes else None


def update_series(subject: Subject, module: Module) -> Series | None:
    """How far an optimizer moves the parameters of a module."""
    updates = (one for one in subject.series_at(module) if one.name.endswith(".update"))
    return next(updates, None)


def update(subject: Subject, module: Module) -> float | None:
    """The last of these ratios."""
    series = update_series(subject, module)
    if series is None or not len(values := subject.values(series)):
        return None
    return float(values[-1])


def has_updates(subject: Subject) -> bool:
    """Whether any such ratio was recorded."""
    return any(one.name.endswith(".update") for one in subject.all_series())


parameters = held(lambda counts: counts.total.parameters)
own_parameters = held(lambda counts: counts.own.parameters)
held_bytes = held(lambda counts: counts.total.bytes)
own_bytes = held(lambda counts: counts.own.bytes)
time = flown(lambda flow: flow.total_ns)
flops = flown(lambda flow: flow.flops)

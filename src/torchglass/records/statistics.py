"""What the calls of modules took in and gave back, in numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

from torchglass.records.tensors import Stats, TensorSpec

Level = Literal["full", "cheap", "shapes"]
"""Statistics of all numbers, of a sample of them, or of none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A tensor that went into or came out of a call, and its numbers summed up."""

    place: str
    """"0" for the first positional argument, "mask" for a keyword, "hidden.0" inside containers;
    "" for a tensor that is all that was returned."""
    spec: TensorSpec
    stats: Stats | None = None
    """None where the numbers were not asked for, or where there are none to see (empty, meta …).
    A `count` below the elements of the tensor says that only so many of them were looked at."""
    requires_grad: bool = False
    has_grad: bool = False


_OF_SPEC: Mapping[str, Callable[[TensorSpec], Any]] = {
    "shape": lambda spec: spec.shape,
    "dtype": lambda spec: spec.dtype,
    "device": lambda spec: spec.device,
}
_OF_STATS = ("min", "max", "mean", "std")
_FLAT = (*_OF_SPEC, *_OF_STATS, "requires_grad", "has_grad", "memory_bytes")
FLAT_NAMES = (*(f"in_{name}" for name in _FLAT), *(f"out_{name}" for name in _FLAT), "runtime")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ForwardStats(Mapping[str, Any]):
    """One run of one module's forward.

    Beside its fields it has flat names, as attributes and as keys: `in_shape`, `in_dtype`,
    `in_device`, `in_min`, `in_max`, `in_mean`, `in_std`, `in_requires_grad`, `in_has_grad` and
    `in_memory_bytes` of the first tensor that went in, the same with `out_` of the first that came
    out, and `runtime` in seconds. What is not defined is None.
    """

    path: str
    """Dotted path of the module; "" is the model itself."""
    number: int
    """Which call of that module it is, from 1."""
    forward: int
    """Which pass of the recording it belongs to, from 1: one begins with each outermost call."""
    inputs: tuple[Measured, ...] = ()
    """As they were before the module ran."""
    outputs: tuple[Measured, ...] = ()
    start_ns: int = 0
    total_ns: int = 0
    """Time spent here, inner calls included, the work of measuring not."""
    self_ns: int = 0
    """The same without inner calls."""
    error: str = ""
    """The class of the exception that came out of it, if one did."""

    @property
    def runtime(self) -> float:
        """Seconds spent here, inner calls included, the work of measuring not."""
        return self.total_ns / 1e9

    def __getitem__(self, name: str) -> Any:
        if name not in FLAT_NAMES:
            raise KeyError(name)
        if name == "runtime":
            return self.runtime
        side, _, quantity = name.partition("_")
        measured = self.inputs if side == "in" else self.outputs
        return _flat(measured[0], quantity) if measured else None

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(FLAT_NAMES)

    def __len__(self) -> int:
        return len(FLAT_NAMES)

    def __repr__(self) -> str:
        flat = ", ".join(f"{name}={value!r}" for name, value in self.items())
        return f"{type(self).__name__}({flat})"

    def __dir__(self) -> list[str]:
        return [*object.__dir__(self), *FLAT_NAMES]


def _flat(measured: Measured, quantity: str) -> Any:
    if quantity in _OF_SPEC:
        return _OF_SPEC[quantity](measured.spec)
    if quantity in _OF_STATS:
        return None if measured.stats is None else getattr(measured.stats, quantity)
    return measured.spec.bytes if quantity == "memory_bytes" else getattr(measured, quantity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """All calls of a module taken together, those that are no longer kept included."""

    calls: int = 0
    failed: int = 0
    """How many of them raised."""
    total_ns: int = 0
    self_ns: int = 0
    inputs: Stats | None = None
    """The numbers of the first tensor that went in, over all calls."""
    outputs: Stats | None = None
    """The numbers of the first tensor that came out, over all calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleStatistics(Sequence[ForwardStats]):
    """The calls of one module, latest last: the last ones each, all of them as totals."""

    path: str
    class_name: str
    """Without its package: "Conv2d"."""
    calls: tuple[ForwardStats, ...] = ()
    """Those that are kept."""
    totals: Totals

    @overload
    def __getitem__(self, index: int) -> ForwardStats: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[ForwardStats, ...]: ...

    def __getitem__(self, index: int | slice) -> ForwardStats | tuple[ForwardStats, ...]:
        return self.calls[index]

    def __len__(self) -> int:
        return len(self.calls)


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """What a recording saw, a part for each module that ran."""

    modules: tuple[ModuleStatistics, ...] = ()

"""What module calls took in and returned: statistics, gradients, time and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, overload

from torchglass.records.model import Stats, TensorSpec

Level = Literal["full", "cheap", "shapes"]
"""Statistics of all values, of a sample, or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTensor:
    """An input or output tensor of a call, and its statistics."""

    place: str
    """"0" for the first positional argument, "mask" for a keyword, "hidden.0" inside containers;
    "" for a tensor that is all that was returned."""
    spec: TensorSpec
    stats: Stats | None = None
    """None if statistics were not requested, or if there are no values (empty, meta …).
    A `count` below the number of elements means that only a sample was read."""
    requires_grad: bool = False
    has_grad: bool = False


_OF_SPEC = ("shape", "dtype", "device")
_OF_STATS = ("min", "max", "mean", "std")
_FLAT = (*_OF_SPEC, *_OF_STATS, "requires_grad", "has_grad", "memory_bytes")
FLAT_NAMES = (*(f"in_{name}" for name in _FLAT), *(f"out_{name}" for name in _FLAT), "runtime")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ForwardStats(Mapping[str, Any]):
    """One run of one module's forward.

    Besides its fields it has flat names, as attributes and as keys: `in_shape`, `in_dtype`,
    `in_device`, `in_min`, `in_max`, `in_mean`, `in_std`, `in_requires_grad`, `in_has_grad` and
    `in_memory_bytes` of the first input tensor, the same with `out_` of the first output
    tensor, and `runtime` in seconds. Undefined values are None.
    """

    path: str
    """Dotted path of the module; "" is the model itself."""
    number: int
    """The call number of the module, from 1."""
    forward: int
    """The number of the pass, from 1: each outermost call starts one."""
    inputs: tuple[CallTensor, ...] = ()
    """As they were before the module ran."""
    outputs: tuple[CallTensor, ...] = ()
    start_ns: int = 0
    total_ns: int = 0
    """Time including inner calls, without the time spent on measuring."""
    self_ns: int = 0
    """Time without inner calls and without measuring."""
    error: str = ""
    """The class of the exception that it raised, if it did."""

    @property
    def runtime(self) -> float:
        """Seconds including inner calls, without the time spent on measuring."""
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


def _flat(measured: CallTensor, quantity: str) -> Any:
    if quantity == "memory_bytes":
        return measured.spec.bytes
    if quantity in _OF_STATS:
        return None if measured.stats is None else getattr(measured.stats, quantity)
    return getattr(measured.spec if quantity in _OF_SPEC else measured, quantity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Totals over all calls of a module, including calls that are no longer kept."""

    calls: int = 0
    failed: int = 0
    """The number of calls that raised."""
    total_ns: int = 0
    self_ns: int = 0
    inputs: Stats | None = None
    """Statistics of the first input tensor, over all calls."""
    outputs: Stats | None = None
    """Statistics of the first output tensor, over all calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleStatistics(Sequence[ForwardStats]):
    """The latest calls of one module, oldest first, and totals over all calls."""

    path: str
    class_name: str
    """Without its package: "Conv2d"."""
    calls: tuple[ForwardStats, ...] = ()
    """The latest ones."""
    totals: Totals

    @overload
    def __getitem__(self, index: int) -> ForwardStats: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[ForwardStats, ...]: ...

    def __getitem__(self, index: int | slice) -> ForwardStats | tuple[ForwardStats, ...]:
        return self.calls[index]

    def __len__(self) -> int:
        return len(self.calls)


def statistics_of(
    path: str, calls: Sequence[ForwardStats], class_name: str = ""
) -> ModuleStatistics:
    """All calls of one module with their totals."""
    totals = Totals(
        calls=calls[-1].number,
        total_ns=sum(call.total_ns for call in calls),
        self_ns=sum(call.self_ns for call in calls),
    )
    return ModuleStatistics(path=path, class_name=class_name, calls=tuple(calls), totals=totals)


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """The statistics of a recording, per module that ran."""

    modules: tuple[ModuleStatistics, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCost:
    """The time and memory of a call in one direction, without the time spent on measuring."""

    total_ns: int = 0
    """Time including inner calls: measured, not added up."""
    self_ns: int = 0
    added_bytes: int | None = None
    """The memory of tensors after minus before; None if not measured."""


class NonFinite(NamedTuple):
    """The number of NaN and Inf values of some tensors."""

    nan: int = 0
    inf: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedCall:
    """One call of one module, and its backward."""

    number: int
    """The call number of the module, from 1."""
    forward_pass: int
    """The number of the pass, from 1: each outermost call starts one."""
    inputs: tuple[CallTensor, ...] = ()
    """As they were before the module ran."""
    outputs: tuple[CallTensor, ...] = ()
    input_gradients: tuple[CallTensor, ...] = ()
    """The gradients of its inputs, by their positions."""
    output_gradients: tuple[CallTensor, ...] = ()
    """The gradients of its outputs, by their positions."""
    forward: CallCost | None = None
    backward: CallCost | None = None
    """None if there was no gradient, or it was not measured."""
    error: str = ""
    """The class of the exception that it raised, if it did."""
    recomputed: bool = False
    """Whether activation checkpointing ran it again in the backward, which includes its time."""
    nested: bool = False
    """Whether it ran inside another call of the same module, whose times include it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedModule:
    """A module, its parameters, and its calls."""

    path: str
    """Dotted path in the model; "" is the model itself."""
    name: str
    class_name: str
    """Without its package: "Conv2d"."""
    parent: int | None = None
    """The index of its parent in `InspectedModel.modules`."""
    parameters: int = 0
    """Including all modules below it; each counted once."""
    learnable: int = 0
    parameter_bytes: int = 0
    gradient_bytes: int = 0
    """The actual size of its parameters' gradients."""
    call_count: int = 0
    calls: tuple[InspectedCall, ...] = ()
    """The latest ones."""
    same_as: str | None = None
    """The first path of this same module in the model, which has its calls."""

    @property
    def latest(self) -> InspectedCall | None:
        """The last call of the user's forward."""
        return next((call for call in reversed(self.calls) if not call.recomputed), None)

    @property
    def latest_back(self) -> InspectedCall | None:
        """The last call that had a backward."""
        return next((call for call in reversed(self.calls) if _went_back(call)), None)

    @property
    def forward(self) -> CallCost | None:
        """Time and memory of its calls in the latest pass."""
        return _latest_pass(self.calls, lambda call: call.forward)

    @property
    def backward(self) -> CallCost | None:
        """Time and memory of its calls in the latest backward."""
        return _latest_pass(self.calls, lambda call: call.backward)

    @property
    def bad_inputs(self) -> NonFinite:
        """NaN and Inf in its inputs, over all calls."""
        return _non_finite(tensor for call in self.calls for tensor in call.inputs)

    @property
    def bad_outputs(self) -> NonFinite:
        """NaN and Inf in its outputs, over all calls."""
        return _non_finite(tensor for call in self.calls for tensor in call.outputs)

    @property
    def bad_input_gradients(self) -> NonFinite:
        """NaN and Inf in the gradients of its inputs, over all calls."""
        return _non_finite(tensor for call in self.calls for tensor in call.input_gradients)

    @property
    def bad_output_gradients(self) -> NonFinite:
        """NaN and Inf in the gradients of its outputs, over all calls."""
        return _non_finite(tensor for call in self.calls for tensor in call.output_gradients)

    @property
    def total_bytes(self) -> int:
        """Parameters, gradients and the inputs of the latest call together."""
        inputs = self.latest.inputs if self.latest else ()
        held = self.parameter_bytes + self.gradient_bytes
        return held + sum(tensor.spec.bytes for tensor in inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedModel:
    """A model that was run under inspection: its modules in the order of the tree."""

    name: str
    modules: tuple[InspectedModule, ...]
    passes: int = 0
    """How many forward passes there were."""
    notes: tuple[str, ...] = ()
    """What the reader should know of how it was measured."""

    def resolve(self, module: InspectedModule) -> InspectedModule:
        """The module itself, where this is another place of it."""
        if module.same_as is None:
            return module
        return next((one for one in self.modules if one.path == module.same_as), module)


def _went_back(call: InspectedCall) -> bool:
    return bool(call.input_gradients or call.output_gradients)


def _latest_pass(
    calls: Iterable[InspectedCall], effort: Callable[[InspectedCall], CallCost | None]
) -> CallCost | None:
    found = [(call, taken) for call in calls if (taken := effort(call)) is not None]
    if not found:
        return None
    latest = max(call.forward_pass for call, _ in found)
    efforts = [(call, taken) for call, taken in found if call.forward_pass == latest]
    outermost = [taken for call, taken in efforts if not call.nested]
    added = [taken.added_bytes for taken in outermost if taken.added_bytes is not None]
    return CallCost(
        total_ns=sum(taken.total_ns for taken in outermost),
        self_ns=sum(taken.self_ns for _, taken in efforts),
        added_bytes=sum(added) if added else None,
    )


def _non_finite(tensors: Iterable[CallTensor]) -> NonFinite:
    found = [tensor.stats for tensor in tensors if tensor.stats is not None]
    return NonFinite(sum(stats.nan for stats in found), sum(stats.inf for stats in found))

"""What module calls took in and returned: statistics, gradients, time and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, overload

from torchglass.records.tensors import Stats, TensorSpec

Level = Literal["full", "cheap", "shapes"]
"""Statistics of all numbers, of a sample of them, or of none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTensor:
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
    inputs: tuple[CallTensor, ...] = ()
    """As they were before the module ran."""
    outputs: tuple[CallTensor, ...] = ()
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


def _flat(measured: CallTensor, quantity: str) -> Any:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCost:
    """What a call took in one direction, the work of measuring left out."""

    total_ns: int = 0
    """Time with all that ran inside of it: measured, not summed up."""
    self_ns: int = 0
    added_bytes: int | None = None
    """How much more memory tensors took afterwards than before; None where nobody looked."""


class NonFinite(NamedTuple):
    """How many numbers of some tensors are none."""

    nan: int = 0
    inf: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedCall:
    """One run of one module, and what came back through it."""

    number: int
    """Which call of the module it is, from 1."""
    forward_pass: int
    """Which pass it belongs to, from 1: one begins with each outermost call."""
    inputs: tuple[CallTensor, ...] = ()
    """As they were before the module ran."""
    outputs: tuple[CallTensor, ...] = ()
    input_gradients: tuple[CallTensor, ...] = ()
    """What the module sent back for its inputs, by the places of those."""
    output_gradients: tuple[CallTensor, ...] = ()
    """What came back for its outputs, by the places of those."""
    forward: CallCost | None = None
    backward: CallCost | None = None
    """None where no gradient came back, or nobody looked."""
    error: str = ""
    """The class of the exception that came out of it, if one did."""
    recomputed: bool = False
    """Whether a checkpoint ran it again in the backward, which its time is part of."""
    nested: bool = False
    """Whether it ran inside another call of the same module, whose times contain its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedModule:
    """A module, what it holds, and its calls."""

    path: str
    """Dotted place in the model; "" is the model itself."""
    name: str
    class_name: str
    """Without its package: "Conv2d"."""
    parent: int | None = None
    """The place of the module above it in `InspectedModel.modules`."""
    parameters: int = 0
    """Of all modules below it, too; each counted once."""
    learnable: int = 0
    parameter_bytes: int = 0
    gradient_bytes: int = 0
    """What the gradients of its parameters really took."""
    call_count: int = 0
    calls: tuple[InspectedCall, ...] = ()
    """The latest ones."""
    same_as: str | None = None
    """Where this very module stands first in the model; its calls are told there."""

    @property
    def latest(self) -> InspectedCall | None:
        """The last call that the user's forward made."""
        return next((call for call in reversed(self.calls) if not call.recomputed), None)

    @property
    def latest_back(self) -> InspectedCall | None:
        """The last call that gradients came back through."""
        return next((call for call in reversed(self.calls) if _went_back(call)), None)

    @property
    def forward(self) -> CallCost | None:
        """What its calls took in the latest pass."""
        return _latest_pass(self.calls, lambda call: call.forward)

    @property
    def backward(self) -> CallCost | None:
        """What its calls took in the backward of the latest pass that had one."""
        return _latest_pass(self.calls, lambda call: call.backward)

    @property
    def bad_inputs(self) -> NonFinite:
        """NaN and Inf in what went in, over all calls."""
        return _non_finite(tensor for call in self.calls for tensor in call.inputs)

    @property
    def bad_outputs(self) -> NonFinite:
        """NaN and Inf in what it returned, over all calls."""
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

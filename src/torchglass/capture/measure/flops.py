"""Counts the FLOPs of one step of a model, kernel by kernel and per module.

Kernels of a backward belong to the module call whose op they differentiate.

    counter = FlopCounter(model.named_modules())
    with observe_calls(counter), FlopMode(counter):
        model(x).sum().backward()
    counter.ops()
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import flop_registry

from torchglass.analyse.flop_formulas import Formula, formula_of, is_free
from torchglass.capture.autograd import UNNUMBERED, NodeCreators, retried_with_gradients
from torchglass.capture.isolated_run import IsolatedRun, Loss, RunObserver, isolated_run
from torchglass.capture.measure.devices import Clock, clock_for
from torchglass.capture.measure.registered_flops import (
    REGISTERED_FUNCTIONS,
    REGISTERED_OPS,
)
from torchglass.capture.model.structure import modules_in, tensors_of
from torchglass.capture.module_calls import ModuleStack, observe_calls
from torchglass.capture.tensor.description import Args, Kwargs, lack_values, tensors_of_call
from torchglass.capture.torch_internals import (
    COMPOSITE,
    OpOverload,
    has_kernel_for,
    nested_sizes,
    node_number,
    running_node,
)
from torchglass.capture.torch_modes import LookingMode, mode_on
from torchglass.capture.trace.kernel_mode import is_made_of_others
from torchglass.errors import CaptureError, uninterruptible, warn
from torchglass.records.measures import (
    CallPath,
    FlopRecord,
    FlopStage,
    FlopStatus,
    OpFlopRecord,
    Stage,
)
from torchglass.records.model import Model

Count = Callable[[Args, Kwargs, Any], int | None]
"""The FLOPs of a kernel from its arguments and result; None if they are not known."""

_OURS = ("aten", "quantized", "mkldnn")
"""The namespaces that our formulas are for: another "linear" may be something else."""
_WITHOUT_WORK = ("aten", "prims", "prim", "quantized", "profiler", "c10d", "_c10d_functional")
_PARTLY_READ = frozenset(
    {"embedding", "gather", "index", "index_select", "take", "_embedding_bag", "masked_select"}
)
"""Kernels that read only as much of their first argument as they return."""


class FlopRule(NamedTuple):
    """What is known about a kernel before it runs."""

    name: str
    """As torch writes it: "aten.addmm"."""
    nature: FlopStatus
    flops: Count | None
    moves: Callable[[Args, Any], int] | None
    """The bytes that it reads and writes; None for a view."""
    opens: bool
    """Whether it is composed of other kernels, which are counted instead."""


def rule_of(func: Any) -> FlopRule:
    """What is known about a kernel, or about a higher-order op."""
    if not isinstance(func, OpOverload):
        torchs = _formula_of_torch(func)
        nature: FlopStatus = "uncounted" if torchs is None else "counted"
        return FlopRule(
            str(func.name()), nature, torchs and _with_tensors(torchs), _all_bytes, False
        )
    namespace, name = func._schema.name.split("::")
    by_user, count = _formula_by_user(func), _formula(func, namespace, name)
    return FlopRule(
        name=f"{namespace}.{name}",
        nature="counted" if count else "free" if _is_free(func, namespace, name) else "uncounted",
        flops=count,
        moves=None if _is_view(func) else _part_bytes if name in _PARTLY_READ else _all_bytes,
        opens=by_user is None and has_kernel_for(func, COMPOSITE),
    )


def rule_of_function(name: str, formula: Formula) -> FlopRule:
    """The rule of an autograd Function that a user has registered a formula for."""
    return FlopRule(name, "counted", _with_shapes(formula), _all_bytes, False)


def shape_of(value: Any) -> Any:
    """Tensors replaced by their shapes, also in lists; other values are unchanged.

    A sparse matrix has one row per stored element, a nested tensor the shape of each part, and a
    packed weight the shape of the weight.
    """
    if type(value) in _NUMBERS:
        return value
    if isinstance(value, torch.Tensor):
        return _tensor_shape(value)
    if isinstance(value, (list, tuple)):
        return [shape_of(part) for part in value]
    if isinstance(value, torch.ScriptObject) and hasattr(value, "unpack"):
        return shape_of(value.unpack()[0])
    return value


def _tensor_shape(tensor: torch.Tensor) -> Any:
    if tensor.layout is torch.strided:
        if not tensor.is_nested:
            return tuple(tensor.shape)
        return nested_sizes(tensor)
    if tensor.layout in _SPARSE:
        return tensor._nnz(), math.prod(tensor.shape[tensor.sparse_dim() :])
    return tuple(tensor.shape)


_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)
_NUMBERS = frozenset({int, bool, float, type(None)})


def _formula(func: OpOverload, namespace: str, name: str) -> Count | None:
    """A user's formula, else ours, else torch's."""
    formula = _formula_by_user(func) or (formula_of(name) if namespace in _OURS else None)
    if formula is not None:
        return _with_shapes(formula)
    torchs = _formula_of_torch(func)
    return None if torchs is None else _with_tensors(torchs)


def _with_shapes(formula: Formula) -> Count:
    def count(args: Args, kwargs: Kwargs, output: Any) -> int | None:
        named = {name: shape_of(value) for name, value in kwargs.items()}
        return formula(*map(shape_of, args), **named, out_shape=shape_of(output))

    return count


def _with_tensors(formula: Callable[..., int]) -> Count:
    def count(args: Args, kwargs: Kwargs, output: Any) -> int:
        return formula(*args, **kwargs, out_val=output)

    return count


@lru_cache(maxsize=4096)
def _is_free(func: OpOverload, namespace: str, name: str) -> bool:
    if namespace not in _WITHOUT_WORK:
        return False
    return (
        torch.Tag.pointwise in func.tags
        or _is_view(func)
        or namespace in {"prim", "profiler", "c10d", "_c10d_functional"}
        or is_free(name)
    )


@lru_cache(maxsize=4096)
def _is_view(func: OpOverload) -> bool:
    """Whether it returns a view of an argument, or no tensor."""
    schema = func._schema
    looks = any(a.alias_info and not a.alias_info.is_write for a in schema.arguments)
    return looks or not any("Tensor" in str(made.type) for made in schema.returns)


def _all_bytes(args: Args, output: Any) -> int:
    return _bytes((*args, output))


def _part_bytes(args: Args, output: Any) -> int:
    return _bytes((output, output, *args[1:]))


def _bytes(values: Iterable[Any]) -> int:
    """The bytes of the tensors among the values, also in lists."""
    total = 0
    for value in values:
        if isinstance(value, torch.Tensor):
            total += value.numel() * value.element_size()
        elif isinstance(value, (list, tuple)):
            total += _bytes(value)
    return total


def _formula_by_user(func: Any) -> Formula | None:
    """The formula that a user registered for an op with us."""
    return REGISTERED_OPS.get(str(func.name())) or REGISTERED_OPS.get(func._schema.name)


def _formula_of_torch(func: Any) -> Callable[..., int] | None:
    """The formula registered with torch for an op; it is called with tensors."""
    packet = func.overloadpacket if isinstance(func, OpOverload) else func
    formula: Callable[..., int] | None = flop_registry.get(packet)
    return formula


class CountedCall(NamedTuple):
    """A running call. Its ops are counted at its call path, which is below its caller's."""

    path: str | None
    place: int | None
    recomputed: bool


@dataclass(slots=True, eq=False)
class _OpTotals:
    """The totals of all calls of one op at one call path."""

    marks: list[Any]
    """When its calls began and ended."""
    calls: int = 0
    flops: int = 0
    bytes: int = 0


_NO_MARKS: list[Any] = []
"""Shared by the ops of a pass that is not timed: each list more is one more for the collector."""


class FlopCounter(ModuleStack[CountedCall]):
    """Adds up the FLOPs of ops by the module call that they run in."""

    def __init__(
        self, modules: Iterable[tuple[str, nn.Module]], clock: Clock | None = None
    ) -> None:
        super().__init__(modules, "the FLOPs of some modules were not counted")
        self._clock = clock
        self._places: dict[tuple[int | None, str], int] = {}
        self._calls: list[int] = []
        self._last: dict[str, int] = {}
        self._makers: NodeCreators[int | None] = NodeCreators()
        self._node_place: int | None = None
        self._amounts: dict[tuple[str, FlopStatus, int | None, FlopStage], _OpTotals] = {}
        self.is_backward = False
        """Whether the step is in its backward."""

    @uninterruptible
    def inside(self, path: str) -> Iterator[None]:
        """Count a block as the call of something that is not a module, such as a function."""
        call = self._begin(path, recomputed=False)
        self.running.append(call)
        self.current = call
        try:
            yield
        finally:
            self.leave(len(self.running) - 1)

    def begin(self, module: nn.Module, args: Args, kwargs: Kwargs) -> CountedCall:
        return self._begin(self.locate(module), recomputed=self.is_recomputation())

    def end(self, call: CountedCall, output: Any, error: BaseException | None) -> None:
        self._makers.begin(None if self.current is None else self.current.place)

    def add(
        self,
        op: str,
        nature: FlopStatus,
        *,
        flops: int = 0,
        moved: int = 0,
        marks: Sequence[Any] = (),
    ) -> None:
        """Count an op that runs now."""
        place, stage = self._home()
        key = op, nature, place, stage
        amount = self._amounts.get(key)
        if amount is None:
            amount = self._amounts[key] = _OpTotals([] if marks else _NO_MARKS)
        amount.calls += 1
        amount.flops += flops
        amount.bytes += moved
        if marks:
            amount.marks.extend(marks)

    def places(self) -> tuple[CallPath, ...]:
        """The call paths of modules, in the order of their first calls."""
        return tuple(
            CallPath(path=path, parent=parent, calls=calls)
            for (parent, path), calls in zip(self._places, self._calls, strict=True)
        )

    def ops(self) -> tuple[OpFlopRecord, ...]:
        times = iter(self._read_clock())
        return tuple(
            OpFlopRecord(
                op=op,
                place=place,
                stage=stage,
                nature=nature,
                calls=amount.calls,
                flops=amount.flops,
                bytes=amount.bytes,
                time_ns=None if self._clock is None else _taken(times, len(amount.marks)),
            )
            for (op, nature, place, stage), amount in self._amounts.items()
        )

    def _read_clock(self) -> list[int]:
        marks = [mark for amount in self._amounts.values() for mark in amount.marks]
        return [] if self._clock is None else self._clock.nanoseconds(marks)

    def _begin(self, path: str | None, *, recomputed: bool) -> CountedCall:
        place = None if path is None else self._place_of(path, recomputed=recomputed)
        self._makers.begin(place)
        return CountedCall(path, place, recomputed)

    def _place_of(self, path: str, *, recomputed: bool) -> int:
        caller = self.current
        if recomputed and path in self._last and not (caller and caller.recomputed):
            # It still belongs to its caller in the forward.
            return self._last[path]
        key = (None if caller is None else caller.place), path
        place = self._places.setdefault(key, len(self._places))
        if place == len(self._calls):
            self._calls.append(0)
        if not recomputed:
            self._calls[place] += 1
            self._last[path] = place
        return place

    def _home(self) -> tuple[int | None, FlopStage]:
        """The current call path and stage."""
        node = running_node()
        innermost = self.current
        if node is None:
            place = None if innermost is None else innermost.place
            return place, "backward" if self.is_backward else "forward"
        if innermost is not None and innermost.recomputed:
            return innermost.place, "recompute" if self.is_backward else "forward"
        number = node_number(node)
        if number != UNNUMBERED:
            # The node that adds a gradient to its leaf runs right after the node that computed it.
            self._node_place = self._makers.find(number)
        if not self.is_backward:
            return self._node_place, "forward"
        # Gradients are on in a backward only during recomputation.
        return self._node_place, "recompute" if torch.is_grad_enabled() else "backward"


def _taken(times: Iterator[int], count: int) -> int:
    """The sum of the times between pairs of marks."""
    return sum(-next(times) + next(times) for _ in range(count // 2))


class FlopMode(LookingMode):  # type: ignore[no-untyped-call]
    """Adds the FLOPs of every kernel to a counter, and with a clock also its time."""

    def __init__(self, counter: FlopCounter, clock: Clock | None = None) -> None:
        super().__init__()
        self._counter = counter
        self._clock = clock
        self._rules: dict[int, tuple[Any, FlopRule]] = {}
        """Rules by the id of their op, which they keep: an op's own hash is a Python function."""
        # Whether the current op is inside something that is counted as a whole.
        self._is_paused = False
        self._warned = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if types and any(hasattr(kind, "__tensor_flatten__") for kind in types):
            # A wrapper subclass: the ops on its inner tensors come next.
            return NotImplemented
        known = self._rules.get(id(func))
        if known is None:
            known = self._rules[id(func)] = func, rule_of(func)
        rule = known[1]
        if rule.opens and is_made_of_others(func, args, kwargs):
            with self:
                return func.decompose(*args, **kwargs)
        return self._run(rule, func, args, kwargs, args)

    def count_whole(self, rule: FlopRule, run: Callable[..., Any], args: Args, given: Args) -> Any:
        """Run a function, and count it by a rule instead of by its kernels."""
        was_paused, self._is_paused = self._is_paused, True
        try:
            return self._run(rule, run, args, {}, given, paused=was_paused)
        finally:
            self._is_paused = was_paused

    def _run(
        self,
        rule: FlopRule,
        func: Callable[..., Any],
        args: Args,
        kwargs: Kwargs,
        given: Args,
        *,
        paused: bool | None = None,
    ) -> Any:
        if self._clock is None:
            output = func(*args, **kwargs)
            marks: tuple[Any, ...] = ()
        else:
            start = self._clock.mark()
            output = func(*args, **kwargs)
            marks = start, self._clock.mark()
        if not (self._is_paused if paused is None else paused):
            self._count(rule, given, kwargs, output, marks)
        return output

    def _count(
        self, rule: FlopRule, args: Args, kwargs: Kwargs, output: Any, marks: tuple[Any, ...]
    ) -> None:
        flops: int | None = 0
        moved, nature = 0, rule.nature
        try:
            if rule.moves is not None:
                moved = rule.moves(args, output)
            if rule.flops is not None:
                flops = rule.flops(args, kwargs, output)
        except Exception as problem:  # noqa: BLE001 - no error of ours may stop the user's forward
            flops = None
            self._warn(rule.name, problem)
        if flops is None:
            flops, nature = 0, "uncounted"
        self._counter.add(rule.name, nature, flops=flops, moved=moved, marks=marks)

    def _warn(self, name: str, problem: Exception) -> None:
        if not self._warned:
            self._warned = True
            warn(f"{name} is not counted: its formula raised {problem!r}")


@uninterruptible
def counting_functions(mode: FlopMode) -> Iterator[None]:
    """Count registered autograd Functions by their formulas, and nothing inside them."""
    with contextlib.ExitStack() as stack:
        for function, formulas in REGISTERED_FUNCTIONS.items():
            name = function.__name__
            if formulas.forward is not None:
                rule = rule_of_function(name, formulas.forward)
                stack.enter_context(_counted(mode, rule, function, "forward"))
            if formulas.backward is not None:
                rule = rule_of_function(f"{name}Backward", formulas.backward)
                stack.enter_context(_counted(mode, rule, function, "backward"))
        yield


@uninterruptible
def _counted(mode: FlopMode, rule: FlopRule, owner: Any, name: str) -> Iterator[None]:
    """Count a method of an autograd Function until the block ends."""
    run: Callable[..., Any] = getattr(owner, name)
    own = vars(owner).get(name)
    # Autograd hands its context to a backward, and to a forward that saves things itself.
    has_context = name == "backward" or _saves_in_forward(owner)

    def counted(*args: Any) -> Any:
        return mode.count_whole(rule, run, args, args[has_context:])

    setattr(owner, name, staticmethod(counted))
    try:
        yield
    finally:
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)


def _saves_in_forward(function: Any) -> bool:
    return bool(function.setup_context is torch.autograd.Function.setup_context)


_NO_GRADIENT = "no output requires a gradient, so only the forward was counted"
_UNCOMPILED = "compiled modules were counted uncompiled"


class CountedFlops(NamedTuple):
    """A model, and what one step of it computes."""

    model: Model
    work: FlopRecord


@retried_with_gradients
def count(
    target: Any,
    args: Args,
    kwargs: Kwargs,
    *,
    backward: bool = False,
    loss: Loss | None = None,
    fake: bool = False,
    timed: bool = False,
    gradients: bool = False,
) -> CountedFlops:
    """Run a model and count the FLOPs of each kernel.

    Kernels are timed in another run, if `timed` is set or some could not be counted.
    """
    inputs = (tensor for _, tensor in tensors_of_call(args, kwargs))
    fake = fake or lack_values((*tensors_of(modules_in(target)), *inputs))
    if fake and timed:
        raise CaptureError("a model without values cannot be timed: it computes nothing")
    with isolated_run(
        target, args, kwargs, backward=backward, loss=loss, gradients=gradients, fake=fake
    ) as run:
        observer = FlopObserver(run)
        run.run(observer)
        if timed or (not fake and observer.has_uncounted):
            observer = FlopObserver(run, clock_for(run.tensors))
            run.run(observer)
        return CountedFlops(run.read_model(), observer.work())


class FlopObserver(RunObserver):
    """Counts the FLOPs of a run, and with a clock times its kernels."""

    def __init__(self, run: IsolatedRun, clock: Clock | None = None) -> None:
        self._run = run
        self._clock = clock
        self._counter = FlopCounter(run.located, clock)
        self._mode = FlopMode(self._counter, clock)
        self._marks: list[Any] = []

    @property
    def has_uncounted(self) -> bool:
        """Whether a kernel ran that has no formula."""
        return any(op.nature == "uncounted" for op in self._counter.ops())

    @uninterruptible
    def stage(self, name: Stage) -> Iterator[None]:
        self._counter.is_backward = name == "backward"
        with contextlib.ExitStack() as stack:
            stack.enter_context(observe_calls(self._counter))
            stack.enter_context(counting_functions(self._mode))
            if name == "forward" and not isinstance(self._run.target, nn.Module):
                stack.enter_context(self._counter.inside(""))
            stack.enter_context(mode_on(self._mode))
            self._mark()
            stack.callback(self._mark)
            yield

    def work(self) -> FlopRecord:
        run = self._run
        notes = [_NO_GRADIENT] if run.backward and not run.went_back else []
        notes += [_UNCOMPILED] if run.has_compiled else []
        return FlopRecord(
            places=self._counter.places(),
            ops=self._counter.ops(),
            total_ns=self._total_ns(),
            backward=run.went_back,
            fake=run.faking is not None,
            notes=(*notes, *run.notes),
        )

    def _total_ns(self) -> int | None:
        if self._clock is None:
            return None
        times = self._clock.nanoseconds(self._marks)
        return sum(times[1::2]) - sum(times[::2])

    def _mark(self) -> None:
        if self._clock is not None:
            self._marks.append(self._clock.mark())

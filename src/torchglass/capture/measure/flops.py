"""Counts the FLOPs of one step of a model, kernel by kernel and per module.

Kernels of a backward belong to the module call whose op they take the gradient of.

    counter = FlopCounter(model.named_modules())
    with observe_calls(counter), FlopMode(counter):
        model(x).sum().backward()
    counter.ops()
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from torchglass.blocks import uninterruptible
from torchglass.capture.autograd import UNNUMBERED, NodeCreators
from torchglass.capture.isolated_run import IsolatedRun, Loss, RunObserver, isolated_run
from torchglass.capture.measure.devices import Clock, clock_for
from torchglass.capture.measure.flop_rules import (
    FlopRule,
    registered_functions,
    rule_of,
    rule_of_function,
)
from torchglass.capture.model.live_modules import modules_in, tensors_of
from torchglass.capture.module_calls import ModuleStack, observe_calls
from torchglass.capture.restore_state import retried_with_gradients
from torchglass.capture.tensor.description import Args, Kwargs, lack_values, tensors_of_call
from torchglass.capture.torch_internals import node_number, running_node
from torchglass.capture.torch_modes import LookingMode, mode_on
from torchglass.capture.trace.kernel_mode import is_made_of_others
from torchglass.errors import CaptureError, warn
from torchglass.records.measures import (
    CallPath,
    FlopRecord,
    FlopStage,
    FlopStatus,
    OpFlopRecord,
    Stage,
)
from torchglass.records.model import Model


class CountedCall(NamedTuple):
    """A running call, whose ops belong to a place: a path below the place of its caller."""

    path: str | None
    place: int | None
    recomputed: bool


@dataclass(slots=True, eq=False)
class _OpTotals:
    """The totals of all calls of one op in one place."""

    calls: int = 0
    flops: int = 0
    bytes: int = 0
    marks: list[Any] = field(default_factory=list)


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
            amount = self._amounts[key] = _OpTotals()
        amount.calls += 1
        amount.flops += flops
        amount.bytes += moved
        amount.marks += marks

    def places(self) -> tuple[CallPath, ...]:
        """The places where modules were called, in the order of their first calls."""
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
            # It is still part of whoever called it in the forward.
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
        """The place and the stage of what runs now."""
        node = running_node()
        innermost = self.current
        if node is None:
            place = None if innermost is None else innermost.place
            return place, "backward" if self.is_backward else "forward"
        if innermost is not None and innermost.recomputed:
            return innermost.place, "recompute" if self.is_backward else "forward"
        number = node_number(node)
        if number != UNNUMBERED:
            # What adds a gradient to its leaf runs right after whoever made it.
            self._node_place = self._makers.find(number)
        if not self.is_backward:
            return self._node_place, "forward"
        # Gradients are on in a backward only for what is run forward again.
        return self._node_place, "recompute" if torch.is_grad_enabled() else "backward"


def _taken(times: Iterator[int], count: int) -> int:
    """The sum of the times between pairs of marks."""
    return sum(-next(times) + next(times) for _ in range(count // 2))


class FlopMode(LookingMode):  # type: ignore[no-untyped-call]
    """Adds the FLOPs of every kernel to a counter, and with a clock the time that it took."""

    def __init__(self, counter: FlopCounter, clock: Clock | None = None) -> None:
        super().__init__()
        self._counter = counter
        self._clock = clock
        self._rules: dict[Any, FlopRule] = {}
        # Whether what runs is part of something that is counted as a whole.
        self._is_paused = False
        self._warned = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if types and any(hasattr(kind, "__tensor_flatten__") for kind in types):
            # A wrapper subclass: the ops on its inner tensors come next.
            return NotImplemented
        rule = self._rules.get(func)
        if rule is None:
            rule = self._rules[func] = rule_of(func)
        if rule.opens and is_made_of_others(func, args, kwargs):
            with self:
                return func.decompose(*args, **kwargs)
        return self._run(rule, func, args, kwargs, args)

    def count_whole(self, rule: FlopRule, run: Callable[..., Any], args: Args, given: Args) -> Any:
        """Run something that is not a kernel, and count it by a rule instead of its kernels."""
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
    """Count the registered Functions by their formulas, and nothing that runs inside of them."""
    with contextlib.ExitStack() as stack:
        for function, formulas in registered_functions():
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

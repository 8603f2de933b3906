"""Records a pass: its module calls, its ops and its tensors.

    with tracing(model) as recorder:
        model(x)
    captured = assemble(recorder)       # in capture.trace.assemble

While the pass runs, calls and ops are only recorded, in one list.
"""

from __future__ import annotations

import sys
import time
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from torchglass.capture.module_calls import CALL_CODE, ModuleStack, observe_calls
from torchglass.capture.tensor.description import Args, Kwargs, named_tensors, tensors_of_call
from torchglass.capture.torch_internals import DisableTorchFunction, peek_interpreter_stack
from torchglass.capture.torch_modes import TorchRandomState, fused_paths_kept, mode_on
from torchglass.capture.trace.kernel_mode import KernelMode
from torchglass.capture.trace.op_mode import (
    CHANGEABLE,
    Chain,
    KnownChains,
    OpEvent,
    OpMode,
    chain_from,
    returned,
    unchanging,
    unwrapped,
)
from torchglass.capture.trace.saved_tensors import Key, Snapshots
from torchglass.errors import CaptureError, Fence, uninterruptible

Level = Literal["torch", "aten"]
"""Torch functions as Python calls them, or the kernels that they run."""

Edit = Callable[[Any], Any]
"""Takes what an op returned; returns what its caller gets instead."""

_clock = time.perf_counter_ns


class StopTracing(BaseException):
    """Ends a forward early; no `except Exception` of the model catches it."""


@dataclass(slots=True, eq=False)
class TracedCall:
    """A module call of the pass, and the event that it began."""

    module: nn.Module
    parent: TracedCall | None
    args: Args
    kwargs: Kwargs
    chain: Chain
    start_ns: int
    output: Any = None
    place: Any = None
    """Its `_CallPlace`, which `assemble` keeps here, so that it is freed with the call."""
    end_ns: int = 0

    def let_go(self) -> None:
        self.args, self.kwargs, self.output = (), {}, None

    @property
    def results(self) -> list[torch.Tensor]:
        """The inputs of the outermost call, which are new in the pass."""
        if self.parent is not None:
            return []
        return [tensor for _, tensor in tensors_of_call(self.args, self.kwargs)]


class DroppedEvent:
    """An event that is not kept."""

    results: tuple[torch.Tensor, ...] = ()


class CallEnd:
    """The event that a call returned."""

    __slots__ = ("call",)

    def __init__(self, call: TracedCall) -> None:
        self.call = call

    @property
    def results(self) -> list[torch.Tensor]:
        """The outputs of the outermost call."""
        if self.call.parent is not None:
            return []
        return [tensor for _, tensor in named_tensors(self.call.output)]


Event = OpEvent | TracedCall | CallEnd | DroppedEvent
"""A running call is also the event of its start."""


_DROPPED = DroppedEvent()


class Gradients(dict[Key, torch.Tensor]):
    """The gradients of a pass by event and result, as far as a backward has computed them."""

    __slots__ = ("__weakref__",)


class OpGradientHook:
    """What autograd calls with the gradient of a result.

    Autograd keeps it alive as long as the result's graph, so it must not refer to the trace, which
    refers to the results: memory in such a cycle is never freed.
    """

    __slots__ = ("_key", "_taken")

    def __init__(self, taken: Gradients, key: Key) -> None:
        self._taken = weakref.ref(taken)
        self._key = key

    def __call__(self, gradient: torch.Tensor | None) -> None:
        taken = self._taken()
        # If an op has several outputs, an unused one has no gradient.
        if taken is None or gradient is None:
            return
        with _gradient_fence:
            known = taken.get(self._key)
            taken[self._key] = gradient.detach() if known is None else known + gradient.detach()


_gradient_fence = Fence("some gradients of a trace were not recorded")


class PassRecorder(ModuleStack[TracedCall]):
    """Records calls and ops in order. Never raises into the pass."""

    def __init__(
        self,
        model: nn.Module,
        *,
        gradients: bool = False,
        edits: Mapping[int, Edit] | None = None,
        stop_after: int | None = None,
        keep: Callable[[int, Event], bool] | None = None,
    ) -> None:
        """`edits` and `stop_after` name ops by their number among the ops of the pass.

        `keep` gets each event with its number, and events it rejects are released at once; without
        it everything is kept until the pass has ended.
        """
        # Paths are found after the pass, when its records are made.
        super().__init__((), "the trace is not complete")
        self.model = model
        self.events: list[Event] = []
        self.error = ""
        self.notes: list[str] = []
        self.failure: OpEvent | None = None
        self._failed: tuple[OpEvent, BaseException] | None = None
        self.snapshots = Snapshots(self.events, lambda: _held_by(model))
        self.gradients = Gradients()
        self.added_to: dict[int, torch.Tensor] = {}
        """Gradients of the model that existed when a backward began, by id."""
        self.random_state = TorchRandomState()
        self.start_ns = _clock()
        self.end_ns = 0
        self._take_gradients = gradients
        self._edits = edits or {}
        self._last = stop_after
        self._take_down: Callable[[Event], None] = self.events.append
        if keep is not None:
            self._take_down = partial(_take_down_or_drop, self.events, keep)
        self._ops = 0
        self._chains: KnownChains = {}
        self._raised_by_edit: int | None = None

    def before_write(self, written: tuple[torch.Tensor, ...]) -> None:
        try:
            self.snapshots.before_write(written)
        except Exception as problem:  # noqa: BLE001 - see missed
            self.missed(problem)

    def before_backward(self) -> None:
        """Save the gradients to which a backward is about to add."""
        try:
            leaves = (tensor for tensor in _held_by(self.model) if tensor.is_leaf)
            gradients = tuple(leaf.grad for leaf in leaves if leaf.grad is not None)
            if gradients:
                self.before_write(gradients)
            self.added_to.update((id(gradient), gradient) for gradient in gradients)
        except Exception as problem:  # noqa: BLE001 - see missed
            self.missed(problem)

    def seen(self, event: OpEvent) -> Any:
        """Record an op; returns what its caller gets."""
        number = self._ops
        self._ops = number + 1
        if self._edits and number in self._edits:
            try:
                event = _edited(event, self._edits[number])
            except Exception as error:
                # The edit is the user's code, so its exceptions pass through.
                self._raised_by_edit = id(error)
                raise
        try:
            if self._take_gradients:
                self._ask_for_gradients(len(self.events), event)
            self._take_down(event)
        except Exception as problem:  # noqa: BLE001 - see missed
            self.missed(problem)
        if number == self._last:
            raise StopTracing
        return event.output

    def failed(self, event: OpEvent, error: BaseException) -> None:
        """Keep the op that raised; of nested ops, the inner one."""
        if self._failed is None or self._failed[1] is not error:
            self._failed = event, error

    def ended_by(self, error: BaseException) -> None:
        """Note the exception that ended the pass, and the op that raised it."""
        self.error = _said_by(error)
        if self._failed is not None and self._failed[1] in _causes(error):
            self.failure = self._failed[0]

    def begin(self, module: nn.Module, args: Args, kwargs: Kwargs) -> TracedCall:
        if peek_interpreter_stack() is not None:
            args, kwargs = unwrapped((args, kwargs))
        chain = chain_from(_caller(), self._chains)
        if not CHANGEABLE.isdisjoint(map(type, args)):
            args = unchanging(args)
        if kwargs:
            kwargs = unchanging(kwargs)
        call = TracedCall(module, self.current, args, kwargs, chain, _clock())
        self._take_down(call)
        return call

    def end(self, call: TracedCall, output: Any, error: BaseException | None) -> None:
        call.end_ns = _clock()
        if error is None:
            if peek_interpreter_stack() is not None:
                output = unwrapped(output) if self.running else returned(output)
            call.output = output if type(output) is torch.Tensor else unchanging(output)
            self._take_down(CallEnd(call))

    def abandon(self, call: TracedCall) -> None:
        """A call that was interrupted ends with its caller."""
        call.end_ns = _clock()

    def _ask_for_gradients(self, number: int, event: OpEvent) -> None:
        for result, tensor in enumerate(event.results):
            if not tensor.requires_grad:
                continue
            hook: Callable[[Any], None] = OpGradientHook(self.gradients, (number, result))
            base = tensor._base
            if event.written and base is not None and base.is_contiguous():
                # What was written into a view is also used through its base.
                offset = int(tensor.storage_offset() - base.storage_offset())
                hook = partial(_of_part, hook, tensor.size(), tensor.stride(), offset)
                tensor = base  # noqa: PLW2901 - the one that has the whole gradient
            if tensor.is_leaf and event.written:
                # An update of a parameter: its gradient belongs to no op in the pass.
                continue
            handle = tensor.register_hook(hook)  # type: ignore[no-untyped-call]
            if tensor.is_leaf:
                weakref.finalize(self.gradients, handle.remove)

    def missed(self, problem: Exception) -> None:
        if id(problem) == self._raised_by_edit:
            raise problem
        super().missed(problem)


def _of_part(
    take: Callable[[Any], None],
    size: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
    gradient: torch.Tensor | None,
) -> None:
    """Take the part of a base's gradient that belongs to a view of it."""
    with _gradient_fence:
        take(None if gradient is None else gradient.contiguous().as_strided(size, stride, offset))


def _take_down_or_drop(
    events: list[Event], keep: Callable[[int, Event], bool], event: Event
) -> None:
    events.append(event)
    # At a module call our own mode is on, and would record our own reads as ops of the model.
    with DisableTorchFunction():
        is_kept = keep(len(events) - 1, event)
    if not is_kept:
        events[-1] = _DROPPED
        if isinstance(event, CallEnd):
            event.call.let_go()


@uninterruptible
def tracing(model: nn.Module, *, level: Level = "torch", **options: Any) -> Iterator[PassRecorder]:
    """Record what runs in this thread until the block ends, however it ends.

    The options are those of `PassRecorder`.
    """
    if level == "aten" and options.get("gradients"):
        raise CaptureError(
            'gradients=True needs level="torch"; level="aten" records the backward itself'
        )
    recorder = PassRecorder(model, **options)
    with observe_calls(recorder), _watching_ops(recorder, level):
        try:
            yield recorder
        except StopTracing:
            pass
        except BaseException as error:
            recorder.ended_by(error)
            raise
        finally:
            recorder.end_ns = _clock()


@uninterruptible
def _watching_ops(recorder: PassRecorder, level: Level) -> Iterator[None]:
    if level == "aten":
        # Kernels do not show when these get their shapes.
        recorder.snapshots.note_lazy(_held_by(recorder.model))
        with mode_on(KernelMode(recorder)):
            yield
    else:
        with fused_paths_kept(), mode_on(OpMode(recorder, recorder.before_backward)):
            yield


def _held_by(model: nn.Module) -> list[torch.Tensor]:
    """The parameters and buffers of a model, ten times as fast as its own iterators."""
    held: list[torch.Tensor | None] = []
    seen: set[int] = set()
    waiting: list[nn.Module | None] = [model]
    while waiting:
        module = waiting.pop()
        if module is not None and id(module) not in seen:
            seen.add(id(module))
            held += module._parameters.values()
            held += module._buffers.values()
            waiting += module._modules.values()
    return [tensor for tensor in held if tensor is not None]


def _edited(event: OpEvent, edit: Edit) -> OpEvent:
    """The event with its output replaced; the result of an in-place op is overwritten instead."""
    target = event.results[0]
    if not any(target is written for written in event.written):
        return event._replace(output=edit(event.output))
    with torch.no_grad():
        target.copy_(edit(target.detach().clone()))
    return event


def _said_by(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - a user's exception may not be able to say what it is
        return type(error).__name__


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An exception, and the exceptions it was raised from or while handling."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _caller() -> types.FrameType | None:
    """The frame that called the module whose call begins."""
    # The frames from here are `begin` and `_call`; with several observers some are in between.
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code is not CALL_CODE:
        frame = frame.f_back
    return frame.f_back if frame is not None else None

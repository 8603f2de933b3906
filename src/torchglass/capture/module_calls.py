"""Module calls: shows `nn.Module.__call__` to observers during a with-block.

    with observe_calls(CallRecorder(model.named_modules())) as recorder:
        model(x)
    recorder.calls

**What it is.** `observe_calls` replaces `nn.Module.__call__` while the block lasts. Nothing is put
on the model: no hook, no wrapper, no attribute, so fused kernels, scripted modules and pickling
work as without it. While no thread is observed the code object of our function is torch's own,
so blocks that stay open (`intercept_calls`) cost nothing between the observed passes.

**How an observer is written.** Derive from `ModuleStack`, which keeps the stack of running calls,
and write two methods:

    class Running(NamedTuple):
        path: str

    class Depths(ModuleStack[Running]):
        def __init__(self, model):
            super().__init__(model.named_modules(), "some depths were not recorded")
            self.depths = {}

        def begin(self, module, args, kwargs):       # a call begins
            path = self.locate(module)
            if path is None:
                return None                          # not observed
            self.depths[path] = len(self.running)
            return Running(path)                     # goes on the stack

        def end(self, call, output, error):          # it returned, or raised `error`
            ...

| tool | what it gives |
|---|---|
| `running`, `current` | the calls that have not returned, outermost first; the innermost one |
| `locate(module)` | path in the model; a module that is not in it is "caller.<Class>" |
| `count(path)` | the number of the call: 1 for the first one at this path |
| `is_recomputation()` | whether autograd runs the call (activation checkpointing) |
| `missed(problem)` | an error of ours: a warning, each one once |

**What is guaranteed.**

- Only calls of the thread that created the observer are shown, and none while torch compiles,
  exports or traces. On an accelerator autograd has its own threads: what a checkpoint recomputes
  there is shown to the observer of the thread that waits for the backward.
- `end` runs once for each call that `begin` put on the stack, also if the forward raises. Only a
call that never reached its end, because of an interrupt, is passed to `abandon`.
- An error in `begin` or `end` never reaches the user's forward: it goes to `missed`, and the
  observer continues with the next call. An exception raised on purpose (`tg.guard` stopping at a
  NaN) is raised again by `missed`.
- Observers may be nested and may be several: each has its own stack.
- The end of the block restores `nn.Module.__call__`, the recursion limit and dynamo's copy.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any, Generic, NamedTuple, TypeGuard, TypeVar

import torch
from torch import nn

from torchglass.capture.autograd import is_in_backward
from torchglass.capture.tensor.description import (
    Args,
    Kwargs,
    describe,
    named_tensors,
    tensors_of_call,
)
from torchglass.capture.torch_internals import (
    DYNAMO_COPIES_OF_CALL,
    DisableTorchFunction,
    threads_in_backward,
    tracing_state,
)
from torchglass.errors import Fence, undo_reliably, uninterruptible
from torchglass.records.model import join_path
from torchglass.records.trace import CallId, CallRecord, Value

AnyObserver = TypeVar("AnyObserver", bound="ModuleStack[Any]")
OpenCall = TypeVar("OpenCall")
"""What an observer keeps about a running call; its `path` names stray modules below it."""

_clock = time.perf_counter_ns


class ModuleStack(Generic[OpenCall]):
    """The base of all observers of module calls; see the top of this file."""

    def __init__(
        self, modules: Iterable[tuple[str, nn.Module]], lost: str, outside: OpenCall | None = None
    ) -> None:
        """`lost` says what is missing if this observer fails.

        `outside` is what `current` is outside of all calls.
        """
        self.thread = threading.get_ident()
        self.running: list[OpenCall] = []
        self.current = self.outside = outside
        # The modules are kept, so that no other object gets the id of one of them.
        self._located = {id(module): (path, module) for path, module in modules}
        self._numbers: defaultdict[str, int] = defaultdict(int)
        self._fence = Fence(lost)

    def begin(self, module: nn.Module, args: Args, kwargs: Kwargs) -> OpenCall | None:
        """A call begins. Returns what goes on the stack; None if it is not observed."""
        raise NotImplementedError

    def end(self, call: OpenCall, output: Any, error: BaseException | None) -> None:
        """A call, which is no longer on the stack, returned or raised."""

    def abandon(self, call: OpenCall) -> None:
        """A call never ended, as after an interrupt."""

    def missed(self, problem: Exception) -> None:
        self._fence.caught(problem)

    def locate(self, module: nn.Module) -> str | None:
        """The path of a module; None if it is neither in the model nor called by it."""
        known = self._located.get(id(module))
        if known is not None:
            return known[0]
        caller = self.caller_path()
        return None if caller is None else join_path(caller, f"<{type(module).__name__}>")

    def caller_path(self) -> str | None:
        """The path of the innermost running call; None outside of all calls."""
        return getattr(self.current, "path", None)

    def count(self, path: str) -> int:
        """Count a call; returns its number."""
        number = self._numbers[path] + 1
        self._numbers[path] = number
        return number

    def is_recomputation(self) -> bool:
        """Whether autograd runs this call, as activation checkpointing does."""
        return is_in_backward()

    def enter(self, module: nn.Module, args: Args, kwargs: Kwargs) -> int:
        """A call begins. Returns its depth, which is passed to `leave`."""
        depth = len(self.running)
        try:
            call = self.begin(module, args, kwargs)
            if call is not None:
                self.running.append(call)
                self.current = call
        except Exception as problem:  # noqa: BLE001 - no error of ours may stop the user's forward
            self.missed(problem)
        return depth

    def leave(self, depth: int, output: Any = None, error: BaseException | None = None) -> None:
        """The call at a depth returned or raised."""
        running = self.running
        if len(running) <= depth:
            return
        while len(running) > depth + 1:
            self.abandon(running.pop())
        call = running.pop()
        self.current = running[-1] if depth else self.outside
        try:
            self.end(call, output, error)
        except Exception as problem:  # noqa: BLE001 - no error of ours may stop the user's forward
            self.missed(problem)


class RecordedCall(NamedTuple):
    """A call that has not returned yet."""

    id: CallId
    parent: CallId | None
    path: str
    number: int
    inputs: tuple[Value, ...]
    start_ns: int


class CallRecorder(ModuleStack[RecordedCall]):
    """Records the calls of modules, and the calls that they make."""

    def __init__(
        self,
        modules: Iterable[tuple[str, nn.Module]],
        lost: str = "some module calls were not recorded",
    ) -> None:
        super().__init__(modules, lost)
        self._memories = _Memories()
        self._calls: list[CallRecord | None] = []
        self._failed: tuple[int, str] | None = None

    @property
    def calls(self) -> tuple[CallRecord, ...]:
        """The calls that have ended, in the order in which they began."""
        return tuple(call for call in self._calls if call is not None)

    def where_failed(self, error: BaseException) -> str | None:
        """The path of the innermost module that an exception came out of."""
        return self._failed[1] if self._failed and self._failed[0] == id(error) else None

    def begin(self, module: nn.Module, args: Args, kwargs: Kwargs) -> RecordedCall | None:
        path = self.locate(module)
        if path is None:
            return None
        inputs = self._values(tensors_of_call(args, kwargs))
        self._calls.append(None)
        return RecordedCall(
            id=CallId(len(self._calls) - 1),
            parent=None if self.current is None else self.current.id,
            path=path,
            number=self.count(path),
            inputs=inputs,
            start_ns=_clock(),
        )

    def end(self, call: RecordedCall, output: Any, error: BaseException | None) -> None:
        end_ns = _clock()
        if error is not None and self.where_failed(error) is None:
            self._failed = id(error), call.path
        outputs = self._values(named_tensors(output))
        self._calls[call.id] = CallRecord(**call._asdict(), outputs=outputs, end_ns=end_ns)

    def _values(self, located: Iterable[tuple[str, torch.Tensor]]) -> tuple[Value, ...]:
        # A user's function mode would see us read shapes as operations of the model.
        with DisableTorchFunction():
            return tuple(
                Value(place=place, spec=describe(tensor), memory=self._memories.number(tensor))
                for place, tensor in located
            )


class _Memories:
    """Numbers the memory of tensors without keeping it alive."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._count = 0

    def number(self, tensor: torch.Tensor) -> int | None:
        """The number of a tensor's memory; None for one without a storage, such as a sparse one."""
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return None
        known = self._known.get(id(storage))
        # A freed storage's id may be used again.
        if known is None or known[0]() is not storage:
            known = self._known[id(storage)] = weakref.ref(storage), self._count
            self._count += 1
        return known[1]


@uninterruptible
def observe_calls(observer: AnyObserver) -> Iterator[AnyObserver]:
    """Show an observer the calls of its thread until the block ends, however it ends."""
    with intercept_calls():
        try:
            add_observer(observer)
            yield observer
        finally:
            undo_reliably(remove_observer, observer)


@uninterruptible
def intercept_calls() -> Iterator[None]:
    """Replace `nn.Module.__call__` in the block, so that observers can be added and removed.

    Python calls modules faster if their class does not change all the time.
    """
    block = object()
    try:
        _install(block)
        yield
    finally:
        undo_reliably(_uninstall, block)


_Depths = list[tuple[ModuleStack[Any], int]]


class _SeveralObservers(ModuleStack[_Depths]):
    """Several observers of one thread, as one; each has its own stack."""

    def __init__(self, observers: tuple[ModuleStack[Any], ...]) -> None:
        super().__init__((), "")
        self.observers = observers
        self.thread = observers[0].thread

    def begin(self, module: nn.Module, args: Args, kwargs: Kwargs) -> _Depths:
        depths = []
        for one in self.observers:
            try:
                depths.append((one, one.enter(module, args, kwargs)))
            except Exception as problem:  # noqa: BLE001, PERF203 - see _give_up
                _give_up(one, problem)
        return depths

    def end(self, call: _Depths, output: Any, error: BaseException | None) -> None:
        meant: Exception | None = None
        for one, depth in call:
            try:
                _leave(one, depth, output, error)
            except Exception as problem:  # noqa: BLE001, PERF203 - the others are told first
                meant = meant or problem
        if meant is not None:
            raise meant

    def missed(self, problem: Exception) -> None:
        """Only exceptions raised on purpose get here."""
        raise problem


_lock = threading.RLock()
_observers: dict[int, ModuleStack[Any]] = {}
"""The observer of each thread."""
_lent: set[int] = set()
"""The threads whose observers watch one of autograd's own threads."""
_original: Callable[..., Any] = nn.Module.__call__
_is_torchs = True
"""Whether that is torch's own function."""
_blocks: set[object] = set()
"""The blocks that need our function in place of torch's."""
_limits = (0, 0)
"""The recursion limit before, and while our function is installed."""
_fence = Fence("Torchglass stopped observing this block")
_thread = threading.get_ident
_is_compiling = torch.compiler.is_compiling
_tracing_state = tracing_state


def _renew_lock() -> None:
    """After a fork, a lock that another thread of the parent held is never released."""
    global _lock  # noqa: PLW0603 - see _install
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def _install(block: object) -> None:
    global _original, _is_torchs, _limits  # noqa: PLW0603 - torch has one such method
    with _lock:
        _blocks.add(block)
        if nn.Module.__call__ is not _call:
            _original = nn.Module.__call__
            _is_torchs = _is_plain(_original)
            limit = sys.getrecursionlimit()
            # Each level of a model takes four frames instead of three while ours is installed.
            _limits = limit, limit + limit // 3
            sys.setrecursionlimit(_limits[1])
            _call.__code__ = _code()
            nn.Module.__call__ = _call  # type: ignore[method-assign]


def _uninstall(block: object) -> None:
    with _lock:
        _blocks.discard(block)
        if _blocks:
            return
        if nn.Module.__call__ is _call:
            nn.Module.__call__ = _original  # type: ignore[method-assign]
        if sys.getrecursionlimit() == _limits[1]:
            sys.setrecursionlimit(_limits[0])
        # If dynamo was imported while ours was installed, it took our function for torch's own.
        for module in filter(None, map(sys.modules.get, DYNAMO_COPIES_OF_CALL)):
            if module.__dict__.get("unpatched_nn_module_call") is _call:
                module.__dict__["unpatched_nn_module_call"] = _original


def add_observer(observer: ModuleStack[Any]) -> None:
    """Show an observer the calls of its thread from now on, within `intercept_calls`."""
    with _lock:
        others = tuple(other for other in _observers_of(observer.thread) if other is not observer)
        _set_observers(observer.thread, (*others, observer))


def remove_observer(observer: ModuleStack[Any]) -> None:
    """Stop showing calls to an observer."""
    with _lock:
        others = tuple(other for other in _observers_of(observer.thread) if other is not observer)
        _set_observers(observer.thread, others)


def _give_up(observer: ModuleStack[Any], problem: Exception) -> None:
    """An observer raised an error: it is removed, and the user's call continues.

    An exception raised on purpose is raised again by `missed`.
    """
    observer.missed(problem)
    with _fence:
        remove_observer(observer)


def _miss(observer: ModuleStack[Any], problem: Exception) -> None:
    """An observer could not handle a call; it is shown the next ones."""
    try:
        observer.missed(problem)
    except Exception as another:  # noqa: BLE001 - see _give_up
        _give_up(observer, another)


def _leave(
    observer: ModuleStack[Any], depth: int, output: Any, error: BaseException | None
) -> None:
    try:
        observer.leave(depth, output, error)
    except Exception as problem:  # noqa: BLE001 - see _give_up
        _give_up(observer, problem)


def _observers_of(thread: int) -> tuple[ModuleStack[Any], ...]:
    shown = _observers.get(thread)
    if shown is None:
        return ()
    return shown.observers if isinstance(shown, _SeveralObservers) else (shown,)


def _set_observers(thread: int, observers: tuple[ModuleStack[Any], ...]) -> None:
    if observers:
        _observers[thread] = observers[0] if len(observers) == 1 else _SeveralObservers(observers)
    else:
        _observers.pop(thread, None)
    _call.__code__ = _code()


def _code() -> CodeType:
    """The code that runs at a call: without observers it is torch's own."""
    return CALL_CODE if _observers or not _is_plain(_original) else _original.__code__


def _is_plain(call: Callable[..., Any]) -> TypeGuard[FunctionType]:
    """Whether a function is torch's own, and uses only what modules have."""
    # A replacement, or a later torch, may need globals that are not ours.
    return (
        isinstance(call, FunctionType)
        and call is nn.Module.__dict__.get("_wrapped_call_impl")
        and not call.__code__.co_freevars
        and set(call.__code__.co_names) <= {"_call_impl", "_compiled_call_impl"}
    )


def _call(self: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    # Constant while torch.compile compiles this function, so that nothing below is in its graph.
    if _is_compiling() or _tracing_state() is not None:
        return _original(self, *args, **kwargs)
    observer = _observers.get(_thread())
    if observer is None:
        if is_in_backward():
            return _call_in_backward(self, args, kwargs)
        return _original(self, *args, **kwargs)
    # From here on the same as `enter`, the call and `leave`, with two frames less.
    running = observer.running
    depth = len(running)
    call = None
    try:
        call = observer.begin(self, args, kwargs)
        if call is not None:
            running.append(call)
            observer.current = call
    except Exception as problem:  # noqa: BLE001 - see _miss
        _miss(observer, problem)
    try:
        if _is_torchs and self._compiled_call_impl is None:
            # The same as torch's own function, with one frame less.
            output = self._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
        else:
            output = _original(self, *args, **kwargs)
    except BaseException as error:
        _leave(observer, depth, None, error)
        raise
    try:
        if call is not None and len(running) == depth + 1:
            running.pop()
            observer.current = running[-1] if depth else observer.outside
            observer.end(call, output, None)
        else:
            observer.leave(depth, output)
    except Exception as problem:  # noqa: BLE001 - see _miss
        _miss(observer, problem)
    return output


def _call_in_backward(module: nn.Module, args: Args, kwargs: Kwargs) -> Any:
    """Show a call that one of autograd's own threads makes to the thread that waits for it."""
    with _lock:
        waiting = [thread for thread in threads_in_backward() if thread in _observers]
        # With two devices, two threads may recompute at once, and an observer has one stack.
        home = waiting[0] if len(waiting) == 1 and waiting[0] not in _lent else None
        if home is not None:
            _lent.add(home)
            _observers[_thread()] = _observers[home]
    if home is None:
        return _original(module, *args, **kwargs)
    try:
        return _call(module, *args, **kwargs)
    finally:
        with _lock:
            _observers.pop(_thread(), None)
            _lent.discard(home)


CALL_CODE = _call.__code__
"""The frame between a module and its caller while observers are shown the calls."""

"""Observes the calls of a model's modules at `nn.Module.__call__`, for the length of a with-block.

with recording(CallRecorder(model.named_modules())) as recorder:
        model(x)
    recorder.calls

Nothing is put on the model: fused kernels, scripted modules and pickling work as ever. Only calls
in the thread that made the recorder are seen, and none while torch compiles, exports or traces.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any, NamedTuple, Protocol, TypeGuard, TypeVar

import torch
from torch import nn

from torchglass.blocks import surely, unbroken
from torchglass.capture.nested_tensors import named_tensors, tensors_of_call
from torchglass.capture.tensor.description import describe
from torchglass.errors import Fence
from torchglass.records.model import join_path
from torchglass.records.trace import Call, CallId, Value

Seer = TypeVar("Seer", bound="Observer")

Located = Iterable[tuple[str, torch.Tensor]]

_clock = time.perf_counter_ns


class Observer(Protocol):
    """What can be shown the calls of a thread.

    One that raises is shown no more; its `missed(problem)`, if it has one, is told why.
    """

    thread: int

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
        """A call begins; how deep it is, which `leave` wants to know."""

    def leave(self, depth: int, output: Any = None, error: BaseException | None = None) -> None:
        """The call at a depth returned or raised."""


class _Open(NamedTuple):
    """A call that has not returned yet."""

    id: CallId
    parent: CallId | None
    path: str
    number: int
    inputs: tuple[Value, ...]
    start_ns: int


class CallRecorder:
    """Collects the calls of the modules it is given, and of those that they make as they run.

    A module that is not in the model is shown below the one that called it, as "encoder.<Linear>".
    """

    def __init__(self, modules: Iterable[tuple[str, nn.Module]]) -> None:
        # The modules are kept, so that no other object gets the id of one of them.
        self._modules = {id(module): (path, module) for path, module in modules}
        self._memories = _Memories()
        self._calls: list[Call | None] = []
        self._open: list[_Open] = []
        self._numbers: Counter[str] = Counter()
        self._failed: tuple[int, str] | None = None
        self._fence = Fence("some module calls were not recorded")
        self.thread = threading.get_ident()

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls that have ended, in the order in which they began."""
        return tuple(call for call in self._calls if call is not None)

    def where_failed(self, error: BaseException) -> str | None:
        """The path of the innermost module that an exception came out of."""
        return self._failed[1] if self._failed and self._failed[0] == id(error) else None

    def missed(self, problem: Exception) -> None:
        """An error of ours: some calls are missing."""
        self._fence.caught(problem)

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
        """Take down that a call begins, and how deep it is."""
        depth = len(self._open)
        with self._fence:
            path = self._path(module)
            if path is not None:
                inputs = self._values(tensors_of_call(args, kwargs))
                self._numbers[path] += 1
                self._calls.append(None)
                self._open.append(
                    _Open(
                        id=CallId(len(self._calls) - 1),
                        parent=self._open[-1].id if self._open else None,
                        path=path,
                        number=self._numbers[path],
                        inputs=inputs,
                        start_ns=_clock(),
                    )
                )
        return depth

    def leave(self, depth: int, output: Any = None, error: BaseException | None = None) -> None:
        """Take down that the call at a depth returned or raised."""
        end_ns = _clock()
        if len(self._open) <= depth:
            return
        call = self._open[depth]
        # Whatever is deeper never got to its own end, as when an interrupt came in between.
        del self._open[depth:]
        with self._fence:
            if error is not None and self.where_failed(error) is None:
                self._failed = id(error), call.path
            outputs = self._values(named_tensors(output))
            self._calls[call.id] = Call(**call._asdict(), outputs=outputs, end_ns=end_ns)

    def _path(self, module: nn.Module) -> str | None:
        known = self._modules.get(id(module))
        if known is not None:
            return known[0]
        if not self._open:
            return None
        return join_path(self._open[-1].path, f"<{type(module).__name__}>")

    def _values(self, located: Located) -> tuple[Value, ...]:
        # A user's function mode would see us read shapes as operations of the model.
        with torch._C.DisableTorchFunction():
            return tuple(
                Value(place=place, spec=describe(tensor), memory=self._memories.number(tensor))
                for place, tensor in located
            )


class _Memories:
    """Numbers the memory that tensors lie in, and keeps none of it."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._count = 0

    def number(self, tensor: torch.Tensor) -> int | None:
        """The number of a tensor's memory; None for a tensor without one, as sparse ones are."""
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return None
        known = self._known.get(id(storage))
        # The id of a storage that is gone may come back as another one's.
        if known is None or known[0]() is not storage:
            known = self._known[id(storage)] = weakref.ref(storage), self._count
            self._count += 1
        return known[1]


@unbroken
def recording(observer: Seer) -> Iterator[Seer]:
    """Show an observer the calls of its thread until the block ends, however it ends."""
    with standing_by():
        try:
            start_showing(observer)
            yield observer
        finally:
            surely(stop_showing, observer)


@unbroken
def standing_by() -> Iterator[None]:
    """Let observers come and go in the block without changing a class; alone it shows nothing.

    Python has faster ways to call the modules of a class that does not change all the time.
    """
    block = object()
    try:
        _stand_in(block)
        yield
    finally:
        surely(_step_back, block)


class _Several:
    """Several observers of one thread, as one."""

    def __init__(self, observers: tuple[Observer, ...]) -> None:
        self.observers = observers
        self.thread = observers[0].thread
        self._depths: list[list[tuple[Observer, int]]] = []

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
        """A call begins, for each of them at its own depth."""
        depths = []
        for one in self.observers:
            try:
                depths.append((one, one.enter(module, args, kwargs)))
            except Exception as problem:  # noqa: BLE001, PERF203 - see _give_up
                _give_up(one, problem)
        self._depths.append(depths)
        return len(self._depths) - 1

    def leave(self, depth: int, output: Any = None, error: BaseException | None = None) -> None:
        """The call at a depth returned or raised."""
        depths = self._depths[depth]
        del self._depths[depth:]
        meant: Exception | None = None
        for one, its_depth in depths:
            try:
                _leave(one, its_depth, output, error)
            except Exception as problem:  # noqa: BLE001, PERF203 - the others are told first
                meant = meant or problem
        if meant is not None:
            raise meant

    def missed(self, problem: Exception) -> None:
        """Errors of ours stay inside, so this one was raised on purpose."""
        raise problem


_lock = threading.RLock()
_observers: dict[int, Observer] = {}
"""Who is shown the calls of a thread, by the thread."""
_original: Callable[..., Any] = nn.Module.__call__
_is_torchs = True
"""Whether that is torch's own function, not another's in its place."""
_standing: set[object] = set()
"""The blocks that need our function in the place of torch's."""
_limits = (0, 0)
"""The recursion limit before, and while we stand in between."""
_fence = Fence("Torchglass sees no more calls of this block")
_DYNAMO_KEEPS_CALL = ("torch._dynamo.utils", "torch._dynamo.variables.nn_module")
_thread = threading.get_ident
_is_compiling = torch.compiler.is_compiling
_tracing_state = torch._C._get_tracing_state


def _renew_lock() -> None:
    """In a forked child nobody releases a lock that another thread of the parent held."""
    global _lock  # noqa: PLW0603 - see _stand_in
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def _stand_in(block: object) -> None:
    global _original, _is_torchs, _limits  # noqa: PLW0603 - torch has one such method
    with _lock:
        _standing.add(block)
        if nn.Module.__call__ is not _call:
            _original = nn.Module.__call__
            _is_torchs = _is_plain(_original)
            limit = sys.getrecursionlimit()
            # Each level of a model takes four frames instead of three while we stand in between.
            _limits = limit, limit + limit // 3
            sys.setrecursionlimit(_limits[1])
            _call.__code__ = _code()
            nn.Module.__call__ = _call  # type: ignore[method-assign]


def _step_back(block: object) -> None:
    with _lock:
        _standing.discard(block)
        if _standing:
            return
        if nn.Module.__call__ is _call:
            nn.Module.__call__ = _original  # type: ignore[method-assign]
        if sys.getrecursionlimit() == _limits[1]:
            sys.setrecursionlimit(_limits[0])
        # Imported while we stood in for it, dynamo took our function for torch's own.
        for module in filter(None, map(sys.modules.get, _DYNAMO_KEEPS_CALL)):
            if module.__dict__.get("unpatched_nn_module_call") is _call:
                module.__dict__["unpatched_nn_module_call"] = _original


def start_showing(observer: Observer) -> None:
    """Show an observer the calls of its thread from now on; someone is standing by."""
    with _lock:
        others = tuple(other for other in _shown(observer.thread) if other is not observer)
        _show(observer.thread, (*others, observer))


def stop_showing(observer: Observer) -> None:
    """Show an observer nothing more."""
    with _lock:
        others = tuple(other for other in _shown(observer.thread) if other is not observer)
        _show(observer.thread, others)


def _give_up(observer: Observer, problem: Exception) -> None:
    """An error came out of an observer: it is shown no more, and the user's call goes on.

    What an observer raises on purpose, its `missed` raises again.
    """
    missed = getattr(observer, "missed", _fence.caught)
    missed(problem)
    with _fence:
        stop_showing(observer)


def _leave(observer: Observer, depth: int, output: Any, error: BaseException | None) -> None:
    try:
        observer.leave(depth, output, error)
    except Exception as problem:  # noqa: BLE001 - see _give_up
        _give_up(observer, problem)


def _shown(thread: int) -> tuple[Observer, ...]:
    shown = _observers.get(thread)
    if shown is None:
        return ()
    return shown.observers if isinstance(shown, _Several) else (shown,)


def _show(thread: int, observers: tuple[Observer, ...]) -> None:
    if observers:
        _observers[thread] = observers[0] if len(observers) == 1 else _Several(observers)
    else:
        _observers.pop(thread, None)
    _call.__code__ = _code()


def _code() -> CodeType:
    """What runs at a call: while nobody looks it is torch's own code, at torch's own cost."""
    return CALL_CODE if _observers or not _is_plain(_original) else _original.__code__


def _is_plain(call: Callable[..., Any]) -> TypeGuard[FunctionType]:
    """Whether a function is torch's own, and asks for nothing but what modules have."""
    # What another has put in its place, or a later torch, may need globals that are not ours.
    return (
        isinstance(call, FunctionType)
        and call is nn.Module.__dict__.get("_wrapped_call_impl")
        and not call.__code__.co_freevars
        and set(call.__code__.co_names) <= {"_call_impl", "_compiled_call_impl"}
    )


def _call(self: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    # Constant while torch.compile looks at this function, so that nothing below reaches its graph.
    if _is_compiling() or _tracing_state() is not None:
        return _original(self, *args, **kwargs)
    observer = _observers.get(_thread())
    if observer is None:
        return _original(self, *args, **kwargs)
    try:
        depth = observer.enter(self, args, kwargs)
    except Exception as problem:  # noqa: BLE001 - see _give_up
        _give_up(observer, problem)
        return _original(self, *args, **kwargs)
    try:
        if _is_torchs and self._compiled_call_impl is None:
            # All that torch's own function does, and a frame less.
            output = self._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
        else:
            output = _original(self, *args, **kwargs)
    except BaseException as error:
        _leave(observer, depth, None, error)
        raise
    try:
        observer.leave(depth, output)
    except Exception as problem:  # noqa: BLE001 - see _give_up
        _give_up(observer, problem)
    return output


CALL_CODE = _call.__code__
"""The frame between a module and its caller while observers are shown the calls."""

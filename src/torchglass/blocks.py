"""With-blocks around the user's code that always clean up, however they end.

    @uninterruptible
    def recording(observer):
        try:
            _start(observer)
            yield observer
        finally:
            undo_reliably(_stop, observer)

Ctrl-C cannot interrupt the set-up or the clean-up of such a block. A clean-up that fails is tried
again, so it must be safe to run twice.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import signal
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, Generic, ParamSpec, TypeVar, cast

from torchglass.errors import Fence, TorchglassError

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGALRM", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)
"""Signals whose handlers may raise: Ctrl-C, and what schedulers and timeouts send."""

_fence = Fence("Torchglass could not clean up completely")


class deferred_signals:  # noqa: N801 - used like contextlib.suppress
    """A with-block that defers Python's signal handlers to its end.

    Signals are handled in the main thread only, so it does nothing elsewhere. Nor does it inside
    another one: changing handlers takes longer than most of what is done in such a block.
    """

    __slots__ = ("_came", "_handlers")
    _is_open = False
    """Whether such a block is open in the main thread."""

    def __init__(self) -> None:
        self._handlers: list[tuple[int, Callable[[int, FrameType | None], Any]]] = []
        self._came: list[tuple[int, FrameType | None]] = []

    def __enter__(self) -> None:
        if deferred_signals._is_open:
            return
        try:
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers.append((number, handler))
                    signal.signal(number, self._note)
            deferred_signals._is_open = bool(self._handlers)
        except ValueError:
            # Not the main thread.
            self._handlers.clear()
        except BaseException:
            self._restore()
            raise

    def __exit__(self, *error: object) -> None:
        if not self._handlers:
            return
        handlers = dict(self._handlers)
        deferred_signals._is_open = False
        self._restore()
        for number, frame in self._came:
            handlers[number](number, frame)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.append((number, frame))

    def _restore(self) -> None:
        try:
            self._set_handlers()
        except BaseException:
            # A handler that was already restored has raised.
            self._set_handlers()
            raise

    def _set_handlers(self) -> None:
        for number, handler in self._handlers:
            signal.signal(number, handler)


class _UnbrokenBlock(contextlib._GeneratorContextManager[T_co], Generic[T_co]):
    """A generator's with-block that signals cannot interrupt.

    If a signal arrives before the first line of `__exit__`, Python closes the generator when it
    frees the block.
    """

    def __enter__(self) -> T_co:
        try:
            with deferred_signals():
                return super().__enter__()
        except BaseException:
            self._close()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        try:
            with deferred_signals():
                return super().__exit__(kind, error, traceback)
        except BaseException:
            self._close()
            raise

    def _close(self) -> None:
        with deferred_signals():
            self.gen.close()


def uninterruptible(
    function: Callable[P, Iterator[T]],
) -> Callable[P, contextlib._GeneratorContextManager[T]]:
    """`contextlib.contextmanager` whose set-up and clean-up cannot be interrupted."""

    @functools.wraps(function)
    def block(*args: P.args, **kwargs: P.kwargs) -> contextlib._GeneratorContextManager[T]:
        return _UnbrokenBlock(cast(Any, function), args, kwargs)

    return block


@uninterruptible
def combined_blocks(*blocks: contextlib.AbstractContextManager[Any]) -> Iterator[list[Any]]:
    """Several blocks as one, with uninterrupted set-up and clean-up; gives their results."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(block) for block in blocks]


def undo_reliably(undo: Callable[..., object], *arguments: Any) -> None:
    """Run a clean-up; if it fails, warn and run it again."""
    try:
        undo(*arguments)
    except Exception as problem:  # noqa: BLE001 - no error of ours may stop the user's run
        _fence.caught(problem)
        with _fence:
            undo(*arguments)


class FencedBlock(contextlib.AbstractContextManager[T], Generic[T]):
    """A block around the user's training that no error of ours can stop or prevent.

    A mistake of the user (`TorchglassError` at the start) is raised.
    """

    def __init__(
        self, block: contextlib.AbstractContextManager[T], otherwise: Callable[[], T], lost: str
    ) -> None:
        """`otherwise` gives the result if the block cannot start."""
        self._block = block
        self._otherwise = otherwise
        self._fence = Fence(lost)
        self._has_begun = False

    def __enter__(self) -> T:
        try:
            result = self._block.__enter__()
        except TorchglassError:
            raise
        except Exception as problem:  # noqa: BLE001 - no error of ours may stop the user's run
            self._fence.caught(problem)
            return self._otherwise()
        self._has_begun = True
        return result

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        if not self._has_begun:
            return None
        try:
            return self._block.__exit__(kind, error, traceback)
        except Exception as problem:
            # The user's own exception takes precedence over ours.
            if problem is error or (error is None and isinstance(problem, TorchglassError)):
                raise
            self._fence.caught(problem)
            return None


@uninterruptible
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector while many lasting objects are created.

    It is restored afterwards. If two threads are in such a block, the first to end restores it.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()

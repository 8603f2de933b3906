"""With-blocks of ours around the user's code: nothing of ours stays, however they end.

    @unbroken
    def recording(observer):
        try:
            _start(observer)
            yield observer
        finally:
            surely(_stop, observer)

Ctrl-C cannot tear the beginning or the end of such a block apart. What undoes its beginning is
tried again if it fails, so it must do no harm when it runs twice.
"""

from __future__ import annotations

import contextlib
import functools
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
"""Those whose handlers are known to raise: Ctrl-C, and what schedulers and timeouts send."""

_fence = Fence("Torchglass could not clean up completely")


class uninterrupted:  # noqa: N801 - used like contextlib.suppress
    """A with-block in which no signal handler of Python's runs; those that were due run at its end.

    Signals are handled in the main thread only, so elsewhere it does nothing.
    """

    __slots__ = ("_came", "_handlers")

    def __init__(self) -> None:
        self._handlers: list[tuple[int, Callable[[int, FrameType | None], Any]]] = []
        self._came: list[tuple[int, FrameType | None]] = []

    def __enter__(self) -> None:
        try:
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers.append((number, handler))
                    signal.signal(number, self._note)
        except ValueError:
            # Another thread than the main one.
            self._handlers.clear()
        except BaseException:
            self._restore()
            raise

    def __exit__(self, *error: object) -> None:
        handlers = dict(self._handlers)
        self._restore()
        for number, frame in self._came:
            handlers[number](number, frame)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.append((number, frame))

    def _restore(self) -> None:
        try:
            self._set_handlers()
        except BaseException:
            # One that was set already has raised.
            self._set_handlers()
            raise

    def _set_handlers(self) -> None:
        for number, handler in self._handlers:
            signal.signal(number, handler)


class _UnbrokenBlock(contextlib._GeneratorContextManager[T_co], Generic[T_co]):
    """A generator's with-block that signals cannot tear apart.

    If a signal comes before the first line of `__exit__`, Python ends the generator when it frees
    the block.
    """

    def __enter__(self) -> T_co:
        try:
            with uninterrupted():
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
            with uninterrupted():
                return super().__exit__(kind, error, traceback)
        except BaseException:
            self._close()
            raise

    def _close(self) -> None:
        with uninterrupted():
            self.gen.close()


def unbroken(
    function: Callable[P, Iterator[T]],
) -> Callable[P, contextlib._GeneratorContextManager[T]]:
    """`contextlib.contextmanager` for blocks whose beginning and end must happen whole."""

    @functools.wraps(function)
    def block(*args: P.args, **kwargs: P.kwargs) -> contextlib._GeneratorContextManager[T]:
        return _UnbrokenBlock(cast(Any, function), args, kwargs)

    return block


@unbroken
def together(*blocks: contextlib.AbstractContextManager[Any]) -> Iterator[list[Any]]:
    """Several blocks as one, which begins and ends whole; what each of them gives."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(block) for block in blocks]


def surely(undo: Callable[..., object], *arguments: Any) -> None:
    """Undo something; if that fails try again, as it must do no harm to undo it twice."""
    try:
        undo(*arguments)
    except Exception as problem:  # noqa: BLE001 - no error of ours may stop the user's run
        _fence.caught(problem)
        with _fence:
            undo(*arguments)


class FencedBlock(contextlib.AbstractContextManager[T], Generic[T]):
    """A block around the user's training, which no error of ours can stop or keep from starting.

    What the user did wrong, a `TorchglassError` at its beginning, is raised as it is.
    """

    def __init__(
        self, block: contextlib.AbstractContextManager[T], otherwise: Callable[[], T], lost: str
    ) -> None:
        """`otherwise` gives the result of a block that could not begin."""
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
            # What the user's own code raised comes first, whatever happens to us meanwhile.
            if problem is error or (error is None and isinstance(problem, TorchglassError)):
                raise
            self._fence.caught(problem)
            return None

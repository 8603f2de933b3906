"""Every error that Torchglass raises on purpose, and how no other one harms the user's run.

* TorchglassError
  x TargetError        the target does not exist or cannot be read
    + UnsafeFileError  reading it would run code from the file
  x CaptureError       the model could not be observed
  x StoreError         a run could not be written or read
    + SchemaError      it was written by another version
  x ViewError          a view cannot show what was requested
  x LookupFailedError  no op, or more than one, has the requested name
  x NonFiniteError     an op produced NaN or Inf under `guard(on="raise")`

Exceptions of the user's own code are never wrapped. An error of ours inside the user's run becomes
a TorchglassWarning and stops nothing: see `Fence` and `FencedBlock`.

Blocks around the user's code always clean up, however they end:

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
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field, fields, make_dataclass
from types import FrameType, TracebackType
from typing import Any, Generic, ParamSpec, TypeVar, cast

_ON_THE_WAY = ("torchglass", "torch", "contextlib")
"""Packages that are skipped to find the user's line for a warning."""


class TorchglassError(Exception):
    """The base of all errors that Torchglass raises on purpose."""


class TargetError(TorchglassError, ValueError):
    """The target does not exist or cannot be read."""


class UnsafeFileError(TargetError):
    """Reading the file would run code from it."""


class CaptureError(TorchglassError):
    """The model could not be observed."""


class StoreError(TorchglassError):
    """A run could not be written or read."""


class SchemaError(StoreError):
    """The run was written by another version of Torchglass."""


class ViewError(TorchglassError, ValueError):
    """A view cannot show what was requested."""


class TrainingStoppedError(TorchglassError):
    """The training is broken, and `watch` was told to stop it."""


class TorchglassWarning(RuntimeWarning):
    """An error of ours inside the user's run, which continues."""


def warn(message: str, at: tuple[str, int] | None = None) -> None:
    """Warn without raising, even where warnings are errors.

    `at` is the file and line of the warning; by default the user's current line.
    """
    try:
        if at is not None:
            warnings.warn_explicit(message, TorchglassWarning, *at)
        else:
            warnings.warn(message, TorchglassWarning, stacklevel=_level_of_user())
    except TorchglassWarning:
        import logging

        logging.getLogger("torchglass").warning(message)


def error_line(error: BaseException) -> str:
    """An exception in one line, whatever its own text does."""
    try:
        message = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - an error whose text raises is still an error with a type
        message = ""
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


class Fence:
    """Turns errors of ours into warnings, each one once, so that they never stop the user's run.

    with fence:
        measure(tensor)             # an error in here is a warning

    except Exception as problem:    # the same, if a with-block costs too much
        fence.caught(problem)
    """

    __slots__ = ("_lost", "_told")

    def __init__(self, lost: str) -> None:
        """`lost` says what is missing: "some statistics were not recorded"."""
        self._lost = lost
        self._told: set[str] = set()

    def caught(self, problem: BaseException) -> None:
        """Warn of an error if it is new. Never raises."""
        try:
            message = f"{type(problem).__name__}: {problem}"
            if message in self._told or len(self._told) >= _MOST_WARNINGS:
                return
            self._told.add(message)
            where = _where_ours(problem)
            hint = f" This is a bug in Torchglass ({where}): please report it." if where else ""
            warn(f"{self._lost}; the training continues: {message}.{hint}")
        except Exception:  # noqa: BLE001 - at the end of the stack even a warning can overflow it
            return

    def __enter__(self) -> None:
        """Nothing to do: `__exit__` catches."""

    def __exit__(
        self, kind: object, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self.caught(error)
        return True


_MOST_WARNINGS = 5
"""How many different errors one fence warns of."""


def _where_ours(problem: BaseException) -> str:
    """Our module and line that an error came from; "" if it is not a bug of ours."""
    if isinstance(problem, TorchglassError):
        return ""
    found, name = "", ""
    traceback = problem.__traceback__
    while traceback is not None:
        name = str(traceback.tb_frame.f_globals.get("__name__")).partition(".")[0]
        if name == "torchglass":
            found = f"{traceback.tb_frame.f_globals['__name__']}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    # An error raised in other code, such as a function of the user's, is not ours.
    return found if name in _ON_THE_WAY else ""


def _level_of_user() -> int:
    """The stack level of the user's innermost line; that of `warn` if there is none."""
    frame, level = sys._getframe(1), 1
    while str(frame.f_globals.get("__name__")).partition(".")[0] in _ON_THE_WAY:
        if frame.f_back is None:
            return 1
        frame, level = frame.f_back, level + 1
    return level


class LookupFailedError(TorchglassError, KeyError):
    """No op, or more than one, has the requested name."""

    # KeyError would quote its message like a key.
    __str__ = Exception.__str__


P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_SIGNALS = tuple(
    int(getattr(signal, name))
    for name in ("SIGINT", "SIGTERM", "SIGALRM", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)
"""Signals whose handlers may raise: Ctrl-C, and what schedulers and timeouts send."""
# The functions behind those of `signal`, which make an enum of every number: that takes ten times
# as long, and some blocks are entered in every step of a training.
_signal: Any = sys.modules["_signal"]

_fence = Fence("Torchglass could not clean up completely")


class deferred_signals:  # noqa: N801 - used like contextlib.suppress
    """A with-block that defers Python's signal handlers to its end.

    Signals are handled in the main thread only, so it does nothing elsewhere. It also does nothing
    inside another one: changing handlers takes longer than most of what such a block does.
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
                handler = _signal.getsignal(number)
                if callable(handler):
                    self._handlers.append((number, handler))
                    _signal.signal(number, self._note)
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
            _signal.signal(number, handler)


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


def quickly(record: Callable[P, T]) -> Callable[P, T]:
    """A constructor of a frozen dataclass with slots that takes a fraction of the time.

    A frozen class calls a function to set each field. Here a record starts as an instance of a
    class with the same slots that is not frozen, and changes its class once it is filled.
    """

    def freeze(self: Any) -> None:
        self.__class__ = record

    same_fields = [
        (one.name, one.type, field(default=one.default, default_factory=one.default_factory))
        for one in fields(record)  # type: ignore[arg-type]
    ]
    return make_dataclass(
        getattr(record, "__name__", ""),
        same_fields,
        namespace={"__post_init__": freeze},
        slots=True,
        kw_only=True,
    )


_FEWER = 16
_steps_recorded: set[object] = set()
_usual_thresholds: tuple[int, int, int] | None = None


def collect_less(step: object) -> None:
    """Let the garbage collector run less often until `collect_as_usual` is called with this object.

    Thousands of objects live through a recorded step, and every collection visits all of them.
    """
    global _usual_thresholds  # noqa: PLW0603 - there is one garbage collector
    if not _steps_recorded:
        _usual_thresholds = gc.get_threshold()
        first, *others = _usual_thresholds
        gc.set_threshold(first * _FEWER, *others)
    _steps_recorded.add(step)


def collect_as_usual(step: object) -> None:
    """End `collect_less`; the last one restores what was there before, unless that has changed."""
    if step not in _steps_recorded:
        return
    _steps_recorded.discard(step)
    if not _steps_recorded and _usual_thresholds is not None:
        first, *others = _usual_thresholds
        if gc.get_threshold() == (first * _FEWER, *others):
            gc.set_threshold(first, *others)


def expect_module(model: object, verb: str) -> None:
    """Reject a model that is not an nn.Module."""
    # Where torch was never imported there are no modules.
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        raise TargetError(f"{verb} expects an nn.Module, not {type(model).__name__}")


def expect_one_of(option: str, value: object, known: Sequence[str]) -> None:
    """Reject a value that is not one of the known ones."""
    if value not in known:
        raise CaptureError(f"{option} must be one of {', '.join(known)}, not {value!r}")


def expect_names(option: str, names: Iterable[str]) -> tuple[str, ...]:
    """The names passed to an option, as a tuple."""
    found = [names] if isinstance(names, str) else names
    if not isinstance(found, Iterable):
        raise TargetError(f"{option} must be a name or a list of names, not {names!r}")
    every = tuple(found)
    for name in every:
        if not isinstance(name, str):
            raise TargetError(
                f"{option} must be a name or a list of names, but {name!r} is not a string"
            )
    return every


def expect_at_least(least: int, option: str, value: object) -> None:
    """Reject a value that is not an integer, or is too small."""
    if not isinstance(value, int) or value < least:
        raise CaptureError(f"{option} must be {least} or more, not {value!r}")

"""The program Torchglass runs in: how it ends, its commit, and whether a user sits at it."""

from __future__ import annotations

import contextlib
import dis
import functools
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn, TextIO

from torchglass.errors import TargetError

WAIT = "TORCHGLASS_WAIT"
"""Environment variable: 1 keeps the page after the program has ended, 0 does not."""

_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def wait_from_environment() -> bool | None:
    """What TORCHGLASS_WAIT says; None if it is not set."""
    text = os.environ.get(WAIT, "").strip().lower()
    if text and text not in (*_YES, *_NO):
        raise TargetError(f"{WAIT}={text!r} is not 1 or 0")
    return text in _YES if text else None


def before_executors_end(call: Callable[[], object]) -> None:
    """Call a function when the program ends, as long as thread pools still take work.

    Functions of `atexit` come later: a network library can resolve no name then.
    """
    # It registers its own end when it is imported, and the last one that registers comes first.
    import concurrent.futures.thread  # noqa: F401

    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        # The program may be ending already.
        with contextlib.suppress(RuntimeError):
            register(call)


class HostProgram:
    """The program of this process until it ends. `close` removes everything it added."""

    def __init__(self) -> None:
        self._process = os.getpid()
        # A test run must continue with the next test.
        self._is_test = "_pytest" in sys.modules
        self._frame = _main_frame()
        self._exit = sys.exit
        self._exit_code: object = None
        self._success: bool | None = None
        sys.exit = self._noted_exit = self._make_exit()

    def is_here(self) -> bool:
        """Whether this is the process itself, not a fork of it."""
        return os.getpid() == self._process

    def may_stay(self, wait: bool | None) -> bool:
        """Whether the program may stay after its end. `wait` is the user's choice, if any.

        It stays if it ended without an error and a terminal can interrupt it. With `wait=True` it
        needs no terminal.
        """
        if wait is False or self._success is False or self._is_test or is_interactive():
            return False
        return wait is True or (self._success is True and can_be_interrupted())

    def close(self) -> None:
        """The program has ended."""
        self._success = self._has_succeeded()
        self._frame = None
        if sys.exit is self._noted_exit:
            sys.exit = self._exit

    def _has_succeeded(self) -> bool | None:
        """Whether the exit code is 0; None if it is unknown, as in `sys.exit(main())`."""
        if self._frame is not None and _has_returned(self._frame):
            return True
        # Python sets it when an uncaught error ends the program, but not for SystemExit.
        if hasattr(sys, "last_type"):
            return False
        return None if self._exit_code is None else self._exit_code == 0

    def _make_exit(self) -> Callable[..., NoReturn]:
        """`sys.exit` that also stores the exit code."""

        @functools.wraps(self._exit)
        def note_and_exit(status: object = None, /) -> NoReturn:
            if threading.current_thread() is threading.main_thread():
                self._exit_code = 0 if status is None else status
            self._exit(status)  # type: ignore[arg-type]

        return note_and_exit


def is_interactive() -> bool:
    """Whether a user types commands: at a Python prompt or in a notebook."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive) or in_notebook()


def in_notebook() -> bool:
    """Whether this code runs in a Jupyter kernel. A program may import ipykernel without one."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def in_event_loop() -> bool:
    """Whether an event loop runs in this thread, so that no other program can take the terminal."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def has_terminal() -> bool:
    """Whether stdin and stdout are a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def can_be_interrupted() -> bool:
    """Whether a user at a terminal sees stderr and can interrupt this program.

    A pipe counts if a shell created it, as in `python train.py 2>&1 | tee log`.
    """
    errors = _file_number(sys.__stderr__)
    if errors is None:
        return False
    if os.isatty(errors):
        return _is_in_foreground(errors)
    typed = _file_number(sys.__stdin__)
    return (
        typed is not None
        and os.isatty(typed)
        and _is_in_foreground(typed)
        and stat.S_ISFIFO(os.fstat(errors).st_mode)
        and _is_job_of_shell()
    )


@contextlib.contextmanager
def ending_quietly() -> Iterator[None]:
    """End the block silently on Ctrl-C, SIGTERM or a closed terminal."""
    with contextlib.ExitStack() as undo:
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and _can_handle(number):
                undo.callback(signal.signal, number, signal.signal(number, _interrupt))
        undo.enter_context(contextlib.suppress(KeyboardInterrupt))
        yield


@contextlib.contextmanager
def ignoring_interrupts() -> Iterator[None]:
    """Ignore further Ctrl-C while we clean up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _can_handle(number: int) -> bool:
    """Whether a signal has its default handler, so that nobody else expects it."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getsignal(number) is signal.SIG_DFL


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _main_frame() -> FrameType | None:
    """The frame of the script or module that Python was started with."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    found = None
    while frame is not None:
        is_main = frame.f_globals.get("__name__") == "__main__"
        if is_main and frame.f_code.co_name == "<module>":
            found = frame
        frame = frame.f_back
    return found


def _has_returned(frame: FrameType) -> bool:
    """Whether a finished frame ran to its end instead of raising."""
    code = frame.f_code.co_code
    at = frame.f_lasti
    return 0 <= at < len(code) and dis.opname[code[at]].startswith("RETURN_")


def _file_number(stream: TextIO | None) -> int | None:
    """The file descriptor of a standard stream; None if there is none or it is closed."""
    try:
        number = None if stream is None else stream.fileno()
        if number is not None:
            os.fstat(number)
    except (OSError, ValueError):
        return None
    return number


def _is_in_foreground(terminal: int) -> bool:
    if not hasattr(os, "tcgetpgrp"):
        return True
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        # Not the controlling terminal of this process.
        return True


def _is_job_of_shell() -> bool:
    """Whether a shell runs this process, or its pipeline, as a job."""
    return hasattr(os, "getpgid") and os.getpgid(os.getppid()) != os.getpgrp()


def git_commit() -> str:
    """The commit that is checked out where the program is; "" if there is none.

    It is read from git's files: starting git would take longer than everything else here. So
    changes that are not committed go unnoticed.
    """
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    folders = [Path.cwd()]
    if script is not None and "site-packages" not in script:
        folders.insert(0, Path(script).absolute().parent)
    for folder in folders:
        try:
            if (found := _git_folder(folder)) is not None:
                return _commit_in(found)
        except (OSError, ValueError):  # noqa: PERF203 - two folders
            continue
    return ""


def _git_folder(folder: Path) -> Path | None:
    """The folder with git's files of the repository that a folder is in."""
    for above in (folder, *folder.parents):
        place = above / ".git"
        if place.is_dir():
            return place
        if place.is_file():  # A worktree or a submodule: the file names the folder.
            named = place.read_text(encoding="utf-8").partition("gitdir:")[2].strip()
            return above / named
    return None


def _commit_in(git: Path) -> str:
    head = (git / "HEAD").read_text(encoding="utf-8").strip()
    branch = head.partition("ref: ")[2]
    if not branch:
        return head
    shared = git / "commondir"
    common = git / shared.read_text(encoding="utf-8").strip() if shared.exists() else git
    for place in (git, common):
        if (place / branch).is_file():
            return (place / branch).read_text(encoding="utf-8").strip()
    for line in (common / "packed-refs").read_text(encoding="utf-8").splitlines():
        commit, _, name = line.partition(" ")
        if name == branch:
            return commit
    return ""

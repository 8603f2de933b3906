"""Programs that run in a terminal of their own, with somebody at the keys."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import final

_SECONDS = 120
"""Longer than anything takes on a busy machine."""


def run_in_terminal(
    command: list[str],
    *steps: tuple[list[str], bytes],
    columns: int = 160,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> tuple[str, int]:
    """What a program shows until it ends, and its exit code.

    In each step some keys are pressed, once all words have been seen since the keys before.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    waiting = list(steps)
    known = os.environ if environment is None else environment
    with (
        # What one program remembers, the next must not know.
        tempfile.TemporaryDirectory() as config,
        subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={
                # The size is the terminal's own, whatever the tests run in.
                **{key: text for key, text in known.items() if key not in ("COLUMNS", "LINES")},
                "TERM": "xterm-256color",
                "XDG_CONFIG_HOME": config,
            },
            cwd=folder,
        ) as process,
    ):
        os.close(theirs)
        screen = since = ""
        for text in _shown(ours):
            screen, since = screen + text, since + text
            if waiting and all(word in since for word in waiting[0][0]):
                os.write(ours, waiting.pop(0)[1])
                since = ""
        os.close(ours)
        if waiting:
            process.kill()
    return screen, process.returncode


def python_in_terminal(
    code: str, *steps: tuple[list[str], bytes], folder: Path | None = None
) -> tuple[str, int]:
    """The same for some Python."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code]
    return run_in_terminal(command, *steps, folder=folder, environment=environment)


def _shown(terminal: int) -> Iterator[str]:
    """What the terminal is sent, until its program has ended or never will."""
    # A character may arrive in two parts.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    deadline = time.monotonic() + _SECONDS
    # Linux raises when the last program has closed the terminal.
    with contextlib.suppress(OSError):
        while select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))[0]:
            yield decoder.decode(os.read(terminal, 65536))


_TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""A program that becomes another one, which the terminal belongs to."""


@final
class Terminal:
    """A terminal of its own for a program, whose keys do what they do at a desk: Ctrl-C interrupts.

    with Terminal([sys.executable, "train.py"]) as terminal:
        terminal.read_until("loss")
        terminal.press(INTERRUPT)
        assert terminal.exit_code() == 0
    """

    INTERRUPT = b"\x03"

    def __init__(
        self, command: list[str], *, folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.screen = ""
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 250, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, *command],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(environment or {})},
            cwd=folder,
            start_new_session=True,
        )
        os.close(theirs)

    def read_until(self, text: str) -> str:
        """What was shown up to a text, which must come."""
        for shown in self._new():
            self.screen += shown
            if text in self.screen:
                return self.screen
        raise AssertionError(f"{text!r} is not in {self.screen!r}")

    def press(self, keys: bytes) -> None:
        """Type."""
        os.write(self._ours, keys)

    def exit_code(self) -> int:
        """The exit code of the program, once it has ended."""
        for shown in self._new():
            self.screen += shown
        return self.process.wait(_SECONDS)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._ours)
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _new(self) -> Iterator[str]:
        yield from _shown(self._ours)

"""Where a training that is watched is shown, besides the run file that is always written.

A backend is named by the user: "standalone" serves the page from this process, "none" shows
nothing, and the others hand what was measured to the tool that they are named after.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from torchglass.api.host_program import (
    Program,
    ending_quietly,
    ignoring_interrupts,
    wait_from_environment,
)
from torchglass.errors import TargetError, ViewError, warn
from torchglass.records.findings import Finding
from torchglass.records.model import Model
from torchglass.records.reader import Document, Reader, Sink
from torchglass.records.run import Ending, ended
from torchglass.records.series import Frame, Kind, Series, SeriesId

if TYPE_CHECKING:
    from torchglass.views.web.server import Server


_MOST_TOLD = 3
"""So many problems fit into what is said at the end of a training."""


def _nothing() -> None:
    """There is no training to ask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What a backend may ask of the training that it shows."""

    show_step: Callable[[], None] = _nothing
    """Shows the current step at once, if its update is over."""
    catch_up: Callable[[], None] = _nothing
    """Shows the current step however far it is, and waits until the reader has all steps."""
    close: Callable[[], None] = _nothing
    """Ends the run."""


class Backend(Protocol):
    """Who is shown a run while it is recorded, and lets go of its reader in the end."""

    def follow(self, training: Training) -> None:
        """The training that will be shown, before it begins."""

    def begin(self, reader: Reader) -> None:
        """The run begins; the reader tells at any time what has been written of it."""

    def frame(self, frame: Frame, series: Mapping[SeriesId, Series]) -> None:
        """A step was measured. The reader of a file may know its series only later."""

    def close(self) -> None:
        """The run is over."""


ELSEWHERE = {
    "wandb": "torchglass.integrations.wandb",
    "tensorboard": "torchglass.integrations.tensorboard",
}
"""The modules of the backends that are other tools; each has a function `make_backend`."""

NAMES = ("standalone", "none", *ELSEWHERE)


def find_backends(
    names: str | Sequence[str], *, port: int, verbose: bool, wait: bool | None = None
) -> list[Backend]:
    """The backends of these names, none of which has begun yet."""
    chosen = [names] if isinstance(names, str) else list(names)
    found = (_find(name, port=port, verbose=verbose, wait=wait) for name in chosen)
    return [backend for backend in found if backend is not None]


def _find(name: str, *, port: int, verbose: bool, wait: bool | None) -> Backend | None:
    if name == "none":
        return None
    if name == "standalone":
        return Standalone(port, say if verbose else None, wait)
    if name not in ELSEWHERE:
        raise TargetError(f"there is no backend {name!r}; there are {', '.join(NAMES)}")
    try:
        module = importlib.import_module(ELSEWHERE[name])
        backend: Backend = module.make_backend()
    except ImportError as error:
        raise ViewError(
            f"backend={name!r} needs {name}: pip install 'torchglass[{name}]' ({error})"
        ) from error
    return backend


class Standalone:
    """Serves the page from a thread of this process, until the process ends.

    A program that has come to its end at a terminal stays until Ctrl-C, so that there is something
    to look at. One that failed, or that nobody sits in front of, ends.
    """

    def __init__(
        self, port: int, say: Callable[[str], None] | None, wait: bool | None = None
    ) -> None:
        self._port = port
        self._say = say
        self._wait = wait_from_environment() if wait is None else wait
        self._server: Server | None = None
        self._reader: Reader | None = None
        self._training = Training()

    def follow(self, training: Training) -> None:
        """The training that will be shown, before it begins."""
        self._training = training

    @property
    def url(self) -> str:
        """Where the page is."""
        return "" if self._server is None else self._server.url

    def begin(self, reader: Reader) -> None:
        """Serve the page of a run."""
        from torchglass.views.web.server import serve

        self._server = serve(reader, port=self._port)
        self._reader = reader
        if self._say is not None:
            self._say(f"Live view: {self.url}")
        _pages.add(self)

    def frame(self, frame: Frame, series: Mapping[SeriesId, Series]) -> None:
        """The page asks the reader by itself."""

    def close(self) -> None:
        """What was recorded can still be looked at."""

    def finish(self, program: Program) -> bool:
        """The program has ended: close the run, and tell the user; whether the page stays."""
        self._training.close()
        if not program.may_stay(self._wait):
            if self._say is not None and (path := self._file()):
                self._say(f"Training ended. Reopen: torchglass view {path}")
            return False
        # Whatever is not to be said, nobody shall wonder why a program does not end.
        say(f"Training ended. The page stays until Ctrl-C: {self.url}")
        if path := self._file():
            say(f"Reopen later: torchglass view {path}")
        return True

    def wait(self) -> None:
        """Serve until Ctrl-C."""
        if self._server is not None:
            self._server.wait()

    def stop(self) -> None:
        """Serve no more, and let go of the run."""
        if self._server is not None:
            self._server.close()
        if self._reader is not None:
            self._reader.close()

    def _file(self) -> str:
        """The run file as a shell takes it; "" for a run in memory."""
        path = getattr(self._reader, "path", None)
        return "" if path is None else shlex.quote(str(path))


class _Pages:
    """All pages that this process serves: they stay together, and end together."""

    def __init__(self) -> None:
        self._all: list[Standalone] = []
        self._program: Program | None = None

    def add(self, page: Standalone) -> None:
        """A page is served from now on."""
        if self._program is None:
            self._program = Program()
            atexit.register(self._end)
        self._all.append(page)

    def _end(self) -> None:
        program, self._program = self._program, None
        pages, self._all = self._all, []
        if program is None or not program.is_here():
            return
        program.close()
        with ending_quietly():
            staying = [page for page in pages if page.finish(program)]
            for page in staying[:1]:
                page.wait()
        with ignoring_interrupts():
            for page in pages:
                page.stop()


_pages = _Pages()


class Shown:
    """A sink whose frames are shown to backends, too. An error of theirs stops nothing."""

    def __init__(self, sink: Sink, backends: Sequence[Backend]) -> None:
        self._sink = sink
        self._backends = list(backends)
        self._series: dict[SeriesId, Series] = {}

    def put_model(self, model: Model) -> None:
        """Keep the structure; a later one replaces it."""
        self._sink.put_model(model)

    def put_document(self, document: Document) -> None:
        """Keep a record of the whole run; a later one of its class replaces it."""
        self._sink.put_document(document)

    def series(self, path: str, name: str, kind: Kind = "scalar") -> SeriesId:
        """The id of the series with this place and name, made on first use."""
        own = self._sink.series(path, name, kind)
        if own not in self._series:
            self._series[own] = Series(id=own, path=path, name=name, kind=kind)
        return own

    def put_frame(self, frame: Frame) -> None:
        """Keep what was measured at one step, and show it."""
        self._sink.put_frame(frame)
        self._each("frame", frame, self._series)

    def close(self) -> None:
        """Write what is still waiting, then end the run everywhere."""
        self._sink.close()
        self._each("close")

    def _each(self, method: str, *arguments: Any) -> None:
        for backend in tuple(self._backends):
            self._try(backend, method, arguments)

    def _try(self, backend: Backend, method: str, arguments: tuple[Any, ...]) -> None:
        try:
            getattr(backend, method)(*arguments)
        except Exception as error:  # noqa: BLE001 - inside someone's training
            self._backends.remove(backend)
            warn(f"{type(backend).__name__} shows no more: {type(error).__name__}: {error}")


def say(text: str) -> None:
    """Tell the user something beside what the program itself prints."""
    with contextlib.suppress(Exception):
        # A progress bar is drawn below what is written through it.
        bars = getattr(sys.modules.get("tqdm"), "tqdm", None)
        if bars is not None and getattr(bars, "_instances", None):
            bars.write(f"torchglass: {text}", file=sys.stderr)
        else:
            sys.stderr.write(f"torchglass: {text}\n")
            sys.stderr.flush()


class Reporter:
    """Tells the user of a training what was found, and how it ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._process = os.getpid()
        self._has_told = False

    def found(self, findings: Sequence[Finding]) -> None:
        """Tell of the first NaN or Inf at once."""
        first = next((one for one in findings if one.severity == "error"), None)
        if first is not None and not self._has_told:
            self._has_told = True
            say(first.message)

    def ended(self, ending: Ending, steps: int, findings: Sequence[Finding]) -> None:
        """Tell in at most five lines how a training ended, what was found, and where to look."""
        if os.getpid() != self._process:
            return
        errors = [one for one in findings if one.severity == "error"]
        problems = errors + [one for one in findings if one.severity == "warning"]
        count = f"{len(problems)} problems" if len(problems) > 1 else "1 problem"
        found = f"{count} found:" if problems else "no problems found"
        how = f"{ended(ending).full} ({steps:,} {'step' if steps == 1 else 'steps'})"
        shown = problems if len(problems) <= _MOST_TOLD else problems[: _MOST_TOLD - 1]
        rest = len(problems) - len(shown)
        lines = [f"{how}; {found}", *(f"  {one.message}" for one in shown)]
        lines += [f"  … {rest} more"] if rest else []
        lines += [f"  torchglass explore {shlex.quote(os.path.relpath(self._path))}"]
        say("\n".join(lines))

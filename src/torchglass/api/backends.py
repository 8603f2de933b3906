"""Where a watched training goes: into a run file or memory, and to the tool that shows it.

"standalone" serves the page from this process, "none" shows nothing, and the others pass the values
on to the tool of their name.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from torchglass.analyse.histograms import grid_of, merged
from torchglass.errors import TargetError, ViewError, warn
from torchglass.host_program import (
    HostProgram,
    ending_quietly,
    ignoring_interrupts,
    wait_from_environment,
)
from torchglass.records.findings import Finding, verdict
from torchglass.records.model import Histogram, Model, Stats
from torchglass.records.run import (
    Document,
    Ending,
    Frame,
    Reader,
    Series,
    SeriesId,
    Sink,
    status_of_ending,
)
from torchglass.records.step_points import Point, SeriesKind

if TYPE_CHECKING:
    from torchglass.views.web.server import Server

_MOST_TOLD = 3
"""Problems that are listed at the end of a training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingControl:
    """What a backend can ask the training to do."""

    show_step: Callable[[], None] = lambda: None
    """Shows the current step now, if its optimizer step is done."""
    catch_up: Callable[[], None] = lambda: None
    """Shows the current step even if it is incomplete, and waits until the reader has it."""
    close: Callable[[], None] = lambda: None
    """Ends the run."""


class Backend:
    """Shows a run while it is recorded. It closes its reader at the end."""

    def follow(self, training: TrainingControl) -> None:
        """Receive the training, before it begins."""

    def begin(self, reader: Reader) -> None:
        """The run begins. The reader shows everything written so far."""

    def frame(self, frame: Frame, series: Mapping[SeriesId, Series]) -> None:
        """A step was recorded. A reader of the file may learn of new series later."""

    def close(self) -> None:
        """The run has ended."""


ELSEWHERE = {
    "wandb": "WandbBackend",
    "tensorboard": "TensorBoardBackend",
    "mlflow": "MlflowBackend",
    "opentelemetry": "OpentelemetryBackend",
}
"""The backends of other tools: the class in the module of that name in `integrations`."""

NAMES = ("standalone", "none", *ELSEWHERE)


def find_backends(
    names: str | Backend | Sequence[str | Backend],
    *,
    port: int,
    verbose: bool,
    wait: bool | None = None,
) -> list[Backend]:
    """The backends with these names, not started yet; a backend itself stays."""
    chosen = [names] if isinstance(names, (str, Backend)) else list(names)
    found = (_find(name, port=port, verbose=verbose, wait=wait) for name in chosen)
    return [backend for backend in found if backend is not None]


def _find(name: str | Backend, *, port: int, verbose: bool, wait: bool | None) -> Backend | None:
    if isinstance(name, Backend):
        return name
    if name == "none":
        return None
    if name == "standalone":
        return StandaloneBackend(port, say if verbose else None, wait)
    if name not in ELSEWHERE:
        raise TargetError(f"backend must be one of {', '.join(NAMES)}, not {name!r}")
    backend: Backend = getattr(integration(name, f"backend={name!r}"), ELSEWHERE[name])()
    return backend


def integration(name: str, what: str) -> ModuleType:
    """A module of `integrations`; an error names the extra to install for `what`."""
    try:
        return importlib.import_module(f"torchglass.integrations.{name}")
    except ImportError as error:
        raise ViewError(f"{what} needs: pip install 'torchglass[{name}]' ({error})") from error


class StandaloneBackend(Backend):
    """Serves the page from a thread of this process, until the process ends.

    A program that ends without an error in a terminal stays until Ctrl-C, so that the page can be
    read. A program that failed, or has no terminal, ends.
    """

    def __init__(
        self, port: int, say: Callable[[str], None] | None, wait: bool | None = None
    ) -> None:
        self._port = port
        self._say = say
        self._wait = wait_from_environment() if wait is None else wait
        self._server: Server | None = None
        self._reader: Reader | None = None
        self._training = TrainingControl()

    def follow(self, training: TrainingControl) -> None:
        self._training = training

    @property
    def url(self) -> str:
        """The address of the page."""
        return "" if self._server is None else self._server.url

    def begin(self, reader: Reader) -> None:
        from torchglass.views.web.server import serve

        self._server = serve(reader, port=self._port)
        self._reader = reader
        if self._say is not None:
            self._say(f"Live view: {self.url}")
        _pages.add(self)

    def finish(self, program: HostProgram) -> bool:
        """Close the run at the end of the program; whether the page stays."""
        self._training.close()
        if not program.may_stay(self._wait):
            if self._say is not None and (path := self._file()):
                self._say(f"Training ended. Reopen: torchglass view {path}")
            return False
        # Also without `verbose`: a program that does not end must say why.
        say(f"Training ended. The page stays until Ctrl-C: {self.url}")
        if path := self._file():
            say(f"Reopen later: torchglass view {path}")
        return True

    def wait(self) -> None:
        """Serve until Ctrl-C."""
        if self._server is not None:
            self._server.wait()

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._reader is not None:
            self._reader.close()

    def _file(self) -> str:
        """The run file quoted for a shell; "" for a run in memory."""
        path = getattr(self._reader, "path", None)
        return "" if path is None else shlex.quote(str(path))


class _ServedPages:
    """All pages that this process serves. They open and close together."""

    def __init__(self) -> None:
        self._all: list[StandaloneBackend] = []
        self._program: HostProgram | None = None

    def add(self, page: StandaloneBackend) -> None:
        if self._program is None:
            self._program = HostProgram()
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


_pages = _ServedPages()


class BackendSink:
    """A sink that also shows its frames to backends. Their errors do not stop the training."""

    def __init__(self, sink: Sink, backends: Sequence[Backend]) -> None:
        self._sink = sink
        self._backends = list(backends)
        self._series: dict[SeriesId, Series] = {}

    def put_model(self, model: Model) -> None:
        self._sink.put_model(model)

    def put_document(self, document: Document) -> None:
        self._sink.put_document(document)

    def series(self, path: str, name: str, kind: SeriesKind = "scalar") -> SeriesId:
        own = self._sink.series(path, name, kind)
        if own not in self._series:
            self._series[own] = Series(id=own, path=path, name=name, kind=kind)
        return own

    def put_frame(self, frame: Frame) -> None:
        self._sink.put_frame(frame)
        self._each("frame", frame, self._series)

    def close(self) -> None:
        self._sink.close()
        self._each("close")

    def _each(self, method: str, *arguments: Any) -> None:
        for backend in tuple(self._backends):
            try:
                getattr(backend, method)(*arguments)
            except Exception as error:  # noqa: BLE001, PERF203 - inside someone's training
                self._backends.remove(backend)
                warn(f"{type(backend).__name__} stopped: {type(error).__name__}: {error}")


def say(text: str) -> None:
    """Print a line to stderr, above any progress bar."""
    with contextlib.suppress(Exception):
        # tqdm redraws its bar below what is written through it.
        bars = getattr(sys.modules.get("tqdm"), "tqdm", None)
        if bars is not None and getattr(bars, "_instances", None):
            bars.write(f"torchglass: {text}", file=sys.stderr)
        else:
            sys.stderr.write(f"torchglass: {text}\n")
            sys.stderr.flush()


class Reporter:
    """Tells the user what was found in a training, and how it ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._process = os.getpid()
        self._has_told = False

    def found(self, findings: Sequence[Finding]) -> None:
        """Report the first NaN or Inf at once."""
        first = next((one for one in findings if one.severity == "error"), None)
        if first is not None and not self._has_told:
            self._has_told = True
            say(first.message)

    def ended(self, ending: Ending, steps: int, findings: Sequence[Finding]) -> None:
        """Report in at most five lines how a training ended and what was found."""
        if os.getpid() != self._process:
            return
        problems = [one for one in findings if one.severity != "info"]
        count = f"{len(problems)} problems" if len(problems) > 1 else "1 problem"
        found = f"{count} found:" if problems else "no problems found"
        status = status_of_ending(ending)
        how = f"{status.full} ({steps:,} {'step' if steps == 1 else 'steps'})"
        shown = problems if len(problems) <= _MOST_TOLD else problems[: _MOST_TOLD - 1]
        rest = len(problems) - len(shown)
        lines = [
            f"{verdict(findings, status)}: {how}; {found}",
            *(f"  {one.message}" for one in shown),
        ]
        lines += [f"  … {rest} more"] if rest else []
        command = "diagnose" if problems else "explore"
        lines += [f"  torchglass {command} {shlex.quote(os.path.relpath(self._path))}"]
        say("\n".join(lines))


Counts = npt.NDArray[np.int64]
Edges = npt.NDArray[np.float64]


class NamedFrame(NamedTuple):
    """A frame with its series."""

    step: int
    time_ns: int
    points: list[tuple[Series, Point]]

    @classmethod
    def of(cls, frame: Frame, series: Mapping[SeriesId, Series]) -> NamedFrame:
        points = [(series[each], point) for each, point in frame.points.items()]
        return cls(frame.step, frame.time_ns, points)


class Thinned:
    """Evenly spaced frames of a training of unknown length, in bounded memory, and the last one."""

    def __init__(self, most_points: int) -> None:
        self._most_points = most_points
        self._all: list[NamedFrame] = []
        self._points = 0
        self._every = 1
        self._last: NamedFrame | None = None
        self.seen = 0

    def add(self, measured: NamedFrame) -> None:
        """Add a frame, which may be dropped."""
        if self.seen % self._every == 0:
            self._all.append(measured)
            self._points += len(measured.points)
        self.seen += 1
        self._last = measured
        while self._points > self._most_points and len(self._all) > 1:
            self._all = self._all[::2]
            self._every *= 2
            self._points = sum(len(each.points) for each in self._all)

    def __iter__(self) -> Iterator[NamedFrame]:
        yield from self._all
        if self._last is not None and self._last is not self._all[-1]:
            yield self._last


def bins_of(histogram: Histogram, most: int) -> tuple[Counts, Edges]:
    """Counts and edges as from `numpy.histogram`; bins are merged to at most this number."""
    if len(histogram.counts) > most:
        histogram = merged([histogram], most)
    return np.array(histogram.counts, np.int64), grid_of(histogram).edges


def numbers_of(name: str, point: Point) -> dict[str, float]:
    """The values of a point by name; for a histogram, those that its bins do not show.

    >>> numbers_of("loss", 0.5)
    {'loss': 0.5}
    """
    if isinstance(point, Histogram):
        beyond = {"nan": point.stats.nan, "inf": point.stats.inf}
        return {f"{name}.{what}": float(count) for what, count in beyond.items() if count}
    if isinstance(point, Stats):
        return {f"{name}.{what}": getattr(point, what) for what in ("min", "max", "mean", "std")}
    return {name: point}

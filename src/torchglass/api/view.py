"""The verb `view`: show a target as a web page."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeGuard, cast, overload

import numpy as np
import numpy.typing as npt

from torchglass.api.explore import report_records
from torchglass.errors import StoreError, TargetError, warn
from torchglass.host_program import in_notebook
from torchglass.records.json_data import to_json_data
from torchglass.records.measures import ReportRecord
from torchglass.records.model import Model
from torchglass.records.run import Reader, RunEntry
from torchglass.records.urls import url_of
from torchglass.results.report import Report
from torchglass.store.mirror import run_or_folder
from torchglass.targets.names import RUN_SUFFIX, changed_at, find_targets, resolve
from torchglass.targets.readers import (
    NOT_LIVE,
    is_live,
    is_reader,
    is_run,
    open_reader,
)
from torchglass.targets.result_readers import reader_of_result

if TYPE_CHECKING:
    from torch import nn

    from torchglass.results.comparison import Comparison
    from torchglass.results.runs import RunTable
    from torchglass.results.trace import Trace
    from torchglass.views.web.saved_page import NotebookPage
    from torchglass.views.web.server import Server


@overload
def view(
    target: object,
    *inputs: Any,
    against: object = None,
    reports: Sequence[Report] = (),
    save: str | os.PathLike[str],
    unsafe: bool = False,
    **kwargs: Any,
) -> Path: ...


@overload
def view(
    target: object,
    *inputs: Any,
    against: object = None,
    reports: Sequence[Report] = (),
    notebook: Literal[True],
    unsafe: bool = False,
    **kwargs: Any,
) -> NotebookPage: ...


@overload
def view(
    target: object,
    *inputs: Any,
    against: object = None,
    reports: Sequence[Report] = (),
    notebook: Literal[False] | None = None,
    port: int = 5000,
    open_browser: bool = False,
    unsafe: bool = False,
    root_path: str = "",
    **kwargs: Any,
) -> Server: ...


def view(
    target: object,
    *inputs: Any,
    against: object = None,
    reports: Sequence[Report] = (),
    save: str | os.PathLike[str] | None = None,
    notebook: bool | None = None,
    port: int = 5000,
    open_browser: bool = False,
    unsafe: bool = False,
    root_path: str = "",
    **kwargs: Any,
) -> Server | Path | NotebookPage:
    """Show a target as a web page: served until `.close()`, or saved as one file.

    In a notebook the page appears below the cell.

    Args:
        target: A model, a trace, a run, a checkpoint, what another verb returned, or a folder of
            runs. A folder is served with the runs that appear in it later. A saved page and one in
            a notebook have its 20 latest runs.
        *inputs: Positional arguments of the model's forward. With inputs, the model runs once and
            the graph shows its ops.
        against: Another target, or a list of them. The page opens with both side by side and
            compares weights by value. For two models it opens on what `compare` says.
        reports: What other verbs returned for this model, such as `tg.quantization` and
            `tg.estimate`. Their values are columns beside the modules.
        save: Write the page to this file instead of serving it.
        notebook: Show the page below the cell. None: if this is a notebook.
        port: Port of the server. 0: any free port.
        open_browser: Open the page in a browser.
        unsafe: Allow a checkpoint to run the code it contains (pickle).
        root_path: Path prefix under which a proxy serves the page.
        **kwargs: Keyword arguments of the model's forward.

    Returns:
        A `Server` (`.url`, `.wait()`, `.close()`), the path of the saved file, or a `NotebookPage`.

    Raises:
        TargetError: The target cannot be read or run.
        StoreError: A run file cannot be read.

    Example:
        >>> from torch import nn
        >>> view(nn.Linear(2, 3), save="linear.html").name
        'linear.html'
    """
    given = against if isinstance(against, (list, tuple)) else [against] * (against is not None)
    # Once: a name that is resolved again may be another model, with other weights.
    target, others = resolve(target), [resolve(each) for each in given]
    traced = _traced(target, inputs, kwargs) if inputs or kwargs else target
    shown = _shown(target, others, reports, unsafe, traced)
    target, others = shown.target, list(shown.others)
    targets = [traced if inputs or kwargs else target, *others]
    is_served = save is None and not _in_notebook(notebook)
    folder = _served_folder(targets) if is_served else None
    groups = [
        folder.new_readers()
        if folder is not None and _is_folder(each) and Path(each) == folder.folder
        else _readers(each, unsafe=unsafe)
        for each in targets
    ]
    readers = [reader for group in groups for reader in group]
    weights = {id(one[0]): each for one, each in zip(groups, [target, *others]) if one}  # noqa: B905
    beside: _Beside = {
        "compared": range(len(groups[0]), len(readers)) if others and groups[0] else (),
        "distances": shown.distances or partial(_distances, weights, unsafe),
        "reports": shown.reports,
    }
    if save is not None:
        from torchglass.views.web.answers import OpenRuns
        from torchglass.views.web.saved_page import write_runs

        write_runs(OpenRuns(readers, **beside), Path(save))
        return Path(save)
    if _in_notebook(notebook):
        from torchglass.views.web.saved_page import NotebookPage

        return NotebookPage(*readers, **beside)
    from torchglass.views.web.server import serve

    server = serve(*readers, port=port, root_path=root_path, folder=folder, **beside)
    if open_browser:
        import webbrowser

        webbrowser.open(server.url)
    return server


class _Beside(TypedDict):
    """How the runs of a page are compared."""

    compared: Sequence[int]
    distances: Callable[[Reader, Reader], Mapping[str, float] | None]
    reports: Mapping[str, Callable[[], dict[str, Any]]]


@dataclass(frozen=True)
class _Shown:
    """What a page shows of what it was given."""

    target: object
    others: Sequence[object]
    reports: Mapping[str, Callable[[], dict[str, Any]]] = field(default_factory=dict)
    """What comes before anything else, by kind."""
    distances: Callable[[Reader, Reader], Mapping[str, float] | None] | None = None
    """The distances of weights that are known already."""


def _shown(
    target: object,
    others: Sequence[object],
    reports: Sequence[Report],
    unsafe: bool,
    traced: object,
) -> _Shown:
    """What the page opens on: a comparison, or what other verbs found out about the model.

    `traced` is the trace of the target, if it was run; else the target.
    """
    from torchglass.results.comparison import Comparison
    from torchglass.results.comparison_page import page_data
    from torchglass.results.trace import Trace

    if isinstance(target, Comparison):
        return _shown_comparison(target, others)
    found: dict[str, Callable[[], dict[str, Any]]] = {
        one.kind: partial(_report_data, one, _readers(target, unsafe=unsafe)[0].model())
        for one in report_records(target, reports)
    }
    if isinstance(traced, Trace):
        found["Diagram"] = partial(_diagram_data, traced)
    if len(others) == 1 and not any(map(_is_training, (target, *others))):
        from torchglass.api.compare import compare

        found["Comparison"] = lambda: page_data(compare(others[0], target, unsafe=unsafe))
    return _Shown(target, others, found)


def _shown_comparison(comparison: Comparison, others: Sequence[object]) -> _Shown:
    from torchglass.results.comparison_page import page_data

    if comparison.structure is None:
        raise TargetError("this comparison has no models to show")
    before, after = comparison.structure.before, comparison.structure.after
    found = {one.name: one.distance for one in comparison.tensors or () if one.distance is not None}
    return _Shown(
        after,
        [before, *others],
        {"Comparison": partial(page_data, comparison)},
        lambda old, new: found if (old.model(), new.model()) == (before, after) else None,
    )


def _diagram_data(trace: Trace) -> dict[str, Any]:
    """The block diagram of a trace, or why there is none."""
    from torchglass.results.diagram import diagram_of

    drawn: dict[str, Any] = {"kind": "diagram", "name": trace.model.name}
    try:
        return {**drawn, "svg": diagram_of(trace.record, trace.model, None).to_svg()}
    except Exception as error:  # noqa: BLE001 - the page opens without it
        return {**drawn, "svg": "", "problem": str(error)}


def _report_data(record: ReportRecord, model: Model) -> dict[str, Any]:
    """A report, and the modules that it is laid over, as the page draws them."""
    depths: dict[int | None, int] = {None: -1}
    tree = []
    for module in model.modules:
        depths[module.id] = depths[module.parent] + 1
        name = module.name or model.name
        row = {"depth": depths[module.id], "path": module.path, "name": name, "class": module.kind}
        tree.append(row)
    return {"kind": "report", "tree": tree, "record": to_json_data(record)}


def _is_training(target: object) -> bool:
    """Whether a target is a run, or a folder of runs, which may go on while it is shown."""
    from torchglass.results.run import SavedRun

    if isinstance(target, SavedRun) or is_reader(target):
        return True
    return isinstance(target, Path) and (
        is_run(target) or bool(_runs_in(target)) or _awaits_runs(target)
    )


def _in_notebook(notebook: bool | None) -> bool:
    return notebook or (notebook is None and in_notebook())


def _distances(
    targets: Mapping[int, object], unsafe: bool, before: Reader, after: Reader
) -> Mapping[str, float] | None:
    """The distances of the tensors of two targets; None if one has no tensors, such as a run."""
    from torchglass.api.explore import tensors_of_target
    from torchglass.capture.tensor.moments import distances

    if id(before) not in targets or id(after) not in targets:
        return None
    old, new = (tensors_of_target(resolve(targets[id(each)]), unsafe) for each in (before, after))
    return distances(old, new) if old and new else None


def _traced(target: object, inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
    from torchglass.api.trace import trace

    model = resolve(target)
    if not is_live(model):
        raise TargetError(NOT_LIVE)
    return trace(cast("nn.Module", model), *inputs, save=None, **kwargs)


def _readers(target: object, *, unsafe: bool) -> list[Reader]:
    """The readers of a target; a folder of runs has several, of which the latest are opened."""
    if runs := _runs_in(target):
        opened = (reader for run in runs if (reader := _open_or_warn(run)) is not None)
        readers = list(islice(opened, MOST_OPEN))
        if len(runs) > MOST_OPEN:
            warn(
                f"{target} has {len(runs):,} run files, and the page has the {MOST_OPEN} latest. "
                "For all of them, serve the folder (torchglass serve). For others, name them: "
                "tg.view(one, against=[others], save=…)"
            )
        return readers or [open_reader(runs[0])]
    return [reader_of_result(target, pictures=True) or open_reader(target, unsafe=unsafe)]


def _runs_in(target: object) -> list[Path]:
    """The run files in a folder, latest first; [] for any other target."""
    if not _is_folder(target):
        return []
    if url_of(target) is not None:
        from torchglass.results.runs import RunFolder

        return [Path(target) / run.path for run in RunFolder(Path(target)).table()]
    return sorted(Path(target).rglob(f"*{RUN_SUFFIX}"), key=changed_at, reverse=True)


def _is_folder(target: object) -> TypeGuard[str | os.PathLike[str]]:
    if not isinstance(target, (str, os.PathLike)):
        return False
    url = url_of(target)
    return Path(target).is_dir() if url is None else url_of(run_or_folder(url)) is not None


def _awaits_runs(target: object) -> bool:
    """Whether a target is a folder without runs and checkpoints: runs may appear in it later."""
    return _is_folder(target) and not _runs_in(target) and not find_targets(Path(target))


class ServedFolder:
    """A folder of runs on a page: a table of all, of which few are open at a time."""

    def __init__(self, folder: Path) -> None:
        from torchglass.results.runs import RunFolder

        self.folder = folder
        self._runs = RunFolder(folder)
        self._opened: set[str] = set()
        self._lock = threading.Lock()

    def new_readers(self) -> list[Reader]:
        """The latest runs that are not open yet, as long as few are."""
        found: list[Reader] = []
        for entry in self._table() if len(self._opened) < MOST_OPEN else ():
            if len(self._opened) >= MOST_OPEN:
                break
            # A run that is just being created can be read next time.
            with contextlib.suppress(StoreError):
                if entry.path not in self._opened:
                    found.append(self._open(entry))
        return found

    def open(self, which: str) -> Reader:
        """A run by its path in the folder, its name or its id."""
        return self._open(self._table()[which])

    def table(self, *, where: str, sort: str, count: int) -> Mapping[str, Any]:
        """The first runs of the table, filtered and sorted."""
        # Requests come in several threads.
        with self._lock:
            return self._runs.cells(where=where, sort=sort, count=count)

    def losses(self, paths: Sequence[str]) -> Mapping[str, npt.NDArray[np.float64]]:
        """The loss of some runs: a row of steps and one of values each."""
        with self._lock:
            return self._runs.losses(paths)

    def _open(self, entry: RunEntry) -> Reader:
        from torchglass.results.run import open_entry

        reader = open_entry(self.folder, entry).reader
        self._opened.add(entry.path)
        return reader

    def _table(self) -> RunTable:
        with self._lock:
            return self._runs.table()


MOST_OPEN = 20
"""Runs of a folder that are open without being selected."""


def _served_folder(targets: Sequence[object]) -> ServedFolder | None:
    """The folder of runs among the targets, if there is one."""
    folders = [each for each in targets if _runs_in(each) or _awaits_runs(each)]
    return ServedFolder(Path(cast(str, folders[0]))) if folders else None


def _open_or_warn(run: Path) -> Reader | None:
    try:
        return open_reader(run)
    except StoreError as error:
        warn(f"skipped {run}: {error}")
        return None

"""The verbs that record a training and open the record: `watch`, `attach`, `setup` and `open`."""

from __future__ import annotations

import importlib
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from torchglass.api.backends import (
    NAMES,
    Backend,
    BackendSink,
    Reporter,
    StandaloneBackend,
    TrainingControl,
    find_backends,
    say,
)
from torchglass.api.new_run import (
    MEMORY,
    WritableRun,
    open_again,
    open_new,
    read_config,
    this_run,
)
from torchglass.errors import (
    Fence,
    TargetError,
    TorchglassError,
    TrainingStoppedError,
    warn,
)
from torchglass.host_program import before_executors_end
from torchglass.records.findings import Finding
from torchglass.records.run import RunRecord, Sink

if TYPE_CHECKING:
    from torch import nn

    from torchglass.capture.watch.options import Options, Unit
    from torchglass.capture.watch.watcher import Watcher
    from torchglass.results.run import SavedRun

Thing = TypeVar("Thing")
FilePath = str | os.PathLike[str]

_PORTS = range(65_536)
_LONGEST_START = 1.0
"""For how many seconds a training waits at most until its model is in the file."""
_IN_PLACE = "in-place operations need no special treatment here, so {} has no effect"
_SEVERAL = "several forwards before one backward need no option here, so {} has no effect"


def watch(  # noqa: PLR0913 - these are the names that users of TorchExplorer type
    model: nn.Module,
    log: str | Iterable[str] = ("io", "io_grad", "params", "params_grad"),
    log_freq: int = 1,
    *,
    backend: str | Backend | Sequence[str | Backend] = "none",
    bins: int = 30,
    sample_n: int | None = 100,
    reject_outlier_proportion: float = 0.1,
    reject_outlier_propertion: float | None = None,
    time_log: tuple[str, Callable[[Any, int], float]] | None = None,
    disable_inplace: bool = False,
    ignore_io_grad_classes: Sequence[type] = (),
    delay_log_multibackward: bool = False,
    delay_log_multi_backward: bool = False,
    standalone_dir: FilePath | None = None,
    standalone_port: int = 5000,
    run_dir: FilePath = "runs",
    save: FilePath | None = None,
    resume: FilePath | None = None,
    max_bytes: int | None = None,
    config: object = None,
    notes: str = "",
    reduce: Literal["all"] | None = None,
    unit: Unit | None = None,
    scaler: Any = None,
    on_finding: Callable[[Finding], object] | Literal["warn", "stop"] | None = None,
    guard: Literal["auto"] | None = "auto",
    wait: bool | None = None,
    verbose: bool = True,
) -> Watcher:
    """Record a training into a run file until `.close()`, and show it while it runs.

    Call it once, before the training loop; the loop stays as it is. Nothing is added to the model.
    Open the run at any time with `tg.open(path)`, `torchglass explore PATH` or `torchglass view
    PATH`. `tg.diagnose(path)` says what is wrong with it.

    A step is one step of the model's optimizers. Statistics (minimum, maximum, mean, standard
    deviation, NaN and Inf) always cover all values.

    Args:
        model: The model that is trained.
        log: What to record: "io" and "io_grad" (inputs and outputs of every module, and their
            gradients), "params" and "params_grad"; also "stats" (share of zeros), "updates" (size
            of updates relative to weights), "activations" (small pictures) and "optimizer" (its
            state).
        log_freq: Record every n-th step. 1: every step.
        backend: Where to show the run: "none", "standalone" (the web page), "wandb", "tensorboard",
            "mlflow", "opentelemetry", or several of them; or a backend of `integrations` itself.
        bins: Number of histogram bins over the bulk of a tensor.
        sample_n: Number of values that histograms are filled from. None: all.
        reject_outlier_proportion: Share of extreme values that plots hide at first.
        reject_outlier_propertion: The same, in TorchExplorer's spelling.
        time_log: Name and value of another time axis, such as
            `("epoch", lambda model, step: step / 100)`.
        disable_inplace: Accepted for TorchExplorer; not needed here.
        ignore_io_grad_classes: Accepted for TorchExplorer; not needed here.
        delay_log_multibackward: Accepted for TorchExplorer; not needed here.
        delay_log_multi_backward: The same, in TorchExplorer's other spelling.
        standalone_dir: Folder of the run file, in TorchExplorer's spelling.
        standalone_port: Port of the page. 0: any free port.
        run_dir: Folder for a new run file, or the URL of one. ":memory:" writes no file.
        save: Path of a new run file, or the URL of a new run in an object store, such as
            "s3://bucket/run". A thread ships the local file there.
        resume: Path or URL of the run of an earlier training, which is continued.
        max_bytes: Largest size of the file. Older steps are thinned out beyond it.
        config: Settings of the training, to find and compare runs by: a dict, an
            `argparse.Namespace` or a dataclass. Nested settings get dotted names.
        notes: What you want to remember about the run.
        reduce: "all" adds up the values of all ranks on rank 0. None: each rank writes its own
            file.
        unit: What counts as a step: "optimizer" or "backward". None: optimizer steps if there
            are any.
        scaler: The `GradScaler` of the training, if it cannot be found.
        guard: "auto" runs the batch of the first NaN or Inf again, to name the operation that
            produced it. The latest batch is kept for that. None: only the module is named.
        on_finding: What to do when a problem is found: call a function with the finding, "warn",
            or "stop" the training with a `TrainingStoppedError` if it is broken. What the function
            raises is raised by the next `optimizer.step()` or `.log()`.
        wait: Keep the page after the program has ended, until Ctrl-C. None: if it ended without an
            error in a terminal. TORCHGLASS_WAIT=1 or 0 overrides it.
        verbose: Print where the run is, the first NaN or Inf, and the verdict at the end.

    Returns:
        A `Watcher`, also a context manager. `.log(name, value)` records your own values.

    Raises:
        TargetError: An argument is not valid.
        StoreError: The run file cannot be created or continued.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with watch(model, save="training.glass") as watcher:
        ...     for _ in range(3):
        ...         loss = model(torch.ones(4, 2)).square().mean()
        ...         optimizer.zero_grad()
        ...         loss.backward()
        ...         optimizer.step()
        ...         watcher.log("loss", loss)
        >>> open("training.glass")["loss"].steps
        array([0, 1, 2])
    """
    from torch import nn

    from torchglass.capture.watch.options import Options, names_to_log
    from torchglass.capture.watch.ranks import is_among_many

    if not isinstance(model, nn.Module):
        raise TargetError(f"watch expects an nn.Module, not {type(model).__name__}")
    if save is not None and resume is not None:
        raise TargetError("save starts a new file, resume continues one: pass only one of them")
    options = Options(
        log=names_to_log(log),
        log_freq=log_freq,
        bins=bins,
        sample_n=sample_n,
        unit=unit,
        time_log=time_log,
        scaler=scaler,
        guard=guard is not None,
        adds_up_ranks=reduce is not None,
        logs_times=is_among_many(),
    )
    # TorchExplorer's own page uses this spelling.
    if reject_outlier_propertion is not None:
        reject_outlier_proportion = reject_outlier_propertion
    _check_showing(backend, standalone_port, reject_outlier_proportion)
    if verbose:
        _say_what_is_not_needed(
            (_IN_PLACE, "disable_inplace", disable_inplace),
            (_IN_PLACE, "ignore_io_grad_classes", ignore_io_grad_classes),
            (_SEVERAL, "delay_log_multibackward", delay_log_multibackward),
            (_SEVERAL, "delay_log_multi_backward", delay_log_multi_backward),
        )
    run = replace(
        this_run(type(model).__name__),
        sample_n=sample_n,
        reject_outlier_proportion=reject_outlier_proportion,
        config=read_config(config),
        notes=str(notes),
    )
    if reduce is not None and run.rank > 0 and is_among_many():
        # Its values go to the first rank, so it needs no file.
        run_dir, standalone_dir, save, resume = MEMORY, None, None, None
    folder = standalone_dir if standalone_dir is not None else run_dir
    backends = find_backends(backend, port=standalone_port, verbose=verbose, wait=wait)
    opened = (
        open_new(run, folder, save, max_bytes)
        if resume is None
        else open_again(run, resume, max_bytes, folder)
    )
    is_told = verbose and run.rank == 0 and opened.path is not None
    listener = Reporter(opened.path.absolute()) if is_told and opened.path is not None else None
    shown = backends if run.rank == 0 else ()
    try:
        watcher = _started(model, options, opened, shown, reduce, listener, _action_of(on_finding))
    except BaseException:
        opened.give_up()
        raise
    if opened.url:
        before_executors_end(partial(_close, weakref.ref(watcher)))
    if is_told and watcher.path is not None:
        shipped = f", shipped to {opened.url}" if opened.url else ""
        say(f"watching {run.name}, recorded in {opened.path}{shipped}")
    return watcher


def _close(find: Callable[[], Watcher | None]) -> None:
    if (watcher := find()) is not None:
        watcher.close()


def attach(tensor: Thing, parent: nn.Module, name: str) -> Thing:
    """Record a tensor inside `parent`'s forward, and its gradient, while the model is watched.

    It does nothing if the model is not watched, the step is not recorded, or the forward is
    compiled.

    Args:
        tensor: The tensor to record.
        parent: The module whose forward this is.
        name: Name of the series.

    Returns:
        The tensor, unchanged.

    Example:
        >>> import torch
        >>> class Scores(torch.nn.Module):
        ...     def forward(self, x):
        ...         return attach(x @ x.T, self, "scores").softmax(-1)
        >>> model = Scores()
        >>> with watch(model, save="scores.glass"):
        ...     model(torch.ones(3, 2, requires_grad=True)).sum().backward()
        >>> open("scores.glass")["scores"].column("mean")
        array([2.])
    """
    import torch

    # This comes first, because torch compiles this function into the forward.
    if torch.compiler.is_compiling():
        return tensor
    from torchglass.capture.watch.activations import attach

    return cast(Thing, attach(tensor, parent, name))


def setup(ulimit: int = 50_000) -> None:
    """Raise the limit of open files of this process, which wandb needs to upload many tables.

    Args:
        ulimit: The limit to set, up to what the system allows.

    Example:
        >>> setup(ulimit=1_000)
    """
    try:
        import resource
    except ImportError:
        # Windows has no such limit.
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = ulimit if hard == unlimited else min(ulimit, hard)
    if soft != unlimited and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def open(path: str | os.PathLike[str]) -> SavedRun:  # noqa: A001 - as gzip.open is
    """Open a run file, finished or still being written.

    Args:
        path: A run file, a folder of the ranks of one run, a pattern, or the URL of a run in an
            object store, such as "s3://bucket/run".

    Returns:
        A `SavedRun`: print it, or index it by series name.

    Raises:
        StoreError: The file is missing, corrupt or not a run file.

    Example:
        >>> import torch
        >>> with watch(torch.nn.ReLU(), save="run.glass") as watcher:
        ...     for loss in (2.0, 1.0):
        ...         watcher.log("loss", loss)
        ...         watcher.step()
        >>> with open("run.glass") as run:
        ...     run["loss"].values
        array([2., 1.])
    """
    from torchglass.results.run import open_run

    return open_run(path)


def _action_of(
    on_finding: Callable[[Finding], object] | str | None,
) -> Callable[[Finding], object] | None:
    if on_finding is None or callable(on_finding):
        return on_finding
    if on_finding not in ("warn", "stop"):
        raise TargetError(f'on_finding must be a function, "warn" or "stop", not {on_finding!r}')
    return _stop if on_finding == "stop" else _warn


def _warn(finding: Finding) -> None:
    warn(finding.message)


def _stop(finding: Finding) -> None:
    if finding.severity == "error":
        raise TrainingStoppedError(finding.message)
    _warn(finding)


def _check_showing(backend: object, port: object, reject_outlier_proportion: float) -> None:
    if not isinstance(backend, (Iterable, Backend)):
        names = " or ".join(map(repr, NAMES))
        raise TargetError(f"backend must be {names}, or a list of these, not {backend!r}")
    if port not in _PORTS:
        raise TargetError(
            f"standalone_port must be from 1 to {_PORTS[-1]}, or 0 for any free port, not {port!r}"
        )
    if not 0 <= reject_outlier_proportion < 1:
        raise TargetError(
            f"reject_outlier_proportion must be at least 0 and below 1, not "
            f"{reject_outlier_proportion}"
        )


def _started(
    model: nn.Module,
    options: Options,
    opened: WritableRun,
    backends: Sequence[Backend],
    reduce: str | None,
    listener: Reporter | None,
    on_finding: Callable[[Finding], object] | None,
) -> Watcher:
    from torchglass.capture.watch.watcher import Watcher

    sink: Sink = BackendSink(opened.sink, backends) if backends else opened.sink
    if reduce is not None:
        from torchglass.capture.watch.ranks import reduce_ranks

        sink = reduce_ranks(sink, reduce, bins=options.bins)
    try:
        watcher = Watcher(
            model,
            sink,
            options,
            start=opened.start,
            path=opened.path.absolute() if opened.path is not None else None,
            page=lambda: _page(opened, backends),
            listener=listener,
            on_finding=on_finding,
        )
    except TorchglassError:
        raise
    except Exception as problem:  # noqa: BLE001 - no error of ours may keep a training from running
        Fence("the training is not watched").caught(problem)
        opened.give_up()
        return _watcher_of_nothing(opened.run)
    try:
        with Fence("the run may not be readable yet"):
            # Whoever opens the file from now on finds the model in it.
            opened.flush(_LONGEST_START)
        if backends:
            _begin(backends, opened, watcher)
    except BaseException:
        watcher.close()
        raise
    return watcher


def _watcher_of_nothing(run: RunRecord) -> Watcher:
    """A closed watcher, for a training that cannot be watched."""
    from torch import nn

    from torchglass.capture.watch.watcher import Watcher
    from torchglass.store.readers import MemoryStore

    watcher = Watcher(nn.Module(), MemoryStore(run))
    watcher.close()
    watcher.pause()
    return watcher


def _page(opened: WritableRun, backends: Sequence[Backend]) -> str:
    """The page of a run for a notebook: live if it is served, otherwise a copy."""
    # Imported by name: the integrations are built on this layer.
    frames = importlib.import_module("torchglass.integrations.jupyter")
    for backend in backends:
        if isinstance(backend, StandaloneBackend):
            return str(frames.live_frame(backend.url))
    return str(frames.saved_frame(opened.path if opened.path is not None else opened.reader()))


def _begin(backends: Sequence[Backend], opened: WritableRun, watcher: Watcher) -> None:
    """Start the backends, each with its own reader."""
    training = _training(opened, weakref.ref(watcher))
    with ExitStack() as undo:
        for backend in backends:
            reader = opened.reader()
            undo.callback(reader.close)
            backend.follow(training)
            backend.begin(reader)
        undo.pop_all()


def _training(opened: WritableRun, find: Callable[[], Watcher | None]) -> TrainingControl:
    # A watcher kept alive by its backends would never close its file.
    def show_step() -> None:
        if (watcher := find()) is not None:
            watcher.write_step()

    def catch_up() -> None:
        if (watcher := find()) is not None:
            watcher.write_step(incomplete=True)
        opened.flush()

    def close() -> None:
        if (watcher := find()) is not None:
            watcher.close()

    return TrainingControl(show_step=show_step, catch_up=catch_up, close=close)


def _say_what_is_not_needed(*given: tuple[str, str, object]) -> None:
    for sentence, name, value in given:
        if value:
            say(sentence.format(name))

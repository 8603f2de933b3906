"""The verbs that record a training and read the record."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import time
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from torchglass.records.run import Run
from torchglass.targets.names import RUN_SUFFIX

if TYPE_CHECKING:
    from torch import nn

    from torchglass.capture.watch import Watcher
    from torchglass.results.run import SavedRun


def watch(
    model: nn.Module,
    *,
    log_freq: int = 1,
    run_dir: str | os.PathLike[str] = "runs",
    save: str | os.PathLike[str] | None = None,
) -> Watcher:
    """Record the weights and gradients of a training into a run file, until `.close()`.

    Every `log_freq`-th step is kept. The file is `save`, or a new one in `run_dir`, and can be
    looked at with `explore`, `view` and `open` while the training goes on.

    >>> import torch
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with watch(model, save="training.glass") as watcher:
    ...     for _ in range(3):
    ...         loss = model(torch.ones(4, 2)).square().mean()
    ...         loss.backward()
    ...         optimizer.step()
    ...         watcher.log("loss", loss)
    >>> open("training.glass")["loss"].steps
    array([0, 1, 2])
    """
    from torchglass.capture.watch import Watcher
    from torchglass.store.file import FileSink

    run = _this_run(type(model).__name__)
    path = Path(save) if save is not None else _new_file(Path(run_dir), run)
    sink = FileSink(path, run)
    try:
        return Watcher(model, sink, every=log_freq)
    except BaseException:
        sink.close()
        path.unlink()
        raise


def open(path: str | os.PathLike[str]) -> SavedRun:  # noqa: A001 - as gzip.open is
    """Open a run file, finished or still being written, to read its numbers."""
    from torchglass.results.run import open_run

    return open_run(path)


def _new_file(folder: Path, run: Run) -> Path:
    """A path in a folder that no run has yet, made of the time and the run's name."""
    stem = f"{datetime.now():%Y%m%d-%H%M%S}-{run.name}"
    if run.world_size > 1:
        stem += f"-rank{run.rank}"
    names = (f"{stem}-{number}" if number > 1 else stem for number in count(1))
    paths = (folder / f"{name}{RUN_SUFFIX}" for name in names)
    return next(path for path in paths if not path.exists())


def _this_run(name: str) -> Run:
    """Who is recording, where and when."""
    import torch

    from torchglass import __version__

    return Run(
        name=name,
        created_ns=time.time_ns(),
        host=platform.node(),
        command=shlex.join(sys.orig_argv),
        torchglass_version=__version__,
        torch_version=torch.__version__,
        rank=int(os.environ.get("RANK", "0")),
        world_size=int(os.environ.get("WORLD_SIZE", "1")),
    )

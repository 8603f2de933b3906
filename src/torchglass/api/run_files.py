"""Opens the run that a training is recorded into: a new file, an existing one, or memory."""

from __future__ import annotations

import importlib
import os
import platform
import shlex
import sys
from collections.abc import Callable
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import NamedTuple

from torchglass.records.reader import Reader, Sink
from torchglass.records.run import RunRecord
from torchglass.targets.names import RUN_SUFFIX

FilePath = str | os.PathLike[str]

MEMORY = ":memory:"
"""The folder of runs that are kept in memory only."""


class WritableRun(NamedTuple):
    """A run that is open for writing."""

    run: RunRecord
    sink: Sink
    reader: Callable[[], Reader]
    """Opens a reader of the run."""
    path: Path | None = None
    """None for a run in memory."""
    start: int = 0
    """The index of its next step."""
    is_new: bool = True
    flush: Callable[[], None] = lambda: None
    """Waits until readers see everything written so far."""

    def give_up(self) -> None:
        """Close the run, and delete its file if it is new."""
        self.sink.close()
        if self.path is not None and self.is_new:
            self.path.unlink(missing_ok=True)


def open_new(
    run: RunRecord, folder: FilePath, save: FilePath | None, max_bytes: int | None = None
) -> WritableRun:
    """A new run at a path, in a folder, or in memory."""
    from torchglass.store.file_reader import FileReader
    from torchglass.store.memory import MemoryStore
    from torchglass.store.writer import FileSink

    if os.fspath(folder if save is None else save) == MEMORY:
        store = MemoryStore(run)
        return WritableRun(run, store, lambda: store)
    path = Path(save) if save is not None else _reserved_file(Path(folder), run)
    try:
        sink = FileSink(path, run, is_reserved=save is None, max_bytes=max_bytes)
    except BaseException:
        if save is None:
            path.unlink(missing_ok=True)
        raise
    return WritableRun(run, sink, lambda: FileReader(path), path, flush=sink.flush)


def open_again(run: RunRecord, path: FilePath, max_bytes: int | None = None) -> WritableRun:
    """A run to continue; a new one if the file does not exist."""
    if os.fspath(path) == MEMORY:
        return open_new(run, MEMORY, None)
    from torchglass.store import schema
    from torchglass.store.file_reader import FileReader
    from torchglass.store.writer import FileSink

    file = Path(path)
    start, is_new = 0, not schema.has_begun(file)
    if not is_new:
        with FileReader(file) as reader:
            start = reader.last_step() + 1
    sink = FileSink(file, run, resume=True, max_bytes=max_bytes)
    return WritableRun(run, sink, lambda: FileReader(file), file, start, is_new, sink.flush)


def this_run(name: str) -> RunRecord:
    """The description of the run that starts here and now."""
    import torch

    from torchglass.capture.watch.ranks import own_rank, this_training

    rank, world_size = own_rank()
    training = this_training()
    return RunRecord(
        name=name,
        created_ns=training.started_ns,
        group=training.group,
        host=platform.node(),
        command=shlex.join(sys.orig_argv),
        # Imported by name: the package imports this layer.
        torchglass_version=importlib.import_module("torchglass").__version__,
        torch_version=torch.__version__,
        rank=rank,
        world_size=world_size,
    )


def _reserved_file(folder: Path, run: RunRecord) -> Path:
    """A new, empty file named after the time and the run, reserved for this process."""
    from torchglass.store import schema

    stem = f"{datetime.fromtimestamp(run.created_ns / 1e9):%Y%m%d-%H%M%S}-{run.name}"
    if run.world_size > 1:
        stem += f"-rank{run.rank}"
    names = (f"{stem}-{number}" if number > 1 else stem for number in count(1))
    paths = (folder / f"{name}{RUN_SUFFIX}" for name in names)
    return next(path for path in paths if schema.reserve(path))

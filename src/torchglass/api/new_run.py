"""The run that a training is recorded into: a new file, one to continue, or memory."""

from __future__ import annotations

import hashlib
import importlib
import os
import platform
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from datetime import datetime
from itertools import count
from numbers import Integral, Real
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from torchglass.errors import StoreError, TargetError
from torchglass.host_program import git_commit
from torchglass.records.run import ConfigValue, Reader, RunRecord, Sink
from torchglass.records.urls import url_of, without_secrets
from torchglass.store.object_store import in_time
from torchglass.targets.names import RUN_SUFFIX

if TYPE_CHECKING:
    from torchglass.store.object_store import ObjectStore
    from torchglass.store.writer import FileSink

_START_SECONDS, _RESUME_SECONDS = 5.0, 30.0
"""How long the start of a training waits for an object store."""
_MOST_SETTING_CHARACTERS = 1_000
_MOST_CONFIG_LEVELS = 8

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
    flush: Callable[..., None] = lambda *_: None
    """Waits until readers see everything written so far, or for a number of seconds."""
    discard: Callable[[], None] | None = None
    """Closes the sink without waiting for a store."""
    url: str = ""
    """Where the file is shipped to, as it may be shown."""

    def give_up(self) -> None:
        """Close the run, and delete its file if it is new."""
        (self.discard or self.sink.close)()
        if self.path is not None and self.is_new:
            self.path.unlink(missing_ok=True)


def open_new(
    run: RunRecord, folder: FilePath, save: FilePath | None, max_bytes: int | None = None
) -> WritableRun:
    """A new run at a path, in a folder, in an object store, or in memory."""
    from torchglass.store.readers import FileReader, MemoryStore
    from torchglass.store.writer import FileSink

    place = os.fspath(folder if save is None else save)
    if place == MEMORY:
        store = MemoryStore(run)
        return WritableRun(run, store, lambda: store)
    if (url := url_of(place)) is not None:
        new_url = url if save is not None else f"{url}/{_stem(run)}"
        return _open_stored(run, new_url, folder, max_bytes)
    path = Path(save) if save is not None else _reserved_file(Path(folder), run)
    try:
        sink = FileSink(path, run, is_reserved=save is None, max_bytes=max_bytes)
    except BaseException:
        if save is None:
            path.unlink(missing_ok=True)
        raise
    return WritableRun(run, sink, lambda: FileReader(path), path, flush=sink.flush)


def open_again(
    run: RunRecord, path: FilePath, max_bytes: int | None = None, folder: FilePath = "runs"
) -> WritableRun:
    """A run to continue; a new one if the file does not exist."""
    if os.fspath(path) == MEMORY:
        return open_new(run, MEMORY, None)
    if (url := url_of(path)) is not None:
        return _open_stored(run, url, folder, max_bytes, resume=True)
    from torchglass.store import schema
    from torchglass.store.readers import FileReader
    from torchglass.store.writer import FileSink

    file = Path(path)
    start, is_new = 0, not schema.has_begun(file)
    if not is_new:
        with FileReader(file) as reader:
            start = reader.last_step() + 1
    sink = FileSink(file, run, resume=True, max_bytes=max_bytes)
    return WritableRun(run, sink, lambda: FileReader(file), file, start, is_new, sink.flush)


def _open_stored(
    run: RunRecord, url: str, folder: FilePath, max_bytes: int | None, *, resume: bool = False
) -> WritableRun:
    """A run that is written to a local file, which is shipped to an object store."""
    from torchglass.api.backends import say
    from torchglass.store.arrow_columns import import_pyarrow
    from torchglass.store.object_store import ObjectStore
    from torchglass.store.shipper import ShippedSink

    import_pyarrow()
    store = ObjectStore(url)
    run = replace(run, store=store.name)
    path = _local_file(store.name, folder, run)
    _look_into(store, run.rank, path, resume=resume)
    opened = open_again(run, path, max_bytes) if resume else open_new(run, "", path, max_bytes)
    sink = ShippedSink(cast("FileSink", opened.sink), store, say)
    return opened._replace(sink=sink, discard=sink.discard, url=store.name)


def _local_file(url: str, folder: FilePath, run: RunRecord) -> Path:
    """The local file of a run in an object store: the same for every process that names the URL."""
    name = PurePosixPath(url).name or run.name
    rank = f"-rank{run.rank}" if run.world_size > 1 else ""
    known = hashlib.sha256(url.encode()).hexdigest()[:8]
    place = Path(folder) if url_of(folder) is None else Path("runs")
    return place / f"{name}-{known}{rank}{RUN_SUFFIX}"


def _look_into(store: ObjectStore, rank: int, path: Path, *, resume: bool) -> None:
    """Fetch a run to continue, or refuse to write over one. A store that is down stops nothing."""
    from torchglass.store import schema
    from torchglass.store.mirror import fetch_to_resume
    from torchglass.store.object_store import manifest_name, read_manifest

    if not resume and schema.has_begun(path):
        raise StoreError(
            f'{path} has a run that was recorded for {store.name}; continue it with resume="'
            f'{store.name}", ship it with `torchglass ship {path}`, or delete it'
        )
    name = manifest_name(rank)
    try:
        data = in_time(lambda: store.read(name), _RESUME_SECONDS if resume else _START_SECONDS)
    except StoreError:
        if resume and not schema.has_begun(path):
            raise
        return
    if data is None:
        return
    if not resume:
        raise StoreError(
            f'{store.name} already has a run; choose another name, continue it with resume="'
            f'{store.name}", or delete it'
        )
    fetch_to_resume(path, store, read_manifest(data, f"{store.name}/{name}"))


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
        command=without_secrets(shlex.join(sys.orig_argv)),
        # Imported by name: the package imports this layer.
        torchglass_version=importlib.import_module("torchglass").__version__,
        torch_version=torch.__version__,
        rank=rank,
        world_size=world_size,
        git_commit=git_commit(),
    )


def read_config(given: object) -> dict[str, ConfigValue]:
    """The settings of a training by dotted name; what is not a plain value becomes text.

    >>> read_config({"lr": 0.1, "model": {"width": 32, "dropout": None}})
    {'lr': 0.1, 'model.width': 32, 'model.dropout': None}
    """
    if given is None:
        return {}
    settings = _settings(given)
    if settings is None:
        raise TargetError(
            "config must be a dict, an argparse.Namespace or a dataclass, "
            f"not {type(given).__name__}"
        )
    return dict(_flat_settings(settings, ""))


def _settings(given: object) -> Mapping[Any, Any] | None:
    if isinstance(given, Mapping):
        return given
    if isinstance(given, Namespace):
        return vars(given)
    if is_dataclass(given) and not isinstance(given, type):
        return {each.name: getattr(given, each.name) for each in fields(given)}
    return None


def _flat_settings(
    settings: Mapping[Any, Any], above: str, depth: int = 0
) -> Iterator[tuple[str, ConfigValue]]:
    for key, value in settings.items():
        name = f"{above}{key}"
        inner = _settings(value) if depth < _MOST_CONFIG_LEVELS else None
        if inner:
            yield from _flat_settings(inner, f"{name}.", depth + 1)
        else:
            yield name, _plain_setting(value)


def _plain_setting(value: Any) -> ConfigValue:
    if value is None or isinstance(value, bool):
        return value
    try:
        if isinstance(value, Integral):
            return int(value)
        if isinstance(value, Real):
            return float(value)
        return without_secrets(str(value)[:_MOST_SETTING_CHARACTERS])
    except Exception:  # noqa: BLE001 - the user's own class; no setting may stop a training
        return f"<{type(value).__name__}>"


def _reserved_file(folder: Path, run: RunRecord) -> Path:
    """A new, empty file named after the time and the run, reserved for this process."""
    from torchglass.store import schema

    stem = _stem(run)
    if run.world_size > 1:
        stem += f"-rank{run.rank}"
    names = (f"{stem}-{number}" if number > 1 else stem for number in count(1))
    paths = (folder / f"{name}{RUN_SUFFIX}" for name in names)
    return next(path for path in paths if schema.reserve(path))


def _stem(run: RunRecord) -> str:
    return f"{datetime.fromtimestamp(run.created_ns / 1e9):%Y%m%d-%H%M%S}-{run.name}"

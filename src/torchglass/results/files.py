"""Finds and opens run files, and writes and reads traces."""

from __future__ import annotations

import contextlib
import glob
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchglass.errors import StoreError, TargetError, warn
from torchglass.records.run import RunRecord
from torchglass.records.trace import OpId, TraceRecord
from torchglass.records.urls import url_of
from torchglass.store.mirror import mirrored
from torchglass.store.readers import (
    FileReader,
    StoredTrace,
    read_trace,
    tensors_file,
    write_trace,
)
from torchglass.tables.export import in_its_folder

if TYPE_CHECKING:
    import torch

    from torchglass.results.trace import Trace

_MOST_NAMES = 8


def open_readers(target: str | PathLike[str]) -> list[FileReader]:
    """The file at a path, or the files of all ranks in a folder, of a pattern or at a URL."""
    url = url_of(target)
    path = Path(target) if url is None else mirrored(url)
    if path.is_dir():
        return _of_one_run(path, sorted(path.glob("*.glass")))
    if not path.exists() and glob.has_magic(fspath(target)):
        found = glob.glob(fspath(target), recursive=True)  # noqa: PTH207 - it may be absolute
        return _of_one_run(path, sorted(map(Path, found)))
    return [FileReader(path)]


def ranks_beside(path: Path) -> list[FileReader]:
    """The file of a rank, and those of the other ranks of its run in the same folder."""
    first = FileReader(path)
    found = [first]
    for other in sorted(path.parent.glob("*.glass")):
        if other != path:
            with contextlib.suppress(StoreError):
                reader = FileReader(other)
                if run_identity(reader.run()) == run_identity(first.run()):
                    found.append(reader)
                else:
                    reader.close()
    return _filled(found)


def _of_one_run(target: Path, paths: Sequence[Path]) -> list[FileReader]:
    readers: list[FileReader] = []
    identities: set[object] = set()
    ranks: set[int] = set()
    for reader in _readable(paths):
        readers.append(reader)
        if reader.finished() and reader.is_empty():
            continue
        run = reader.run()
        identities.add(run_identity(run))
        # At the second run already: a folder may have more than can be open.
        if run.rank in ranks or len(identities) > 1:
            for each in readers:
                each.close()
            raise _several_runs(target, [path.name for path in paths])
        ranks.add(run.rank)
    if not readers:
        raise StoreError(f"there is no run file in {target}")
    return _filled(readers)


def _several_runs(target: Path, names: Sequence[str]) -> TargetError:
    shown = ", ".join(names[:_MOST_NAMES]) + (", …" if len(names) > _MOST_NAMES else "")
    listed = f", or list them with `torchglass runs {target}`" if target.is_dir() else ""
    return TargetError(
        f"{target} contains more than one run: {shown}; name one of them, or a pattern that "
        f"only the ranks of one run match{listed}"
    )


def _readable(paths: Sequence[Path]) -> Iterator[FileReader]:
    """The files that can be opened; a file that is being created is left out."""
    for path in paths:
        try:
            yield FileReader(path)
        except StoreError as error:  # noqa: PERF203 - opening a file takes far longer
            warn(f"left out: {error}")


def _filled(readers: Sequence[FileReader]) -> list[FileReader]:
    """All files except empty closed ones, unless all are empty."""
    filled = [reader for reader in readers if not (reader.finished() and reader.is_empty())]
    for reader in readers:
        if filled and reader not in filled:
            reader.close()
    return filled or list(readers)


def run_identity(run: RunRecord) -> object:
    """What the ranks of one run have in common."""
    return run.group or (run.name, run.command, run.world_size)


_SUFFIX = ".glass"


@dataclass(frozen=True)
class LoadedPass:
    """A pass that came from a file or a pickle."""

    trace: TraceRecord
    tensors: Mapping[tuple[OpId, int], torch.Tensor]
    gradients: Mapping[tuple[OpId, int], torch.Tensor]


def save(trace: Trace, path: Path, *, overwrite: bool) -> Path:
    """Write a trace to its files, completely or not at all; returns the path of the first."""
    path = path if path.suffix else path.with_suffix(_SUFFIX)
    if path.exists() and not overwrite:
        raise StoreError(f"{path} already exists; choose another name or pass overwrite=True")
    with tempfile.TemporaryDirectory(
        dir=in_its_folder(path).parent, prefix=f".{path.name}-"
    ) as folder:
        new = Path(folder) / path.name
        run = RunRecord(name=trace.record.model, created_ns=time.time_ns())
        write_trace(new, run, _stored(trace))
        if trace.saved_tensors or trace.saved_gradients:
            from torchglass.capture.tensor.files import write_tensors

            write_tensors(tensors_file(new), _groups(trace))
            tensors_file(new).replace(tensors_file(path))
        else:
            tensors_file(path).unlink(missing_ok=True)
        new.replace(path)
    return path


def load(path: Path) -> tuple[StoredTrace, LoadedPass]:
    """A trace from its files. A tensor is read when it is first used."""
    from torchglass.capture.tensor.files import SavedTensors

    stored = read_trace(path)
    beside = tensors_file(path)
    return stored, LoadedPass(
        stored.trace, SavedTensors(beside, "tensors"), SavedTensors(beside, "gradients")
    )


def pickled(trace: Trace, *, output: Any) -> dict[str, Any]:
    """The contents of a trace, its tensors as bytes."""
    from torchglass.capture.tensor.files import pack_tensors

    return {
        "stored": _stored(trace),
        "tensors": pack_tensors(_groups(trace)),
        "_output": output,
    }


def unpickled(state: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a trace from the state that `pickled` returned."""
    from torchglass.capture.tensor.files import unpack_tensors

    stored: StoredTrace = state["stored"]
    tensors, gradients = (
        unpack_tensors(state["tensors"], group) for group in ("tensors", "gradients")
    )
    return {
        "_pass": LoadedPass(stored.trace, tensors, gradients),
        "model": stored.model,
        "random_seed": stored.random_seed,
        "_saved_only": stored.saved_only,
        "_output": state["_output"],
    }


def _stored(trace: Trace) -> StoredTrace:
    return StoredTrace(
        model=trace.model,
        trace=trace.record,
        random_seed=trace.random_seed,
        saved_only=trace.lists_saved_only,
    )


def _groups(trace: Trace) -> dict[str, Mapping[tuple[OpId, int], torch.Tensor]]:
    return {"tensors": trace.saved_tensors, "gradients": trace.saved_gradients}

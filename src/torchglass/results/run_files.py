"""Finds the run files of a path, a folder or a pattern."""

from __future__ import annotations

import glob
from collections import defaultdict
from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path

from torchglass.errors import StoreError, TargetError, warn
from torchglass.records.run import RunRecord
from torchglass.store.file_reader import FileReader

_MOST_NAMES = 8


def open_readers(target: str | PathLike[str]) -> list[FileReader]:
    """The file that a path names, or the files of all ranks in a folder or behind a pattern."""
    path = Path(target)
    if path.is_dir():
        return _of_one_run(path, sorted(path.glob("*.glass")))
    if not path.exists() and glob.has_magic(fspath(target)):
        found = glob.glob(fspath(target), recursive=True)  # noqa: PTH207 - it may be absolute
        return _of_one_run(path, sorted(map(Path, found)))
    return [FileReader(path)]


def _of_one_run(target: Path, paths: Sequence[Path]) -> list[FileReader]:
    readers = _filled(_readable(paths))
    if not readers:
        raise StoreError(f"there is no run file in {target}")
    runs: defaultdict[object, list[FileReader]] = defaultdict(list)
    for reader in readers:
        runs[_identity(reader.run())].append(reader)
    ranks = {reader.run().rank for reader in readers}
    if len(runs) == 1 and len(ranks) == len(readers):
        return readers
    for reader in readers:
        reader.close()
    names = [reader.path.name for reader in readers]
    shown = ", ".join(names[:_MOST_NAMES]) + (", …" if len(names) > _MOST_NAMES else "")
    raise TargetError(
        f"{target} contains more than one run: {shown}; name one of them, or a pattern that "
        "only the ranks of one run match"
    )


def _readable(paths: Sequence[Path]) -> list[FileReader]:
    """The files that can be opened; one that is just being created is left out."""
    readers = []
    for path in paths:
        try:
            readers.append(FileReader(path))
        except StoreError as error:  # noqa: PERF203 - a handful of files
            warn(f"left out: {error}")
    return readers


def _filled(readers: Sequence[FileReader]) -> list[FileReader]:
    """All but empty closed files, if there are others."""
    filled = [reader for reader in readers if not (reader.finished() and reader.is_empty())]
    for reader in readers:
        if filled and reader not in filled:
            reader.close()
    return filled or list(readers)


def _identity(run: RunRecord) -> object:
    """What the ranks of one run have in common."""
    return run.group or (run.name, run.command, run.world_size)

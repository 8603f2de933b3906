"""The paths of files that views and results are written to."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def without_ending(file: str | os.PathLike[str], *endings: str) -> Path:
    """A path without its file ending, if that is one of these: "lr0.1" is all name.

    >>> without_ending("insight.json", "json").name, without_ending("lr0.1", "json").name
    ('insight', 'lr0.1')
    """
    path = Path(file)
    if path.suffix.removeprefix(".").lower() in endings:
        return path.with_suffix("")
    return path


def in_its_folder(file: str | os.PathLike[str]) -> Path:
    """The path of a file that is about to be written, in a folder that is made if need be."""
    path = Path(file)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        folder = str(path.parent)
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder) from None
    return path

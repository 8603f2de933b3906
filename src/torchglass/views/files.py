"""The files that users name to have a view or a result written to."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def in_its_folder(file: str | os.PathLike[str]) -> Path:
    """The path of a file that is about to be written, in a folder that is made if need be."""
    path = Path(file)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        folder = str(path.parent)
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder) from None
    return path

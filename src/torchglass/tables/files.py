"""The text of JSON and CSV files, and the paths they are written to."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def json_text(plain: Any) -> str:
    """JSON in ASCII, so that any name can be written anywhere."""
    return json.dumps(plain, indent=2)


def typed_shape(shape: Sequence[int] | None) -> str:
    """A shape as it is typed on the command line: "1x3x224x224"."""
    return "?" if shape is None else "x".join(map(str, shape)) or "scalar"


def csv_text(headings: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """A line of headings, and a line for each row; None leaves its cell empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(headings)
    writer.writerows(rows)
    return text.getvalue()


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


File = str | os.PathLike[str]


def written(text: str, file: File | None) -> str:
    """The text, which also goes into a file if one is named."""
    if file is not None:
        in_its_folder(file).write_text(text, encoding="utf-8")
    return text

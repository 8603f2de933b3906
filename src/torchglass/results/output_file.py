"""Writes the text of a result to a file."""

from __future__ import annotations

import os

from torchglass.views.output_paths import in_its_folder

File = str | os.PathLike[str]


def written(text: str, file: File | None) -> str:
    """The text, which also goes into a file if one is named."""
    if file is not None:
        in_its_folder(file).write_text(text, encoding="utf-8")
    return text

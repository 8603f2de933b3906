"""What a result gives as text, also written to a file."""

from __future__ import annotations

import os
from pathlib import Path

File = str | os.PathLike[str]


def written(text: str, file: File | None) -> str:
    """The text, which also goes into a file if one is named."""
    if file is not None:
        Path(file).write_text(text, encoding="utf-8")
    return text

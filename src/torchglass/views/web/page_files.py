"""The files of the built page, by name."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from torchglass.errors import ViewError

MEDIA_TYPES = {
    "index.html": "text/html",
    "page.js": "text/javascript",
    "layout.js": "text/javascript",
    "page.css": "text/css",
    "icon.svg": "image/svg+xml",
    "THIRD_PARTY.txt": "text/plain",
}
"""All that can be asked for: a path in a request is looked up here and never opened."""

_FOLDER = Path(__file__).parent / "page"


@cache
def read(name: str) -> bytes:
    """The content of one file of the page."""
    try:
        return (_FOLDER / name).read_bytes()
    except FileNotFoundError as error:
        raise ViewError(
            "the page was not built: install the package anew, or run `python hatch_build.py` in "
            "its checkout"
        ) from error

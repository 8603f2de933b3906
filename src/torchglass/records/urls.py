"""Tells URLs from paths, and shows them without secrets. Light: every command imports it."""

from __future__ import annotations

import re
from os import PathLike, fspath

_URL = re.compile(r"([a-z][a-z0-9+]+):/+(.*)", re.DOTALL)
_SECRET = re.compile(r"(?<=://)[^/@\s]+@")


def url_of(target: object) -> str | None:
    """The URL that a target is, without a "/" at its end; None for any other target.

    A path has only one "/" of "s3://bucket"; it is put back.

    >>> url_of("s3://bucket/run/"), url_of(Path("s3://bucket/run")), url_of("runs/mnist.glass")
    ('s3://bucket/run', 's3://bucket/run', None)
    """
    if not isinstance(target, (str, PathLike)):
        return None
    found = _URL.fullmatch(str(fspath(target)))
    if found is None:
        return None
    scheme, rest = found.groups()
    return f"{scheme}://{'/' if scheme == 'file' else ''}{rest.rstrip('/')}"


def place_text(place: PathLike[str]) -> str:
    """A folder as it is shown; its path may be that of a URL."""
    url = url_of(place)
    return fspath(place) if url is None else without_secrets(url)


def without_secrets(text: str) -> str:
    """A text whose URLs have no user and no password.

    >>> without_secrets("ftp://me:secret@host/run")
    'ftp://host/run'
    """
    return _SECRET.sub("", text)

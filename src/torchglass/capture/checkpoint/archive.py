"""The zip files that torch writes, opened only if they are what they claim to be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zipfile import ZIP_STORED, BadZipFile, ZipFile

from torchglass.errors import TargetError

_TEXT = "/code/"
"""Where an archive keeps the source of TorchScript, the one thing that torch compresses."""


def allowing(what: str) -> str:
    """How to have something read that may run code."""
    return f"if you trust {what}, allow that with --unsafe (in code: unsafe=True)"


def is_archive(path: Path) -> bool:
    """Whether torch takes a file for a zip file."""
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


@contextmanager
def open_archive(path: Path) -> Iterator[ZipFile]:
    """A zip file whose content is no larger than itself.

    Torch stores its data without compression, to map it into memory. What is compressed, or
    declares more than the file has room for, was made to fill the memory of whoever loads it.
    """
    try:
        archive = ZipFile(path)
    except BadZipFile as error:
        raise TargetError(f"{path.name} is truncated or corrupt: {error}") from error
    with archive:
        stored = [member for member in archive.infolist() if _TEXT not in member.filename]
        actual, declared = path.stat().st_size, sum(member.file_size for member in stored)
        if any(member.compress_type != ZIP_STORED for member in stored) or declared > actual:
            raise TargetError(
                f"{path.name} is refused: it would grow from {actual:,} to {declared:,} bytes when"
                " loaded, and torch never compresses what it saves"
            )
        yield archive

"""The names of rp's functions that ask for a file and write one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from torchglass.api.exploring import in_event_loop
from torchglass.errors import TargetError, ViewError
from torchglass.targets.folders import find_files
from torchglass.views.files import in_its_folder


def input_select_file(
    root: str | os.PathLike[str] = ".", *, extension_filter: str | Iterable[str] | None = None
) -> str:
    """Let the user pick a file of a folder and of the ones in it, the latest first; its path.

    `extension_filter` is an ending such as "pth", or several; without it all files are offered.
    """
    endings = [extension_filter] if isinstance(extension_filter, str) else extension_filter
    wanted = None if endings is None else tuple("." + ending.lstrip(".") for ending in endings)
    folder = Path(root)
    found = find_files(folder, lambda path: wanted is None or path.name.endswith(wanted))
    if not found:
        kind = "file" if wanted is None else f"{' or '.join(wanted)} file"
        raise TargetError(f"there is no {kind} in {folder.resolve()}")
    if in_event_loop() or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ViewError(f"picking a file needs a terminal; there are {_listed(found)}")
    from torchglass.views.tui.windows.picker import pick

    picked = pick(found, "Which file")
    if picked is None:
        raise TargetError("no file was picked")
    return str(picked)


def save_text_file(text: str, path: str | os.PathLike[str]) -> str:
    """Write a text to a file in UTF-8; the whole path of the file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Path(save_text_file("glass", folder + "/note.txt")).read_text()
    'glass'
    """
    file = in_its_folder(Path(path).expanduser())
    file.write_text(text, encoding="utf-8")
    return str(file.absolute())


def _listed(files: list[Path]) -> str:
    more = ", …" if len(files) > 5 else ""
    return ", ".join(map(str, files[:5])) + more

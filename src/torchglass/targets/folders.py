"""The runs and checkpoints that are in a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from torchglass.targets.names import RUN_SUFFIX

_TARGETS = {RUN_SUFFIX, ".safetensors", ".pt", ".pth", ".pt2", ".bin", ".ckpt"}
_DEPTH = 3
_MOST = 200


def find_targets(folder: Path) -> list[Path]:
    """What can be looked at in a folder and the ones in it, the latest first."""
    return find_files(folder, lambda path: path.suffix in _TARGETS)


def find_files(folder: Path, is_wanted: Callable[[Path], bool]) -> list[Path]:
    """Some files in a folder and the ones in it, the latest first."""
    found = filter(is_wanted, _files(folder, _DEPTH))
    return sorted(found, key=_changed, reverse=True)[:_MOST]


def _files(folder: Path, depth: int) -> Iterator[Path]:
    try:
        inside = sorted(folder.iterdir())
    except OSError:
        return
    for path in inside:
        if path.name.startswith(".") or path.name in {"node_modules", "site-packages"}:
            continue
        if path.is_dir() and depth > 1:
            yield from _files(path, depth - 1)
        elif path.is_file():
            yield path


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0

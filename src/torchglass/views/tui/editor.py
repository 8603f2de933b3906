"""Opening a file in the user's editor."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

from textual.app import App, SuspendNotSupported

from torchglass.records.model import Model, Module

_GO_TO = {"code", "code-insiders", "codium", "cursor", "windsurf"}
_WITH_COLON = {"hx", "helix", "subl", "zed", "zeditor"}


def source_place(model: Model, module: Module) -> tuple[str, int] | None:
    """The file and line of a module's forward, or of its class; None where there is no file."""
    source = model.classes.get(module.class_name)
    if source is None:
        return None
    file = source.forward_file or source.file
    return (file, source.forward_line or 1) if Path(file).is_file() else None


def open_editor(app: App[None], file: str, line: int) -> str:
    """Let the user edit a file, and come back; what went wrong, or ""."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not editor:
        return f"Set $EDITOR to open {file}:{line}"
    try:
        words = shlex.split(editor)
        with app.suspend():
            subprocess.run([*words, *_place(words[0], file, line)], check=False)
    except (OSError, SuspendNotSupported, ValueError) as error:
        return f"Cannot start {editor}: {error}"
    return ""


def _place(editor: str, file: str, line: int) -> list[str]:
    """A line of a file as an editor takes it on its command line."""
    name = Path(editor).stem
    if name in _GO_TO:
        return ["--goto", f"{file}:{line}"]
    return [f"{file}:{line}"] if name in _WITH_COLON else [f"+{line}", file]

"""Opening a file in the user's editor."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

from textual.app import App, SuspendNotSupported

from torchglass.records.model import Model, Module


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
        return f"set $EDITOR to open {file}:{line}"
    try:
        with app.suspend():
            subprocess.run([*shlex.split(editor), f"+{line}", file], check=False)
    except (OSError, SuspendNotSupported, ValueError) as error:
        return f"cannot start {editor}: {error}"
    return ""

"""The page's source and the tools of its language, for tests that need them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import hatch_build

FRONTEND = Path(hatch_build.__file__).parent / "frontend"


def find_node() -> hatch_build.Node | None:
    """Node, with the packages that checking needs installed beside the source."""
    node = hatch_build.system_node() or hatch_build.pypi_node()
    if node is None:
        return None
    installed = FRONTEND / "node_modules" / ".package-lock.json"
    lock = FRONTEND / "package-lock.json"
    if not installed.exists() or installed.stat().st_mtime < lock.stat().st_mtime:
        run(*node.npm, "ci", "--include=dev", "--ignore-scripts", "--no-audit", "--no-fund")
    return node


def run(*command: str) -> None:
    """Run a command beside the source; what it said is the message if it fails."""
    done = subprocess.run(command, cwd=FRONTEND, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr

"""The page's own source, checked by the tools of its language."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import hatch_build

FRONTEND = Path(hatch_build.__file__).parent / "frontend"


@pytest.fixture(scope="module")
def node() -> hatch_build.Node:
    """Node, with the packages that checking needs installed beside the source."""
    node = hatch_build.system_node() or hatch_build.pypi_node()
    if node is None:
        pytest.skip("there is no Node.js on this machine")
    installed = FRONTEND / "node_modules" / ".package-lock.json"
    lock = FRONTEND / "package-lock.json"
    if not installed.exists() or installed.stat().st_mtime < lock.stat().st_mtime:
        run(*node.npm, "ci", "--include=dev", "--ignore-scripts", "--no-audit", "--no-fund")
    return node


def run(*command: str) -> None:
    done = subprocess.run(command, cwd=FRONTEND, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_types_of_the_page_hold(node: hatch_build.Node) -> None:
    run(*node.node, "node_modules/typescript/bin/tsc")


def test_the_logic_of_the_page_passes_its_tests(node: hatch_build.Node) -> None:
    run(*node.node, "tests/run.mjs")

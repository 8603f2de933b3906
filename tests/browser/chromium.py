"""A Chromium to drive: found, installed where that is possible, or asked for in one line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find() -> str | None:
    """The executable: what TORCHGLASS_CHROMIUM says, the system's, or Playwright's own."""
    named = os.environ.get("TORCHGLASS_CHROMIUM")
    if named:
        return shutil.which(named)
    return next(filter(None, map(shutil.which, NAMES)), None) or _playwrights_own()


def _playwrights_own() -> str | None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    return own if Path(own).is_file() else None


def install() -> str | None:
    """Install one as the system does, if we may, else as Playwright does."""
    commands = [[sys.executable, "-m", "playwright", "install", "chromium"]]
    if shutil.which("apt-get") and hasattr(os, "geteuid") and os.geteuid() == 0:
        commands.insert(0, ["apt-get", "install", "--yes", "--quiet", "chromium"])
    for command in commands:
        sys.stderr.write(f"No Chromium found; trying: {' '.join(command)}\n")
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
        if found := find():
            return found
    return None


if __name__ == "__main__" and not (find() or install()):
    sys.exit(
        "The browser tests need Chromium: install it with your package manager, or set "
        "TORCHGLASS_CHROMIUM to its executable."
    )

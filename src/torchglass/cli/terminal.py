"""The terminal that results are printed to."""

from __future__ import annotations

import shutil
import sys


def terminal_width() -> int | None:
    """How many columns there are to print to, `COLUMNS` if that is set; None for a file or pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None

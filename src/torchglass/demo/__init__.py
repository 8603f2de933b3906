"""`torchglass demo`: a small model trains while it is watched, and shows what was seen."""

from __future__ import annotations

import os
import shutil
import sys
from datetime import datetime
from pathlib import Path

from rich.console import Console

from torchglass.results.run import open_run
from torchglass.targets.names import RUN_SUFFIX

FOLDER = Path("torchglass-demo")


def run(directory: Path | None = None, *, show: bool | None = None, steps: int = 300) -> None:
    """Train, record into a new run file in the directory, save its page, and show it.

    With `show` the terminal explorer opens, otherwise a report is printed; by default it depends on
    whether there is a terminal. Ctrl-C ends the training early, and what there is is shown.
    """
    from torchglass.demo.training import print_report, train
    from torchglass.views.web.saved_page import write_page

    console = Console(highlight=False, soft_wrap=True)
    file = (directory or FOLDER) / f"{datetime.now():%Y%m%d-%H%M%S}{RUN_SUFFIX}"
    model = train(file, steps, console)
    page = file.with_suffix(".html")
    with open_run(file) as seen:
        write_page(seen.reader, page)
        if show if show is not None else console.is_terminal and sys.stdin.isatty():
            from torchglass.views.tui.app import run_explorer

            run_explorer(seen.reader)
        else:
            print_report(model, seen, console)
    _print_ways_on(console, file, page)


def _print_ways_on(console: Console, file: Path, page: Path) -> None:
    command, python = _called("torchglass"), _called(Path(sys.executable).name)
    console.out(
        f"""
The run       {file}
and its page  {page} (one file, needs no server)

Now try
  {command} explore {file}
  {command} view {file}
  {python} -c 'import torchglass as tg; print(tg.open("{file}"))'"""
    )


def _called(program: str) -> str:
    """How a program beside our Python is called here: by its name where the shell finds it."""
    beside = Path(sys.executable).with_name(program)
    if not beside.exists() or shutil.which(program) == str(beside):
        return program
    return os.path.relpath(beside)

"""`watch(backend="standalone")` when the program has ended: who stays, what is shown, what is left.

The programs run at real terminals, in pipes, and without either.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import torchglass as tg
from tests.pages import read_page
from tests.terminals import Terminal

TRAINING = """
import sys
import torch
import torchglass as tg

def train(**options):
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    tg.watch(model, backend="standalone", standalone_port=0, save="mine.glass", **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(12):
        model(torch.randn(5, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    model(torch.randn(5, 4))

"""
slow = partial(pytest.param, marks=pytest.mark.slow)
STAYS = "The page stays until Ctrl-C"
ENDS = "Training ended. Reopen: torchglass view mine.glass"


def program(ending: str, folder: Path) -> list[str]:
    """A command that trains and then ends in some way."""
    (folder / "train.py").write_text(TRAINING + ending)
    return [sys.executable, "train.py"]


def status(screen: str) -> dict[str, Any]:
    """What the page says of its run."""
    (url,) = set(re.findall(r"http://localhost:\d+/\?token=[\w-]+", screen))
    told: dict[str, Any] = read_page(url, "api/run")["status"]
    return told


def files(folder: Path) -> set[str]:
    """What a training has left in its folder."""
    return {path.name for path in folder.iterdir()} - {"train.py", "__pycache__"}


@pytest.mark.parametrize("end", ["Ctrl-C", slow("SIGTERM"), slow("SIGHUP")])
def test_in_a_terminal_the_page_stays_until_interrupted_and_exits_cleanly(
    end: str, tmp_path: Path
) -> None:
    with Terminal(program("train()", tmp_path), folder=tmp_path) as terminal:
        screen = terminal.read_until("Reopen later: torchglass view mine.glass")
        told = status(screen)
        if end == "Ctrl-C":
            terminal.press(Terminal.INTERRUPT)
        else:
            terminal.process.send_signal(getattr(signal, end))
        code = terminal.exit_code()

    assert (told["last_step"], told["finished"]) == (11, True)
    assert code == 0
    assert "Traceback" not in terminal.screen
    assert STAYS in screen
    assert files(tmp_path) == {"mine.glass"}
    assert tg.open(tmp_path / "mine.glass").reader.last_step() == 11


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        slow("train(); sys.exit(3)", 3),
        slow("train(); sys.exit('no data')", 1),
        slow("train(); raise SystemExit(4)", 4),
        slow("train(); raise ValueError('mine')", 1),
        slow("train(wait=True); raise ValueError('mine')", 1),
        slow("train(wait=False)", 0),
    ],
)
def test_a_failed_program_or_wait_false_exits_at_once_with_its_exit_code(
    ending: str, code: int, tmp_path: Path
) -> None:
    with Terminal(program(ending, tmp_path), folder=tmp_path) as terminal:
        assert terminal.exit_code() == code

    assert ENDS in terminal.screen
    assert STAYS not in terminal.screen
    assert files(tmp_path) == {"mine.glass"}


@pytest.mark.parametrize(
    "ending",
    [
        slow("train(); sys.exit()"),
        slow(
            """
try:
    sys.exit(1)
except SystemExit:
    train()
"""
        ),
        # Python tells nobody the exit code, so that it stays only if it is asked to.
        slow("sys.exit(train(wait=True))"),
    ],
    ids=["sys.exit()", "caught", "asked"],
)
def test_a_successful_program_waits_however_it_exits(ending: str, tmp_path: Path) -> None:
    with Terminal(program(ending, tmp_path), folder=tmp_path) as terminal:
        terminal.read_until(STAYS)
        terminal.press(Terminal.INTERRUPT)
        assert terminal.exit_code() == 0


@pytest.mark.parametrize("pipe", [slow("| tee log"), slow("2>&1 | tee log"), slow("> log")])
def test_a_program_with_piped_output_waits(pipe: str, tmp_path: Path) -> None:
    command = shlex.join(program("train()", tmp_path))
    # As a shell at a desk, which gives each pipeline a process group of its own.
    with Terminal(["bash", "-c", f"set -m; {command} {pipe}"], folder=tmp_path) as terminal:
        terminal.read_until(STAYS)
        terminal.press(Terminal.INTERRUPT)
        terminal.exit_code()

    assert "Traceback" not in terminal.screen
    assert files(tmp_path) == {"mine.glass", "log"}


@pytest.mark.parametrize("where", [slow("in the background"), slow("with its errors in a file")])
def test_a_background_or_redirected_program_does_not_wait(where: str, tmp_path: Path) -> None:
    command = shlex.join(program("train()", tmp_path))
    shell = f"set -m; {command} & wait" if "background" in where else f"{command} 2> log"

    with Terminal(["bash", "-c", shell], folder=tmp_path) as terminal:
        assert terminal.exit_code() == 0

    log = tmp_path / "log"
    assert ENDS in (log.read_text() if log.exists() else terminal.screen)


def test_without_a_terminal_a_program_exits_and_says_how_to_open_its_run(tmp_path: Path) -> None:
    done = subprocess.run(
        program("train()", tmp_path),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        start_new_session=True,
        check=True,
    )

    assert done.stderr.rstrip().endswith(ENDS)
    assert files(tmp_path) == {"mine.glass"}


@pytest.mark.parametrize("how", [slow("environment"), slow("argument")])
def test_wait_true_needs_no_terminal(how: str, tmp_path: Path) -> None:
    ending, value = ("train()", "1") if how == "environment" else ("train(wait=True)", "0")
    with subprocess.Popen(
        program(ending, tmp_path),
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "TORCHGLASS_WAIT": value,
        },
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stderr is not None
        said = ""
        while STAYS not in said:
            said += (line := running.stderr.readline())
            assert line, said
        told = status(said)
        running.terminate()

    assert running.returncode == 0
    assert told["finished"]
    assert files(tmp_path) == {"mine.glass"}


@pytest.mark.slow
def test_two_pages_end_with_one_interrupt(tmp_path: Path) -> None:
    ending = """
tg.watch(torch.nn.ReLU(), backend="standalone", standalone_port=0, save="other.glass")
train()
"""
    with Terminal(program(ending, tmp_path), folder=tmp_path) as terminal:
        terminal.read_until("torchglass view mine.glass")
        terminal.press(Terminal.INTERRUPT)
        assert terminal.exit_code() == 0

    assert files(tmp_path) == {"mine.glass", "other.glass"}

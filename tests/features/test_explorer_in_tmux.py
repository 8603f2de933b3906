"""Someone starts the explorer in a real terminal, drives it and quits."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchglass as tg

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))

    def forward(self, x: torch.Tensor) -> Any:
        return x + self.mlp(x)


class TinyGPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(64, 100)

    def forward(self, tokens: torch.Tensor) -> Any:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Terminal:
    """A terminal with a program in it, on a tmux server of its own."""

    def __init__(self, folder: Path) -> None:
        self._socket = str(folder / f"tmux-{uuid.uuid4().hex[:8]}")
        self._output = folder / "output"
        os.mkfifo(self._output)
        # Also for writing: a pipe that others have closed would always seem to have news.
        self._news = os.open(self._output, os.O_RDWR | os.O_NONBLOCK)

    def start(self, *command: str, size: tuple[int, int], environment: Mapping[str, str]) -> None:
        """Open the terminal and run a command; the shell stays when it is done."""
        width, height = size
        settings = [f"{name}={value}" for name, value in environment.items()]
        self._tmux("new-session", "-d", "-x", f"{width}", "-y", f"{height}", "sh")
        self._tmux("pipe-pane", f"exec cat > '{self._output}'")
        self.type(" ".join(["env", "-u", "COLUMNS", "-u", "LINES", *settings, *command]), "Enter")

    def start_again(self, *command: str, environment: Mapping[str, str]) -> None:
        """Run a command in the terminal that is there."""
        settings = [f"{name}={value}" for name, value in environment.items()]
        self.type(" ".join(["env", *settings, *command]), "Enter")

    def type(self, *keys: str) -> None:
        """Press keys, as tmux names them."""
        self._tmux("send-keys", *keys)

    def text(self) -> str:
        """What the terminal shows."""
        return self._tmux("capture-pane", "-p")

    def wait_for(self, text: str) -> str:
        """What the terminal shows once it shows the text."""
        while text not in (shown := self.text()):
            assert self._wait_for_news(), f"never saw {text!r} in:\n{shown}"
        return shown

    def wait_for_shell(self) -> None:
        """Return once the program has left the terminal to the shell."""
        while self._tmux("display-message", "-p", "#{alternate_on}").strip() != "0":
            assert self._wait_for_news(), f"still runs:\n{self.text()}"

    def close(self) -> None:
        """End the server and all in it."""
        self._tmux("kill-server")
        os.close(self._news)

    def _wait_for_news(self) -> bool:
        """Wait until the program has written something: asking tmux all the time would slow it."""
        news = bool(select.select([self._news], [], [], PATIENCE)[0])
        with contextlib.suppress(BlockingIOError):
            while os.read(self._news, 65536):
                pass
        return news

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-u", "-f", os.devnull, "-S", self._socket, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.close()


def home(folder: Path) -> dict[str, str]:
    """An environment in which nothing of this machine's user is read or written."""
    return {
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "LANG": "C.UTF-8",
        "XDG_CONFIG_HOME": str(folder / "config"),
        "HOME": str(folder),
    }


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({}, id="colors"),
        pytest.param({"NO_COLOR": "1"}, id="no colors", marks=pytest.mark.slow),
        pytest.param(
            {"TERM": "xterm-16color", "COLORTERM": "''"}, id="16 colors", marks=pytest.mark.slow
        ),
    ],
)
def test_the_explorer_in_a_real_terminal(
    terminal: Terminal, tmp_path: Path, environment: Mapping[str, str]
) -> None:
    file = tmp_path / "run.glass"
    with tg.watch(TinyGPT(), save=file, verbose=False) as watcher:
        for step in range(30):
            watcher.log("loss", 1 / (step + 1))
            watcher.step()

    terminal.start(
        *(sys.executable, "-m", "torchglass", "explore", str(file)),
        *("&&", "echo", "'the explorer'", "'is gone'"),
        size=(100, 30),
        environment={**home(tmp_path), **environment},
    )
    first = terminal.wait_for("Healthy: no problems found in 30 steps")
    assert "TinyGPT" in first

    terminal.wait_for("step 29 ✓ finished")
    terminal.type("Escape")
    terminal.wait_for("Embedding")
    terminal.type("Down", "i")
    terminal.wait_for("Embedding(100, 64)")

    # In one burst, as a slow line delivers it: no letter may go to the tree.
    terminal.type("-l", "/gelu")
    terminal.wait_for("1 of 2")
    terminal.type("Enter")
    terminal.wait_for("blocks.0.mlp.1 · GELU ×2 · 1 of 2")
    terminal.type("n")
    terminal.wait_for("blocks.1.mlp.1 · GELU ×2 · 2 of 2")

    terminal.type("?")
    terminal.wait_for("Show all keys")
    terminal.type("q")
    terminal.type("q")

    assert "Embedding" not in terminal.wait_for("the explorer is gone")


NET = """
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.last = nn.Linear(8, 2)

    def forward(self, x):
        return self.last(self.first(x).relu())
"""


@pytest.mark.slow
def test_the_command_runs_a_model_and_shows_it(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    command = [sys.executable, "-m", "torchglass", "explore", f"{tmp_path}/net.py:Net"]
    environment = home(tmp_path) | {"EDITOR": "'echo edited'"}

    terminal.start(*command, "--input", "3x4", size=(140, 30), environment=environment)
    terminal.wait_for("first")
    terminal.type("j", "f")
    terminal.wait_for("3×8")
    terminal.type("c")
    terminal.wait_for("def forward(self")
    terminal.type("L")
    terminal.wait_for("Module Type")
    terminal.type("Down", "Down", "Space", "L")
    terminal.wait_for("first · Linear ×2")
    terminal.type("/", "last", "Enter")
    terminal.wait_for("last · Linear ×2 · 1 of 1")
    terminal.type("q")
    terminal.wait_for_shell()

    # What was chosen is there again: no classes in the tree.
    terminal.type("clear", "Enter")
    terminal.start_again(*command, environment=environment)
    shown = terminal.wait_for("first")
    assert "Linear    " not in shown.split("│")[0]
    terminal.type("q")


def test_a_live_run_updates_in_the_terminal(terminal: Terminal, tmp_path: Path) -> None:
    file = tmp_path / "run.glass"
    model, tokens = TinyGPT(), torch.ones(1, 4, dtype=torch.int64)
    watcher = tg.watch(model, save=file, log="io", verbose=False)
    watcher.log("loss", 4.0)
    watcher.step()

    command = [sys.executable, "-m", "torchglass", "explore", str(file)]
    terminal.start(*command, size=(120, 24), environment=home(tmp_path))
    terminal.wait_for("step 0 ○")
    # A run counts as live for some seconds only, in which a busy machine may not be looked at.
    for step in range(1, 1_000):
        watcher.log("loss", 1 / step)
        watcher.step()
        if "● live" in terminal.wait_for(f"step {step} "):
            break
    else:
        pytest.fail("never seen live")

    model.embed.weight.data.fill_(torch.nan)
    model(tokens)
    watcher.step()
    terminal.wait_for("Broken: All 256 values leaving `embed`")
    terminal.type("Escape")
    terminal.wait_for("embed ✗")
    terminal.type("!")
    terminal.wait_for("All 256 values leaving `embed`")
    watcher.close()
    terminal.wait_for(f"step {step + 1} ✗ NaN since step {step + 1}")

    file.unlink()
    terminal.type("Down")
    terminal.wait_for("embed · Embedding")
    terminal.type("q")


BROKEN = """
from torch import nn

class Broken(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(8, 16), nn.Linear(12, 4))
"""


def test_a_broken_forward_opens_with_its_explanation(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    target = f"{tmp_path / 'broken.py'}:Broken"

    terminal.start(
        sys.executable,
        *("-m", "torchglass", "explore", target, "--input", "2x8"),
        size=(120, 40),
        environment=home(tmp_path),
    )

    shown = terminal.wait_for("use Linear(16, 4)")
    assert "RuntimeError: mat1 and mat2 shapes cannot be" in shown
    terminal.wait_for("1 ✗")
    terminal.type("q")


@pytest.mark.slow
def test_a_comparison_and_a_report_open_from_the_command_line(
    terminal: Terminal, tmp_path: Path
) -> None:
    weights = {"first.weight": torch.ones(8, 4), "last.weight": torch.ones(2, 8)}
    torch.save(weights, tmp_path / "before.pt")
    torch.save(weights | {"last.weight": torch.full((2, 8), 1.5)}, tmp_path / "after.pt")
    command = [sys.executable, "-m", "torchglass", "compare"]
    files = [str(tmp_path / "before.pt"), str(tmp_path / "after.pt")]

    terminal.start(*command, *files, "--explore", size=(140, 40), environment=home(tmp_path))
    terminal.wait_for("1 of 2 tensors differs. Same structure.")
    terminal.wait_for("name in a")
    terminal.type("n")
    terminal.wait_for("weight  2×8 float32  Δ 0.5")
    terminal.type("&")
    terminal.wait_for("Changed modules only")
    terminal.type("q")
    terminal.wait_for_shell()

    (tmp_path / "net.py").write_text(NET)
    net = [f"{tmp_path}/net.py:Net", "--input", "16x4"]
    quantize = [sys.executable, "-m", "torchglass", "quantization", *net, "--explore"]
    terminal.type("clear", "Enter")
    terminal.start_again(*quantize, environment=home(tmp_path))
    terminal.wait_for("suggested")
    terminal.type("Down")
    terminal.wait_for("Quantization  of first")
    terminal.type("q")
    terminal.wait_for_shell()

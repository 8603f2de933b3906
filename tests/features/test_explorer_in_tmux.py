"""Someone starts the explorer in a real terminal, drives it and quits."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
SCRIPT = """
from tests.unit.views.tui.runs import Training
from torchglass.views.tui.app import run_explorer

run_explorer(Training().train(30).finish())
print("the explorer", "is gone")
"""


class Terminal:
    """A terminal with a program in it, on a tmux server of its own."""

    def __init__(self, folder: Path) -> None:
        self._socket = str(folder / f"tmux-{uuid.uuid4().hex[:8]}")

    def start(self, *command: str, size: tuple[int, int], environment: Mapping[str, str]) -> None:
        """Open the terminal and run a command; the shell stays when it is done."""
        width, height = size
        settings = [f"{name}={value}" for name, value in environment.items()]
        self._tmux("new-session", "-d", "-x", f"{width}", "-y", f"{height}", "sh")
        self.type(" ".join(["env", "-u", "COLUMNS", "-u", "LINES", *settings, *command]), "Enter")

    def type(self, *keys: str) -> None:
        """Press keys, as tmux names them."""
        self._tmux("send-keys", *keys)

    def text(self) -> str:
        """What the terminal shows."""
        return self._tmux("capture-pane", "-p")

    def wait_for(self, text: str) -> str:
        """What the terminal shows once it shows the text."""
        end = time.monotonic() + PATIENCE
        while text not in (shown := self.text()):
            assert time.monotonic() < end, f"never saw {text!r} in:\n{shown}"
        return shown

    def close(self) -> None:
        """End the server and all in it."""
        self._tmux("kill-server")

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-u", "-f", os.devnull, "-S", self._socket, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.close()


@pytest.mark.parametrize(
    "environment",
    [{}, {"NO_COLOR": "1"}, {"TERM": "xterm-16color", "COLORTERM": "''"}],
    ids=["colours", "no colours", "16 colours"],
)
def test_the_explorer_in_a_real_terminal(
    terminal: Terminal, tmp_path: Path, environment: Mapping[str, str]
) -> None:
    script = tmp_path / "explore.py"
    script.write_text(SCRIPT)
    where = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "LANG": "C.UTF-8"}

    terminal.start(
        sys.executable, str(script), size=(100, 30), environment={**where, **environment}
    )
    first = terminal.wait_for("Embedding")
    assert "TinyGPT" in first

    terminal.wait_for("step 29 ✓ finished")
    terminal.type("Down")
    terminal.wait_for("Embedding(100, 64)")

    # In one burst, as a slow line delivers it: no letter may go to the tree.
    terminal.type("-l", "/gelu")
    terminal.wait_for("1 of 2")
    terminal.type("Enter")
    terminal.wait_for("blocks.0.mlp.1 · GELU ×2 · 1 of 2")
    terminal.type("n")
    terminal.wait_for("blocks.1.mlp.1 · GELU ×2 · 2 of 2")

    terminal.type("?")
    terminal.wait_for("show this page")
    terminal.type("q")
    terminal.type("q")

    assert "Embedding" not in terminal.wait_for("the explorer is gone")

"""A person with a narrow terminal reads every table without a line that wraps."""

from __future__ import annotations

import io
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from rich.cells import cell_len
from torch import nn

import torchglass as tg
from tests.command_line import main
from tests.terminals import run_in_terminal

NET = """
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a_block_with_a_rather_long_name = nn.Sequential(nn.Linear(8, 32), nn.GELU())
            self.head = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)

        def forward(self, x):
            return self.head(self.a_block_with_a_rather_long_name(x))
"""
COMMANDS = [
    ["profile", "--repeats", "2", "--ops"],
    ["profile", "--repeats", "2", "--layers"],
    ["flops", "--backward", "--timed", "--ops"],
    ["memory", "--optimizer", "adamw", "--ops", "--peak"],
    ["inspect", "--backward"],
    ["trace"],
    ["trace", "--op", "gelu_1"],
    ["tree"],
    ["summary"],
]


class Terminal(io.StringIO):
    """A stdout that somebody looks at."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "net.py"
    file.write_text(textwrap.dedent(NET))
    return file


@pytest.mark.parametrize("columns", [40, 60, 80])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_line_is_longer_than_the_terminal(
    command: list[str], columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("COLUMNS", str(columns))

    main([command[0], "net.py:Net", "--input", "2x4x8", *command[1:]])

    lines = terminal.getvalue().splitlines()
    assert len(lines) > 10
    assert max(map(cell_len, lines)) <= columns


def test_a_file_has_all_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")

    main(["inspect", "net.py:Net", "--input", "2x4x8", "--backward"])

    printed = capsys.readouterr().out
    assert "left out" not in printed
    assert max(map(cell_len, printed.splitlines())) > 60


@pytest.mark.slow
def test_the_width_of_the_terminal_is_used() -> None:
    command = [sys.executable, "-m", "torchglass", "flops", "net.py:Net", "--input", "2x4x8"]

    printed, code = run_in_terminal([*command, "--backward"], columns=64)

    assert code == 0
    assert "hidden at 64 columns" in printed
    assert max(map(cell_len, printed.splitlines())) <= 64


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_printed_results_fit_the_requested_width(columns: int) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 8)))
    with tg.record(model) as recording:
        model(torch.randn(2, 8) * torch.tensor([1.0] * 6 + [torch.nan, torch.inf]))

    summary = tg.summary(model)
    tables = [recording.table(width=columns), summary.table(width=columns)]
    tables.append(summary.tree(width=columns))

    assert max(cell_len(line) for table in tables for line in table.splitlines()) <= columns


def test_an_explanation_fits_the_terminal_width(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("COLUMNS", "50")

    assert main(["explain", "net.py:Net", "--input", "2x4x9"]) == 0

    story = terminal.getvalue()
    assert "expects 8 features" in " ".join(story.split())
    assert max(map(cell_len, story.splitlines())) <= 50

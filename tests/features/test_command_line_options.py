"""A person at a shell gives options that do not go together, and reads what they are for."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_line import main

NET = """
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)
            self.head = nn.Linear(8, 2)
            self.spare = nn.Linear(8, 2)

        def forward(self, x):
            return self.head(self.conv(x).mean((2, 3)))
"""
RUN = ["net.py:Net", "--input", "1x3x8x8"]
FAST = ["--warmup", "0", "--repeats", "1"]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The shell's current folder, with the file net.py in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "100")
    Path("net.py").write_text(textwrap.dedent(NET))
    yield
    sys.modules.pop("net", None)


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that a command fails with."""
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    return line.removeprefix("torchglass: ")


@pytest.mark.parametrize("port", ["-5", "65536", "99999"])
def test_an_invalid_port_is_refused(capsys: pytest.CaptureFixture[str], port: str) -> None:
    line = refusal(capsys, "view", "net.py:Net", "--port", port)

    assert line == f"port must be from 0 (any free port) to 65535, not {port}"


@pytest.mark.parametrize(
    "words",
    [
        ["profile", *RUN, *FAST, "--json", "-", "--csv", "-"],
        ["flops", *RUN, "--json", "-", "--csv", "-"],
        ["memory", *RUN, "--json", "-", "--csv", "-"],
        ["summary", "net.py:Net", "--json", "--csv", "-"],
    ],
    ids=lambda words: words[0],
)
def test_only_one_result_can_go_to_stdout(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    line = refusal(capsys, *words)

    assert line == (
        "only one result can go to stdout, not --json and --csv. Write the others to a file."
    )


def test_one_result_is_printed_and_another_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", "net.py:Net", "--json", "--csv", "net.csv"]) == 0

    assert json.loads(capsys.readouterr().out)
    assert "conv" in Path("net.csv").read_text()


@pytest.mark.parametrize(("option", "number"), [("--repeats", "0"), ("--warmup", "-1")])
def test_an_invalid_number_of_runs_is_refused(
    capsys: pytest.CaptureFixture[str], option: str, number: str
) -> None:
    line = refusal(capsys, "profile", *RUN, option, number)

    assert line.startswith(f'Invalid value "{number}" for {option}.')


@pytest.mark.parametrize(
    ("words", "file"),
    [
        (["summary", *RUN, "--csv"], "new/folder/net.csv"),
        (["trace", *RUN, "--draw"], "new/folder/net.svg"),
        (["trace", *RUN, "--out"], "new/folder/net.glass"),
        (["profile", *RUN, *FAST, "--trace"], "new/folder/net.json"),
        (["memory", *RUN, "--json"], "new/folder/net.json"),
        (["inspect", *RUN, "--out"], "new/folder/net.json"),
        (["report", *RUN, "--out"], "new/folder/net.html"),
    ],
    ids=lambda words: f"{words[0]} {words[-1]}" if isinstance(words, list) else "",
)
def test_the_folder_of_an_output_file_is_created(words: list[str], file: str) -> None:
    assert main([*words, file]) == 0

    assert Path(file).stat().st_size


def test_a_tree_shows_the_output_of_each_module_that_ran(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["tree", *RUN]) == 0

    assert capsys.readouterr().out.splitlines() == [
        "Net(",
        "├── 260 parameters",
        "├── conv: Conv2d(3→8, 3×3) → 1×8×6×6 [224 params]",
        "├── head: Linear(8→2) → 1×2 [18 params]",
        "└── spare: Linear(8→2) [18 params]",
    ]


@pytest.mark.parametrize(
    "command", ["trace", "explain", "profile", "flops", "memory", "inspect", "replay"]
)
def test_help_of_commands_that_run_a_model_does_not_mention_checkpoints(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0

    text = capsys.readouterr().out
    assert "checkpoint" not in text
    assert "--debug" in text
    assert "Parameters" not in text


@pytest.mark.parametrize(
    ("command", "usage"),
    [
        ("view", "Usage: torchglass view [OPTIONS] TARGET [OTHERS...]"),
        ("report", "Usage: torchglass report --out PATH [OPTIONS] TARGET [OTHERS...]"),
        ("explore", "Usage: torchglass explore [OPTIONS] [TARGET]"),
        ("demo", "Usage: torchglass demo [OPTIONS] [FOLDER]"),
    ],
)
def test_the_usage_line_names_all_arguments(
    command: str, usage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0

    assert capsys.readouterr().out.splitlines()[0] == usage

"""Someone tries Torchglass for the first time: `make demo`."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torchglass as tg
from tests.command_line import main
from tests.terminals import run_in_terminal


def test_without_a_terminal_the_demo_prints_its_results_and_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random = torch.get_rng_state()
    threads = torch.get_num_threads()

    assert main(["demo", str(tmp_path), "--steps", "60"]) == 0

    printed = capsys.readouterr().out
    file, page = sorted(tmp_path.iterdir())
    assert (file.suffix, page.suffix) == (".glass", ".html")
    assert f"torchglass explore {file}" in printed
    assert str(page) in printed
    assert "embedding.weight = head.weight" in printed
    assert re.search(r"step +60 of 60 +loss \d\.\d+", printed)
    assert re.search(r"  loss +2\.47  █[▁▂▃▄▅▆▇█]+  0\.\d+", printed)
    assert "blocks.0.attention.output.bias.grad" in printed
    assert re.search(r"It sorts 3 1 4 1 5 9 as( \d){6}\.", printed)
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.get_num_threads() == threads


@pytest.mark.slow
def test_the_demo_says_whether_its_training_is_healthy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", str(tmp_path / "healthy"), "--steps", "40"]) == 0
    assert "Healthy: Sorter, finished" in capsys.readouterr().out

    assert main(["demo", str(tmp_path / "sick"), "--steps", "40", "--broken"]) == 0
    printed = capsys.readouterr().out
    assert "Broken: Sorter, finished" in printed
    assert "do: Call optimizer.zero_grad() before each loss.backward()" in printed


def test_the_demo_names_existing_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.defpath)

    assert main(["demo", str(tmp_path), "--steps", "2"]) == 0

    _, _, ways_on = capsys.readouterr().out.partition("Next\n")
    diagnose, explore, view, python = (line.split() for line in ways_on.splitlines())
    assert diagnose[1] == "diagnose"
    assert explore[1:] == ["explore", *map(str, tmp_path.glob("*.glass"))]
    assert view[1] == "view"
    assert shutil.which(explore[0])
    assert Path(python[0]).samefile(sys.executable)


def test_the_demo_leaves_a_run_with_structure_and_series(tmp_path: Path) -> None:
    assert main(["demo", str(tmp_path), "--steps", "30"]) == 0

    (file,) = tmp_path.glob("*.glass")
    with tg.open(file) as run:
        assert run.finished
        assert run.model.name == "Sorter"
        assert run.model.tied
        assert len(run["loss"]) == 30
        assert run["loss"].values[-5:].mean() < run["loss"].values[:5].mean() / 2
        assert len(run["blocks.2.network.0.weight.grad"]) == 30
        assert "head.weight" not in run


@pytest.mark.slow
def test_ctrl_c_stops_training_and_shows_the_run_so_far(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "torchglass", "demo", "--steps", "100000"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        before = ""
        while "step    1 of" not in before:
            line = process.stdout.readline()
            assert line, before
            before += line
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=120)

    assert process.returncode == 0, printed
    assert "Stopped." in printed
    assert "torchglass explore torchglass-demo" in printed


@pytest.mark.slow
def test_in_a_terminal_the_explorer_opens_the_run(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torchglass", "demo", "--steps", "20"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    screen, exit_code = run_in_terminal(
        command, (["finished"], b"q"), folder=tmp_path, environment=environment
    )

    after = screen.rpartition("finished")[2]
    assert exit_code == 0
    assert "torchglass explore torchglass-demo" in after
    assert "tg.open" in after

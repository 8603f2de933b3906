"""What a watched training leaves: run files to read, to go on with, and a page to look at."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchglass as tg
from tests.recorded import ROOT
from tests.watched import graph_of
from torchglass import TorchglassWarning, errors, setup, watch

STRUCTURE = """
import torch
import torchglass as torchexplorer

model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(inplace=True))
dummy_X = torch.randn(5, 3, 32, 32)

# Only log input/output and parameter histograms, if you don't want even these set log=[].
torchexplorer.watch(model, log_freq=1, log=['io', 'params'], backend='standalone')
# Do one forwards and backwards pass
model(dummy_X).sum().backward()
# Your model will be available at http://localhost:5000
"""

ATTACH = """
import torch
from torch import nn
import torchglass as torchexplorer

class AttachModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(10, 10)
        self.fc2 = nn.Linear(10, 10)

    def forward(self, x):
        x = self.fc1(x)
        x = torchexplorer.attach(x, self, 'intermediate')
        return self.fc2(x)

model = AttachModule()
dummy_X = torch.randn(5, 10)
torchexplorer.watch(model, log_freq=1, backend='standalone')
model(dummy_X).sum().backward()
# Your model will be available at http://localhost:5000
"""

SEVERAL = """
import torch
import torchglass as torchexplorer

module = torch.nn.Linear(3, 1)
torchexplorer.watch(module, delay_log_multibackward=True)
X1, X2, y1, y2 = torch.randn(4, 3), torch.randn(4, 3), torch.randn(4, 1), torch.randn(4, 1)
for _ in range(2):
    yhat1 = module(X1)
    yhat2 = module(X2)
    loss = (yhat1 - y1).abs().sum() + (yhat2 - y2).abs().sum()
    loss.backward()
"""


def run_program(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("snippet", "labels"),
    [
        (STRUCTURE, {"0.input.0", "0.output", "1.output", "0.weight"}),
        (ATTACH, {"intermediate", "intermediate.grad", "fc1.weight.grad", "fc2.input.0.grad_norm"}),
        pytest.param(SEVERAL, {"output", "output.grad", "weight.grad"}, marks=pytest.mark.slow),
    ],
    ids=["structure", "attach", "several"],
)
def test_a_snippet_of_the_specification_runs_and_ends(
    snippet: str, labels: set[str], tmp_path: Path
) -> None:
    done = run_program(snippet, tmp_path)

    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "runs").glob("*.glass")
    with tg.open(file) as run:
        assert run.finished
        assert labels <= set(run)
        assert graph_of(run).nodes
    assert ("http://localhost:" in done.stderr) == ("standalone" in snippet)


def test_resumed_training_continues_in_the_same_file(tmp_path: Path) -> None:
    file = tmp_path / "run.glass"
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(steps: int) -> None:
        for _ in range(steps):
            model(torch.randn(3, 4)).sum().backward()
            optimizer.step()

    with watch(model, resume=file, verbose=False):
        train(3)
    with watch(model, resume=file, verbose=False):
        train(2)

    with tg.open(file) as run:
        assert run["output"].steps.tolist() == [0, 1, 2, 3, 4]
        assert run["weight.grad"].steps.tolist() == [0, 1, 2, 3, 4]


def test_a_restart_from_an_earlier_step_is_a_branch(tmp_path: Path) -> None:
    file = tmp_path / "run.glass"
    model = nn.Linear(4, 2)

    with watch(model, resume=file, verbose=False) as watcher:
        for step in range(5):
            watcher.log("loss", step)
            watcher.step(step)
    with watch(model, resume=file, verbose=False) as watcher:
        for step in range(2, 4):
            watcher.log("loss", 10 * step)
            watcher.step(step)

    with tg.open(file) as run:
        assert run["loss"].steps.tolist() == [0, 1, 2, 3]
        assert run["loss"].values.tolist() == [0.0, 1.0, 20.0, 30.0]


def test_save_and_resume_cannot_be_combined(tmp_path: Path) -> None:
    with pytest.raises(errors.TargetError, match="save starts a new file, resume continues one"):
        watch(nn.Linear(2, 1), save=tmp_path / "new.glass", resume=tmp_path / "old.glass")

    assert not list(tmp_path.iterdir())


def test_log_accepts_a_single_string(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)

    with watch(model, log="io", save=tmp_path / "run.glass", verbose=False):
        torch.autograd.backward(model(torch.ones(3, 2)).sum())

    with tg.open(tmp_path / "run.glass") as run:
        assert set(run) == {"input.0", "output"}


def train(model: nn.Module, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        torch.autograd.backward(model(torch.randn(3, 2)).square().mean())
        optimizer.step()


@pytest.mark.parametrize(
    ("option", "told"),
    [
        (
            {"log": None},
            "log must be a name or a list of names, not None; what can be logged: io, io_grad",
        ),
        ({"log": [None]}, "log has None; what can be logged: io, io_grad"),
        (
            {"backend": None},
            "backend must be 'standalone' or 'none' or .*, or a list of these, not None",
        ),
        ({"sample_n": 2.5}, "sample_n must be an integer of at least 1, or None .*, not 2.5"),
        ({"bins": 2.5}, "bins must be an integer of at least 1, not 2.5"),
        ({"bins": None}, "bins must be an integer of at least 1, not None"),
        ({"bins": 10**9}, "bins must be 10,000 or less, not 1,000,000,000"),
        ({"log_freq": None}, "log_freq must be an integer of at least 1, not None"),
    ],
    ids=str,
)
def test_an_invalid_option_error_lists_the_valid_values(
    option: dict[str, Any], told: str, tmp_path: Path
) -> None:
    with pytest.raises(errors.TargetError, match=told):
        watch(nn.Linear(2, 1), run_dir=tmp_path, **option)

    assert not list(tmp_path.iterdir())


def test_an_existing_file_error_suggests_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    watch(nn.Linear(2, 1), save="training.glass", verbose=False).close()

    with pytest.raises(
        errors.StoreError, match=r'another name, .* resume="training\.glass", or delete it'
    ):
        watch(nn.Linear(2, 1), save="training.glass", verbose=False)


def test_the_path_of_a_watcher_survives_chdir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with watch(nn.Linear(2, 1), save="run.glass", verbose=False) as watcher:
        monkeypatch.chdir(tmp_path.parent)

        assert watcher.path == tmp_path / "run.glass"


def test_an_unreferenced_watcher_closes_its_file_with_the_model(
    tmp_path: Path,
) -> None:
    threads = set(threading.enumerate())

    def train_and_forget() -> None:
        model = nn.Linear(2, 1)
        watch(model, save=tmp_path / "run.glass", verbose=False)
        train(model, 2)

    train_and_forget()
    # One thread keeps the watcher until it ends, another one the file.
    end = time.monotonic() + 120
    while new := set(threading.enumerate()) - threads:
        assert time.monotonic() < end, new
        gc.collect()
        new.pop().join(0.1)

    with tg.open(tmp_path / "run.glass") as run:
        assert run.finished
        assert run["weight"].steps.tolist() == [0, 1]


def test_the_problems_of_a_run_can_be_read(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)

    with watch(model, save=tmp_path / "run.glass", verbose=False):
        torch.autograd.backward(model(torch.full((3, 2), torch.nan)).sum())

    with tg.open(tmp_path / "run.glass") as run:
        assert {finding.kind for finding in run.findings} == {"nan"}
        assert run.findings[0].step == 0


def test_a_run_without_problems_has_no_findings(tmp_path: Path) -> None:
    watch(nn.Linear(2, 1), save=tmp_path / "run.glass", verbose=False).close()

    with tg.open(tmp_path / "run.glass") as run:
        assert run.findings == ()


def test_only_a_module_can_be_watched(tmp_path: Path) -> None:
    with pytest.raises(errors.TargetError, match=r"watch expects an nn\.Module, not str"):
        watch("model", run_dir=tmp_path)  # type: ignore[arg-type]


def test_a_watch_that_cannot_start_leaves_no_file(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    model.named_modules = None  # type: ignore[assignment]
    threads = set(threading.enumerate())

    with pytest.warns(TorchglassWarning, match="the training is not watched"):
        watcher = watch(model, run_dir=tmp_path, verbose=False)
    with watcher:
        model(torch.ones(1, 4)).sum().backward()
        watcher.log("loss", 1.0)
        watcher.step()

    assert watcher.path is None
    assert not list(tmp_path.iterdir())
    assert set(threading.enumerate()) <= threads


TRAIN_WHEN_TOLD = """
import sys
import torch, torchglass as tg
print("ready", flush=True)
sys.stdin.readline()
watcher = tg.watch(torch.nn.Linear(2, 2), run_dir=sys.argv[1], verbose=False)
watcher.log("number", int(sys.argv[2]))
watcher.close()
print(watcher.path)
"""


@pytest.mark.slow
def test_processes_started_together_in_one_folder_get_separate_files(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TRAIN_WHEN_TOLD, str(tmp_path / "runs")]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    processes = [subprocess.Popen([*command, str(number)], **pipes) for number in range(6)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()

    paths = [Path(process.communicate()[0].strip()) for process in processes]

    assert [process.returncode for process in processes] == [0] * 6
    assert len(set(paths)) == 6
    for number, path in enumerate(paths):
        with tg.open(path) as run:
            assert run["number"].values.tolist() == [number]


def test_threads_started_together_get_separate_files(tmp_path: Path) -> None:
    barrier = threading.Barrier(8)
    paths: list[Path | None] = []

    def train() -> None:
        barrier.wait()
        with watch(nn.Linear(2, 2), run_dir=tmp_path, verbose=False) as watcher:
            paths.append(watcher.path)

    threads = [threading.Thread(target=train) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(paths)) == 8


@pytest.mark.parametrize(
    "where",
    [
        {"save": "x" * 300 + ".glass"},
        {"save": "nul\0.glass"},
        {"save": "file/run.glass"},
        {"save": "folder.glass"},
        {"run_dir": "file"},
        {"run_dir": "x" * 300},
        {"run_dir": "nul\0"},
        {"run_dir": "closed"},
        {"save": "closed/run.glass"},
        {"save": "closed/inside/run.glass"},
        {"resume": "x" * 300 + ".glass"},
        {"resume": "nul\0.glass"},
        {"resume": "closed/run.glass"},
        {"resume": "folder.glass"},
        {"resume": "file/run.glass"},
    ],
)
def test_a_file_that_cannot_be_opened_is_an_error_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: dict[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "folder.glass").mkdir()
    (tmp_path / "closed").mkdir(mode=0)
    # What is imported on first use may lie where only its owner may read.
    watch(nn.Linear(4, 2), save="first.glass", verbose=False).close()
    before, threads = sorted(tmp_path.iterdir()), set(threading.enumerate())
    user = os.geteuid()
    if user == 0:
        # Who may do everything is kept out of no folder.
        tmp_path.chmod(0o777)
        os.seteuid(65_534)
    try:
        with pytest.raises(errors.StoreError, match=r"cannot|already exists"):
            watch(nn.Linear(4, 2), verbose=False, **where)  # type: ignore[arg-type]
    finally:
        os.seteuid(user)
        (tmp_path / "closed").chmod(0o700)

    assert sorted(tmp_path.iterdir()) == before
    for thread in set(threading.enumerate()) - threads:
        thread.join(60)
    assert set(threading.enumerate()) <= threads


def test_names_with_surrogates_are_escaped_in_the_run_file(
    tmp_path: Path,
) -> None:
    model = nn.Module()
    model.add_module("layer\udcff", nn.Linear(2, 2))
    layer = model.get_submodule("layer\udcff")
    with watch(model, save=tmp_path / "run.glass", verbose=False) as watcher:
        for step in range(3):
            layer(torch.ones(1, 2)).sum().backward()
            watcher.log("acc\udcff", step)
            watcher.log("loss", step)
            watcher.step()

    with tg.open(tmp_path / "run.glass") as run:
        assert run["loss"].values.tolist() == [0, 1, 2]
        assert run["acc\\udcff"].values.tolist() == [0, 1, 2]
        assert "layer\\udcff.weight" in list(run)


@pytest.mark.parametrize("name", ["reject_outlier_proportion", "reject_outlier_propertion"])
def test_histogram_options_are_stored_in_the_run(name: str, tmp_path: Path) -> None:
    file = tmp_path / "run.glass"

    watch(nn.Linear(4, 2), save=file, sample_n=None, verbose=False, **{name: 0.25}).close()  # type: ignore[arg-type]

    with tg.open(file) as run:
        assert run.run.sample_n is None
        assert run.run.reject_outlier_proportion == 0.25


def test_setup_raises_the_open_file_limit(tmp_path: Path) -> None:
    code = """
import resource
from torchglass import setup
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 2000))
setup()
print(resource.getrlimit(resource.RLIMIT_NOFILE))
setup(100)
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""
    done = run_program(code, tmp_path)

    assert done.stdout.splitlines() == ["(2000, 2000)", "(2000, 2000)"], done.stderr
    assert setup() is None  # type: ignore[func-returns-value]

"""Someone records a training, and reads the numbers later, elsewhere, without torch."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from torch import nn

import torchglass as tg
from tests.models import train

READ_WITHOUT_TORCH = """
import sys
import torchglass as tg

with tg.open(sys.argv[1]) as run:
    print(repr(run))
    print(str(run).splitlines()[1])
    print(run.model.root.kind, [module.path for module in run.model.modules])
    print(run["0.weight.grad"].column("count").tolist())
    print(run.to_csv().splitlines()[0].split(",")[:3])
assert "torch" not in sys.modules
"""


def test_a_run_can_be_read_without_torch_installed(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1))
    file = tmp_path / "today.glass"
    with tg.watch(model, log=["params", "params_grad"], save=file) as watcher:
        train(model, watcher, 4)

    done = subprocess.run(
        [sys.executable, "-c", READ_WITHOUT_TORCH, str(file)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"<run Sequential: 9 series, 4 steps, finished ({file})>",
        "No problems found up to step 3",
        "Sequential ['', '0', '1', '2']",
        "[6.0, 6.0, 6.0, 6.0]",
        "['step', '0.weight.grad.count', '0.weight.grad.min']",
    ]


def test_a_run_can_be_read_during_training(tmp_path: Path) -> None:
    model = nn.Linear(3, 1)
    file = tmp_path / "live.glass"

    with tg.watch(model, save=file) as watcher, tg.open(file) as run:
        train(model, watcher, 50)
        _wait_for_step(run, 48)
        seen_live = run["loss"].steps.tolist()
        finished_live = run.finished

    with tg.open(file) as run:
        assert not finished_live
        assert run.finished
        # The last step is written when the next one begins, or after a while.
        assert seen_live in (list(range(49)), list(range(50)))
        assert run["loss"].steps.tolist() == list(range(50))


def _wait_for_step(run: Any, step: int, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while run.last_step < step:
        assert time.monotonic() < end

"""Ray Train on a real local Ray with two workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import torchglass as tg
from tests.recorded import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("TORCHGLASS_RAY" not in os.environ, reason="starts Ray: make services"),
]


def trained(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A training in a process of its own; Ray starts its workers below it."""
    command = [sys.executable, "-m", "tests.integrations.ray_training", str(folder), *words]
    # Without them Ray would write a token into the home folder, and send statistics.
    quiet = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    environment = {**os.environ, **quiet, "RAY_TRAIN_V2_ENABLED": "1"}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_both_ray_workers_are_one_run_in_the_storage_folder(tmp_path: Path) -> None:
    done = trained(tmp_path)
    assert done.returncode == 0, done.stderr

    folder = tmp_path / "two-workers" / "torchglass"
    with tg.open(folder) as run:
        assert run.finished
        assert set(run.ranks) == {0, 1}
        assert run["loss"].steps.tolist() == [0, 1, 2, 3, 4, 5]
        first, second = (one["loss"].values for one in run.ranks.values())
        assert first.tolist() != second.tolist()
    assert json.loads((folder / "diagnosis.json").read_text())["schema"] == "torchglass/diagnosis"


def test_a_failed_ray_worker_leaves_a_run_with_the_error(tmp_path: Path) -> None:
    done = trained(tmp_path, "3")
    assert done.returncode != 0

    folder = tmp_path / "two-workers" / "torchglass"
    with tg.open(folder) as run:
        assert run.status.has_failed
        assert run.ranks[1].status.state == "stopped"
        assert "the second worker gives up" in run.ranks[1].status.message
    assert json.loads((folder / "diagnosis.json").read_text())["verdict"] == "broken"

"""What MLflow and trackio take to list runs and to read curves: `python trackers.py NAME RUNS`.

It runs in an environment of its own, because they need other versions of packages than we do:

    python -m venv /tmp/torchglass-peers && /tmp/torchglass-peers/bin/pip install mlflow trackio

`TORCHGLASS_PEERS` names another folder. Each run has 20 steps of a loss and three settings, in the
local store that is the tracker's default. It prints the CPU seconds as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

STEPS = 20
SETTINGS = {"lr": 0.1, "optimizer": "adam", "width": 64}
Seconds = dict[str, float]


def measure(name: str, runs: int) -> Seconds:
    """The CPU seconds of listing runs and of reading their losses, in the peers' environment."""
    done = subprocess.run(
        [python(), "-I", __file__, name, str(runs)], capture_output=True, text=True, check=True
    )
    found: Seconds = json.loads(done.stdout.splitlines()[-1])
    return found


def is_there(name: str) -> bool:
    """Whether a tracker is installed in the peers' environment."""
    look = f"import importlib.util as u; exit(not u.find_spec('{name}'))"
    command = [python(), "-I", "-c", look]
    return Path(python()).exists() and subprocess.run(command, check=False).returncode == 0


def python() -> str:
    """The Python of the peers' environment."""
    default = Path(tempfile.gettempdir()) / "torchglass-peers"
    return str(Path(os.environ.get("TORCHGLASS_PEERS", default)) / "bin" / "python")


def _cpu(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def mlflow(runs: int) -> Seconds:
    """MLflow's SQLite store: `search_runs`, then the history of the loss of each run."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client = MlflowClient(f"sqlite:///{Path.cwd()}/mlflow.db")
    experiment = client.create_experiment("many", artifact_location=f"file://{Path.cwd()}")
    params = [Param(key, str(value)) for key, value in SETTINGS.items()]
    for _ in range(runs):
        run = client.create_run(experiment).info.run_id
        losses = [Metric("loss", 1 / (step + 1), step, step) for step in range(STEPS)]
        client.log_batch(run, losses, params)
        client.set_terminated(run)
    listed: list[str] = []

    def search() -> None:
        token = None
        while token != "":
            found = client.search_runs([experiment], max_results=1_000, page_token=token)
            listed.extend(run.info.run_id for run in found)
            token = found.token or ""

    listing = _cpu(search)
    assert len(listed) == runs
    curves = _cpu(lambda: [client.get_metric_history(run, "loss") for run in listed])
    return {"listing": listing, "curves": curves}


def trackio(runs: int) -> Seconds:
    """trackio's SQLite store: the names and settings of all runs, then the logs of each."""
    from trackio.sqlite_storage import SQLiteStorage  # type: ignore[import-not-found]

    for number in range(runs):
        losses = [{"loss": 1 / (step + 1)} for step in range(STEPS)]
        SQLiteStorage.bulk_log(
            "many", f"run-{number}", losses, list(range(STEPS)), config=dict(SETTINGS)
        )
    listed: list[dict[str, str]] = []

    def records() -> None:
        listed.extend(SQLiteStorage.get_run_records("many"))
        SQLiteStorage.get_all_run_configs("many")

    listing = _cpu(records)
    assert len(listed) == runs
    wanted = [{"run": one["name"], "run_id": one["id"]} for one in listed]
    curves = _cpu(lambda: SQLiteStorage.get_logs_batch("many", wanted))
    return {"listing": listing, "curves": curves}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["TRACKIO_DIR"] = folder
        print(json.dumps({"mlflow": mlflow, "trackio": trackio}[sys.argv[1]](int(sys.argv[2]))))
        os.chdir("/")

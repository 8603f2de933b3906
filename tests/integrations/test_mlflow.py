"""`backend="mlflow"`, read back with MLflow's own client, from a folder and from a server."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import torchglass as tg
from tests.integrations.trainings import Net, train

mlflow = pytest.importorskip("mlflow")

SERVER = os.environ.get("TORCHGLASS_MLFLOW")
"""An `mlflow` command that can serve; mlflow-skinny, which the tests install, cannot."""


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    yield
    mlflow.set_tracking_uri(None)


def watched(folder: Path, steps: int = 4, **options: Any) -> list[float]:
    model = Net()
    with tg.watch(
        model, **{"backend": "mlflow", **options}, save=folder / "a.glass", verbose=False
    ) as watcher:
        return train(model, watcher, steps)


def check(run_id: str, losses: list[float], folder: Path) -> None:
    """The run has the metrics by step, and its artifacts can be read."""
    client = mlflow.MlflowClient()
    history = client.get_metric_history(run_id, "torchglass/loss")
    assert [(one.step, one.value) for one in history] == [
        (step, pytest.approx(loss)) for step, loss in enumerate(losses)
    ]
    run = client.get_run(run_id)
    assert {"torchglass/gradient_norm", "torchglass/weight_norm"} <= run.data.metrics.keys()
    assert len(run.data.metrics) < 10
    assert run.data.tags["torchglass.verdict"] in ("healthy", "warning")
    names = {one.path for one in client.list_artifacts(run_id, "torchglass")}
    assert names == {
        "torchglass/summary.txt",
        "torchglass/diagnosis.txt",
        "torchglass/diagnosis.json",
        "torchglass/page.html",
    }
    local = Path(client.download_artifacts(run_id, "torchglass", str(folder)))
    assert "hidden" in (local / "summary.txt").read_text()
    assert json.loads((local / "diagnosis.json").read_text())["schema"] == "torchglass/diagnosis"
    assert (local / "page.html").read_text().startswith("<!doctype html>")


def test_metrics_and_artifacts_go_to_the_active_run(tmp_path: Path) -> None:
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    with mlflow.start_run() as run:
        mlflow.log_metric("mine", 1.0)
        losses = watched(tmp_path)

    (tmp_path / "back").mkdir()
    check(run.info.run_id, losses, tmp_path / "back")
    assert mlflow.MlflowClient().get_run(run.info.run_id).data.metrics["mine"] == 1.0


def test_without_an_active_run_a_new_one_is_created_with_the_settings(tmp_path: Path) -> None:
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())

    losses = watched(tmp_path, config={"lr": 0.1})

    (run,) = mlflow.MlflowClient().search_runs(["0"])
    assert run.info.run_name == "Net"
    assert run.info.status == "FINISHED"
    assert run.data.params == {"lr": "0.1"}
    assert run.data.metrics["torchglass/loss"] == pytest.approx(losses[-1])
    assert mlflow.active_run() is None


def test_every_tensor_is_sent_on_request(tmp_path: Path) -> None:
    from torchglass.integrations.mlflow import MlflowBackend

    mlflow.set_tracking_uri((tmp_path / "store").as_uri())

    watched(tmp_path, steps=2, backend=MlflowBackend(everything=True))

    (run,) = mlflow.MlflowClient().search_runs(["0"])
    assert "torchglass/hidden.weight.std" in run.data.metrics
    assert "torchglass/head.output.grad.mean" in run.data.metrics


def test_an_unreachable_mlflow_server_does_not_stop_training(tmp_path: Path) -> None:
    mlflow.set_tracking_uri("http://127.0.0.1:9")

    with pytest.warns(tg.TorchglassWarning, match="nothing more is sent to MLflow"):
        losses = watched(tmp_path)

    with tg.open(tmp_path / "a.glass") as run:
        assert run["loss"].values.tolist() == pytest.approx(losses)


@pytest.mark.slow
@pytest.mark.skipif(SERVER is None, reason="needs an MLflow server: make services")
def test_a_real_server_gets_metrics_and_artifacts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    store = f"sqlite:///{tmp_path}/mlflow.db"
    command = [str(SERVER), "server", "--port", str(port), "--backend-store-uri", store]
    command += ["--artifacts-destination", str(tmp_path / "artifacts"), "--workers", "1"]
    with subprocess.Popen(command, cwd=tmp_path, start_new_session=True) as server:
        try:
            _wait_for(f"http://127.0.0.1:{port}/health", server)
            mlflow.set_tracking_uri(f"http://127.0.0.1:{port}")
            with mlflow.start_run() as run:
                losses = watched(tmp_path)
            (tmp_path / "back").mkdir()
            check(run.info.run_id, losses, tmp_path / "back")
        finally:
            os.killpg(server.pid, 15)


def _wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    while not _answers(url):
        assert server.poll() is None, "the server has ended"


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1):
            return True
    except OSError:
        return False

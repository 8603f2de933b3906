"""`backend="opentelemetry"`, read by a collector in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import torchglass as tg
from tests.integrations.trainings import Net, train
from tests.recorded import ROOT

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

Received = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> Iterator[Received]:
    """A collector; ends it and gives what it has received."""
    command = [sys.executable, "-m", "tests.integrations.otlp_receiver"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    port = json.loads(process.stdout.readline())["port"]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")

    def end() -> list[dict[str, Any]]:
        process.terminate()
        assert process.stdout is not None
        return [json.loads(line) for line in process.stdout]

    yield end
    process.terminate()
    process.wait()
    process.stdout.close()


def test_values_are_gauges_and_the_end_of_a_run_is_an_event(
    tmp_path: Path, received: Received
) -> None:
    model = Net()
    with tg.watch(
        model, backend="opentelemetry", save=tmp_path / "a.glass", verbose=False
    ) as watcher:
        losses = train(model, watcher, 4)

    records = received()

    gauges = {one["metric"]: one["value"] for one in records if "metric" in one}
    assert gauges["torchglass.loss"] == pytest.approx(losses[-1])
    assert gauges["torchglass.step"] == 3
    assert gauges["torchglass.nonfinite_values"] == 0
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert gauges["torchglass.weight_norm"] == pytest.approx(weights.norm().item(), rel=1e-3)
    assert len(gauges) < 10
    (end,) = [one for one in records if one.get("event") == "torchglass.run_end"]
    assert end["torchglass.status"] == "finished"
    assert end["run"] == "Net"


def test_a_finding_is_an_event_with_its_path(tmp_path: Path, received: Received) -> None:
    model = Net()
    with tg.watch(
        model, backend="opentelemetry", save=tmp_path / "a.glass", verbose=False
    ) as watcher:
        train(model, watcher, 2)
        with torch.no_grad():
            model.hidden.weight[0, 0] = float("nan")
        train(model, watcher, 2)

    findings = [one for one in received() if one.get("event") == "torchglass.finding"]

    assert findings[0]["torchglass.kind"] == "nan"
    assert findings[0]["torchglass.step"] == 2
    assert "hidden" in findings[0]["text"]


def test_an_unreachable_collector_does_not_stop_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    model = Net()
    with tg.watch(
        model, backend="opentelemetry", save=tmp_path / "a.glass", verbose=False
    ) as watcher:
        losses = train(model, watcher, 3)

    with tg.open(tmp_path / "a.glass") as run:
        assert run["loss"].values.tolist() == pytest.approx(losses)

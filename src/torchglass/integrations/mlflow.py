"""Logs a watched training to MLflow: `tg.watch(model, backend="mlflow")`.

Metrics go to the active MLflow run, or to a new one. At the end the run has the summary of the
model, the diagnosis and the page as artifacts below `torchglass/`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import mlflow
from mlflow.entities import Metric
from mlflow.tracking import MlflowClient

from torchglass.integrations.mirror import MirrorBackend, StepSummary
from torchglass.records.findings import Finding
from torchglass.records.run import Reader
from torchglass.results.diagnosis import diagnose_reader
from torchglass.results.summary import Summary
from torchglass.views.web.saved_page import render_page

_MOST_IN_A_REQUEST = 1000
"""Metrics; MLflow refuses more."""
_FOLDER = "torchglass"


class MlflowBackend(MirrorBackend):
    """Logs summaries of the steps as metrics, and the run itself as artifacts.

    Args:
        everything: Also log min, max, mean and standard deviation of every tensor.
    """

    tool = "MLflow"

    def prepare(self) -> None:
        # The active run and the address belong to the thread that asks.
        active = mlflow.active_run()
        self._run_id: str = "" if active is None else active.info.run_id
        self._is_own = active is None
        self._address = mlflow.get_tracking_uri()

    def connect(self, reader: Reader) -> None:
        self._client = MlflowClient(self._address)
        run = reader.run()
        if self._is_own:
            self._run_id = mlflow.start_run(run_name=run.name).info.run_id
            for name, value in run.config.items():
                self._client.log_param(self._run_id, name, value)
        self._client.set_tag(self._run_id, f"{_FOLDER}.command", run.command)
        if (path := getattr(reader, "path", None)) is not None:
            self._client.set_tag(self._run_id, f"{_FOLDER}.file", str(path))

    def send(self, steps: Sequence[StepSummary]) -> None:
        metrics = list(_metrics(steps))
        for start in range(0, len(metrics), _MOST_IN_A_REQUEST):
            part = metrics[start : start + _MOST_IN_A_REQUEST]
            self._client.log_batch(self._run_id, metrics=part)

    def send_findings(self, findings: Sequence[Finding]) -> None:
        first = findings[0]
        self._client.set_tag(self._run_id, f"{_FOLDER}.finding", first.message[:250])

    def finish(self, reader: Reader) -> None:
        found = diagnose_reader(reader)
        self._client.set_tag(self._run_id, f"{_FOLDER}.verdict", found.verdict)
        texts = {
            "summary.txt": Summary(reader.model()).table(),
            "diagnosis.txt": str(found),
            "diagnosis.json": found.to_json(),
            "page.html": render_page(reader),
        }
        for name, text in texts.items():
            self._client.log_text(self._run_id, text, f"{_FOLDER}/{name}")
        if self._is_own:
            mlflow.end_run("FAILED" if reader.status().has_failed else "FINISHED")


def _metrics(steps: Sequence[StepSummary]) -> Iterator[Metric]:
    for one in steps:
        for name, value in one.values.items():
            yield Metric(f"{_FOLDER}/{name}", value, one.time_ns // 1_000_000, one.step)

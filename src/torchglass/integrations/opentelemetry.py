"""Sends a watched training over OTLP: `tg.watch(model, backend="opentelemetry")`.

Values of the steps are gauges, problems are events. They go to the collector that the variables of
the SDK name (`OTEL_EXPORTER_OTLP_ENDPOINT`), or through providers that the program has set up.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

from opentelemetry import _logs as logs
from opentelemetry import metrics
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from torchglass.integrations.mirror import MirrorBackend, StepSummary
from torchglass.records.findings import Finding
from torchglass.records.run import Reader
from torchglass.results.diagnosis import diagnose_reader

_MILLISECONDS_BETWEEN_EXPORTS = 5000
_PREFIX = "torchglass"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.\-/]")
_LONGEST_NAME = 200
_SEVERITIES = {
    "error": SeverityNumber.ERROR,
    "warning": SeverityNumber.WARN,
    "info": SeverityNumber.INFO,
}


class OpentelemetryBackend(MirrorBackend):
    """Sends summaries of the steps as gauges, and findings as events.

    Args:
        everything: Also send min, max, mean and standard deviation of every tensor.
    """

    tool = "OpenTelemetry"

    def connect(self, reader: Reader) -> None:
        run = reader.run()
        self._gauges: dict[str, Any] = {}
        self._attributes: dict[str, Any] = {"run": run.name, "rank": run.rank}
        resource = Resource.create(
            {"service.name": _PREFIX, "host.name": run.host, "torchglass.run": run.name}
        )
        meters, loggers = metrics.get_meter_provider(), logs.get_logger_provider()
        # Without the SDK's own providers the program has set up none, and nothing would be sent.
        self._own: list[Any] = []
        if not isinstance(meters, MeterProvider):
            exports = PeriodicExportingMetricReader(
                OTLPMetricExporter(), export_interval_millis=_MILLISECONDS_BETWEEN_EXPORTS
            )
            meters = MeterProvider([exports], resource, shutdown_on_exit=False)
            self._own.append(meters)
        if not isinstance(loggers, LoggerProvider):
            loggers = LoggerProvider(resource, shutdown_on_exit=False)
            loggers.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
            self._own.append(loggers)
        self._meter = meters.get_meter(_PREFIX)
        self._logger = loggers.get_logger(_PREFIX)

    def send(self, steps: Sequence[StepSummary]) -> None:
        # A gauge has one value at a time: of the steps of a second, the last.
        for step in steps[-1:]:
            self._set("step", step.step)
            for name, value in step.values.items():
                self._set(name, value)

    def send_findings(self, findings: Sequence[Finding]) -> None:
        for one in findings:
            place = {"torchglass.path": one.path, "torchglass.kind": one.kind}
            step = {} if one.first_step is None else {"torchglass.step": one.first_step}
            source = one.source
            line = {} if source is None else {"code.line.number": source.line}
            file = {} if source is None else {"code.file.path": source.file}
            remedy = {"torchglass.remedy": one.remedy} if one.remedy else {}
            self._emit(
                "finding",
                _SEVERITIES[one.severity],
                one.message,
                {**place, **step, **file, **line, **remedy},
            )

    def finish(self, reader: Reader) -> None:
        found = diagnose_reader(reader)
        worst = {"broken": "error", "warning": "warning", "healthy": "info"}[found.verdict]
        ended = {"torchglass.verdict": found.verdict, "torchglass.status": str(reader.status())}
        self._emit("run_end", _SEVERITIES[worst], found.summary, ended)
        for provider in self._own:
            provider.force_flush()
            provider.shutdown()

    def _set(self, name: str, value: float) -> None:
        if name not in self._gauges:
            plain = _NOT_IN_NAMES.sub("_", name)[:_LONGEST_NAME]
            self._gauges[name] = self._meter.create_gauge(f"{_PREFIX}.{plain}")
        self._gauges[name].set(value, self._attributes)

    def _emit(
        self, name: str, severity: SeverityNumber, message: str, attributes: dict[str, Any]
    ) -> None:
        self._logger.emit(
            LogRecord(
                timestamp=time.time_ns(),
                event_name=f"{_PREFIX}.{name}",
                severity_number=severity,
                body=message,
                attributes={**self._attributes, **attributes},
            )
        )

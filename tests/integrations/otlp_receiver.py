"""A collector: takes metrics and logs over OTLP/HTTP, and prints each as a line of JSON.

python -m tests.integrations.otlp_receiver    the first line is its port
"""

from __future__ import annotations

import gzip
import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)


def _value(any_value: Any) -> Any:
    return getattr(any_value, any_value.WhichOneof("value") or "string_value")


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _say(record: dict[str, Any]) -> None:
    print(json.dumps(record), flush=True)  # noqa: T201 - the test reads it


class Receiver(BaseHTTPRequestHandler):
    """Answers every request with 200."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        if self.path == "/v1/metrics":
            self._take_metrics(body)
        elif self.path == "/v1/logs":
            self._take_logs(body)
        self.send_response(200)
        self.end_headers()

    def _take_metrics(self, body: bytes) -> None:
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.gauge.data_points:
                        number = getattr(point, point.WhichOneof("value"))
                        run = _attributes(point.attributes)
                        _say({"metric": metric.name, "value": number, **run})

    def _take_logs(self, body: bytes) -> None:
        for resource in ExportLogsServiceRequest.FromString(body).resource_logs:
            for scope in resource.scope_logs:
                for record in scope.log_records:
                    text = record.body.string_value
                    facts = _attributes(record.attributes)
                    _say({"event": record.event_name, "text": text, **facts})

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    """Receive until the process is ended."""
    server = HTTPServer(("127.0.0.1", 0), Receiver)
    _say({"port": server.server_port})
    server.serve_forever()


if __name__ == "__main__":
    main()

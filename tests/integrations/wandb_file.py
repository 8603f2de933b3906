"""Reads what wandb has written in offline mode: a log of LevelDB's format, of protobuf records."""

from __future__ import annotations

import contextlib
import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from wandb.proto import wandb_internal_pb2

_FILE_HEADER, _HEADER, _BLOCK = 7, 7, 32 * 1024
_FULL, _LAST = 1, 4


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """The history of the one run in a folder: a dictionary for each row."""
    rows: list[dict[str, Any]] = []
    for record in _records(folder):
        if record.HasField("history"):
            rows.append({})
            for item in record.history.item:
                *outer, name = item.nested_key
                inside = rows[-1]
                for key in outer:
                    inside = inside.setdefault(key, {})
                inside[name] = json.loads(item.value_json)
    return rows


def read_metrics(folder: Path) -> dict[str, str]:
    """What each metric, or each glob of metrics, is drawn over."""
    metrics = [record.metric for record in _records(folder) if record.HasField("metric")]
    return {metric.name or metric.glob_name: metric.step_metric for metric in metrics}


def _records(folder: Path) -> list[Any]:
    """All of them, once wandb's own process has written the last."""
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        # A record that is being written ends anywhere.
        with contextlib.suppress(DecodeError):
            records = [_record(packed) for packed in _entries(path.read_bytes())]
            if records and records[-1].HasField("exit"):
                return records
        time.sleep(0.01)
    raise TimeoutError(f"the run in {path} is not finished")


def _record(packed: bytes) -> Any:
    record = wandb_internal_pb2.Record()  # type: ignore[attr-defined]
    record.ParseFromString(packed)
    return record


def _entries(data: bytes) -> Iterator[bytes]:
    at, parts = _FILE_HEADER, b""
    while at + _HEADER <= len(data):
        if _BLOCK - at % _BLOCK < _HEADER:
            at += _BLOCK - at % _BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + _HEADER : at + _HEADER + length]
        at += _HEADER + length
        if kind in (_FULL, _LAST):
            yield parts
            parts = b""

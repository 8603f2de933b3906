"""Segments of a long run stay few, and hold every step once."""

from __future__ import annotations

import contextlib
import math
import sqlite3
from dataclasses import replace
from pathlib import Path

import fsspec
import pyarrow.parquet as parquet
import pytest

from torchglass.errors import StoreError
from torchglass.records.run import Frame, RunRecord
from torchglass.store.mirror import mirrored
from torchglass.store.object_store import Manifest, ObjectStore, read_manifest
from torchglass.store.shipper import FANOUT, RunShipper
from torchglass.store.writer import FileSink

SHIPMENTS = 100
RUN = RunRecord(name="net", created_ns=1)


def put(sink: FileSink, steps: range) -> None:
    loss = sink.series("", "loss")
    for step in steps:
        sink.put_frame(Frame(step=step, time_ns=1_000 * step, points={loss: 1 / (step + 1)}))
    sink.flush()


def manifest_of(store: ObjectStore) -> Manifest:
    data = store.read("manifest.json")
    assert data is not None
    return read_manifest(data, store.name)


def frames_of(path: Path) -> list[tuple[int, ...]]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT * FROM frames ORDER BY id").fetchall()


def test_the_segments_of_a_long_run_stay_few(tmp_path: Path) -> None:
    store = ObjectStore(f"memory://{tmp_path.name}/long")
    sink = FileSink(tmp_path / "run.glass", RUN)
    shipper = RunShipper(sink.path, store)
    levels = math.ceil(math.log(SHIPMENTS, FANOUT))
    for shipment in range(SHIPMENTS):
        put(sink, range(3 * shipment, 3 * shipment + 3))
        manifest = shipper.ship()
        assert len(manifest.segments) <= (FANOUT - 1) * levels
        assert manifest.last == 3 * shipment + 3
    sink.close()
    shipper.ship()

    # Nothing is there twice, also for those who read all files without the manifest.
    files = fsspec.filesystem("memory").glob(f"/{tmp_path.name}/long/segments/*.parquet")
    assert len(files) == len(manifest_of(store).segments)
    steps = [
        step
        for file in files
        for step in parquet.read_table(file, filesystem=fsspec.filesystem("memory"))["step"]
    ]
    assert sorted(step.as_py() for step in steps) == list(range(3 * SHIPMENTS))
    assert frames_of(mirrored(store.url)) == frames_of(sink.path)


def test_a_run_is_not_shipped_over_another(tmp_path: Path) -> None:
    store = ObjectStore(f"memory://{tmp_path.name}/taken")
    for name in ("first", "second"):
        with contextlib.closing(FileSink(tmp_path / name, replace(RUN, name=name))) as sink:
            put(sink, range(2))
    RunShipper(tmp_path / "first", store).ship()

    with pytest.raises(StoreError, match="has another run"):
        RunShipper(tmp_path / "second", store).ship()

    assert frames_of(mirrored(store.url)) == frames_of(tmp_path / "first")


def test_what_was_shipped_without_a_manifest_is_deleted_when_shipping_begins(
    tmp_path: Path,
) -> None:
    store = ObjectStore(f"memory://{tmp_path.name}/orphan")
    with contextlib.closing(FileSink(tmp_path / "run.glass", RUN)) as sink:
        put(sink, range(2))
    store.write("segments/000000001-000000099-s1.parquet", b"half")

    RunShipper(sink.path, store).ship()

    assert store.names("segments") == ["000000001-000000002-s1.parquet"]

"""A traced pass in a run file, and the name of the file beside it that holds its tensors."""

from __future__ import annotations

import json
import sqlite3
import time
import zlib
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchglass.errors import StoreError
from torchglass.records.model import Model
from torchglass.records.plain import from_plain, to_plain
from torchglass.records.run import Run
from torchglass.records.trace import Trace
from torchglass.store import schema
from torchglass.store.file import FileReader


@dataclass(frozen=True, kw_only=True)
class StoredTrace:
    """What a file tells of a pass."""

    model: Model
    trace: Trace
    random_seed: int | None = None


def tensors_file(path: Path) -> Path:
    """Where the tensors of the trace in a run file are. No model's weights are called like that."""
    return path.with_name(f"{path.name}.safetensors")


def write_trace(path: Path, run: Run, stored: StoredTrace) -> None:
    """Write a pass and its model to a new, finished run file."""
    with closing(schema.create(path)) as connection:
        meta = {"run": to_plain(run), "finished_ns": time.time_ns()}
        if stored.random_seed is not None:
            meta["random_seed"] = stored.random_seed
        try:
            with connection:
                connection.executemany(
                    "INSERT INTO meta VALUES (?, ?)",
                    [(key, json.dumps(value)) for key, value in meta.items()],
                )
                connection.execute("INSERT INTO model (json) VALUES (?)", [_packed(stored.model)])
                connection.execute("INSERT INTO trace (json) VALUES (?)", [_packed(stored.trace)])
            # Without a journal the file can be moved, and read where nothing can be written.
            connection.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.Error as error:
            raise StoreError(f"cannot write the trace to {path}: {error}") from error


def read_trace(path: Path) -> StoredTrace:
    """The pass that a run file holds."""
    with FileReader(path) as reader:
        model = reader.model()
    with closing(schema.open_read_only(path)) as connection:
        try:
            row = connection.execute("SELECT json FROM trace").fetchone()
            seed = connection.execute("SELECT value FROM meta WHERE key = 'random_seed'").fetchone()
            if row is None:
                raise StoreError(f"{path} holds a run, but no trace; tg.open reads its numbers")
            return StoredTrace(
                model=model,
                trace=from_plain(Trace, json.loads(zlib.decompress(row[0]))),
                random_seed=None if seed is None else json.loads(seed[0]),
            )
        except (sqlite3.Error, zlib.error, json.JSONDecodeError) as error:
            raise StoreError(f"cannot read the trace in {path}: {error}") from error


def _packed(record: Any) -> bytes:
    return zlib.compress(json.dumps(to_plain(record)).encode())

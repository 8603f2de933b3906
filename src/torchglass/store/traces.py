"""Reads and writes a traced pass in a run file; its tensors are in a file beside it."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

from torchglass.errors import StoreError
from torchglass.records.model import Model
from torchglass.records.reader import DOCUMENT_NAMES
from torchglass.records.run import RunRecord
from torchglass.records.trace import TraceRecord
from torchglass.store import schema
from torchglass.store.file_reader import FileReader
from torchglass.store.packing import pack_document
from torchglass.store.run_file import PendingWrites, RunFile


@dataclass(frozen=True, kw_only=True)
class StoredTrace:
    """A traced pass as stored in a file."""

    model: Model
    trace: TraceRecord
    random_seed: int | None = None
    saved_only: bool = False
    """Whether the trace lists only ops whose tensors were saved."""


def tensors_file(path: Path) -> Path:
    """The path of the tensors of a trace, a name that model weights do not have."""
    return path.with_name(f"{path.name}.safetensors")


def write_trace(path: Path, run: RunRecord, stored: StoredTrace) -> None:
    """Write a pass and its model to a new, finished run file."""
    try:
        file = RunFile(schema.create(path), run)
        file.write(
            PendingWrites(
                documents={
                    "model": pack_document(stored.model),
                    DOCUMENT_NAMES[TraceRecord]: pack_document(stored.trace),
                },
                facts=_facts(stored),
            )
        )
        file.close()
    except sqlite3.Error as error:
        raise StoreError(f"cannot write the trace to {path}: {error}") from error


def read_trace(path: Path) -> StoredTrace:
    """The traced pass in a run file."""
    with FileReader(path) as reader:
        model, trace, seed = reader.model(), reader.document(TraceRecord), reader.random_seed()
        saved_only = reader.lists_saved_only()
    if trace is None:
        raise StoreError(f"{path} contains a run but no trace; open it with tg.open")
    return StoredTrace(model=model, trace=trace, random_seed=seed, saved_only=saved_only)


def _facts(stored: StoredTrace) -> dict[str, int]:
    facts = {"saved_only": 1} if stored.saved_only else {}
    return facts if stored.random_seed is None else {**facts, "random_seed": stored.random_seed}

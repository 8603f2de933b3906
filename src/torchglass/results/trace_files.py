"""A trace to and from files and pickles: its record in one, its tensors in safetensors."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchglass.errors import StoreError
from torchglass.records.run import RunRecord
from torchglass.records.trace import OpId, TraceRecord
from torchglass.store.file_reader import StoredTrace, read_trace, tensors_file, write_trace
from torchglass.tables.export import in_its_folder

if TYPE_CHECKING:
    import torch

    from torchglass.results.trace import Trace

_SUFFIX = ".glass"


@dataclass(frozen=True)
class LoadedPass:
    """A pass that came from a file or a pickle."""

    trace: TraceRecord
    tensors: Mapping[tuple[OpId, int], torch.Tensor]
    gradients: Mapping[tuple[OpId, int], torch.Tensor]


def save(trace: Trace, path: Path, *, overwrite: bool) -> Path:
    """Write a trace to files that are there whole or not at all; the path of the first."""
    path = path if path.suffix else path.with_suffix(_SUFFIX)
    if path.exists() and not overwrite:
        raise StoreError(f"{path} already exists; choose another name or pass overwrite=True")
    with tempfile.TemporaryDirectory(
        dir=in_its_folder(path).parent, prefix=f".{path.name}-"
    ) as folder:
        new = Path(folder) / path.name
        run = RunRecord(name=trace.record.model, created_ns=time.time_ns())
        write_trace(new, run, _stored(trace))
        if trace.saved_tensors or trace.saved_gradients:
            from torchglass.capture.tensor.files import write_tensors

            write_tensors(tensors_file(new), _groups(trace))
            tensors_file(new).replace(tensors_file(path))
        else:
            tensors_file(path).unlink(missing_ok=True)
        new.replace(path)
    return path


def load(path: Path) -> tuple[StoredTrace, LoadedPass]:
    """A trace from its files. Its tensors are read one by one, when they are looked at."""
    from torchglass.capture.tensor.files import SavedTensors

    stored = read_trace(path)
    beside = tensors_file(path)
    return stored, LoadedPass(
        stored.trace, SavedTensors(beside, "tensors"), SavedTensors(beside, "gradients")
    )


def pickled(trace: Trace, *, output: Any) -> dict[str, Any]:
    """All that a trace is made of, worked out, its tensors as bytes."""
    from torchglass.capture.tensor.files import pack_tensors

    return {
        "stored": _stored(trace),
        "tensors": pack_tensors(_groups(trace)),
        "_output": output,
    }


def unpickled(state: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a trace from what `pickled` made of it."""
    from torchglass.capture.tensor.files import unpack_tensors

    stored: StoredTrace = state["stored"]
    tensors, gradients = (
        unpack_tensors(state["tensors"], group) for group in ("tensors", "gradients")
    )
    return {
        "_pass": LoadedPass(stored.trace, tensors, gradients),
        "model": stored.model,
        "random_seed": stored.random_seed,
        "_saved_only": stored.saved_only,
        "_output": state["_output"],
    }


def _stored(trace: Trace) -> StoredTrace:
    return StoredTrace(
        model=trace.model,
        trace=trace.record,
        random_seed=trace.random_seed,
        saved_only=trace.lists_saved_only,
    )


def _groups(trace: Trace) -> dict[str, Mapping[tuple[OpId, int], torch.Tensor]]:
    return {"tensors": trace.saved_tensors, "gradients": trace.saved_gradients}

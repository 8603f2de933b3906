"""Any target as the record of a model, or as a reader."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

from torchglass.records.model import Model
from torchglass.targets.names import ONNX_SUFFIX, RUN_SUFFIX, resolve

if TYPE_CHECKING:
    from torchglass.records.run import Document, Reader

NOT_LIVE = "only a live model can run: omit the inputs, or load the model"
_DATABASE = b"SQLite format 3\0"


def is_ours(target: object) -> bool:
    """Whether the class of a target, or one of its bases, is defined in Torchglass.

    Most targets are the user's models. They are told apart without importing the code for runs,
    which takes longer than a summary.
    """
    return any(str(base.__module__).startswith("torchglass.") for base in type(target).__mro__)


def is_reader(target: object) -> TypeGuard[Reader]:
    """Whether a target is already a reader."""
    if not is_ours(target):
        return False
    from torchglass.records.run import Reader

    # Checks the class: the instance would run the properties of a user's module.
    return issubclass(type(target), Reader)


def is_live(target: object) -> bool:
    """Whether a target is a user's object, not a file, a record or a reader."""
    kept = isinstance(target, (str, PathLike, Model)) or is_reader(target)
    return not (kept or is_state(target))


def is_state(target: object) -> TypeGuard[Mapping[object, object]]:
    """Whether a target is saved state of a model, such as a dict of tensors."""
    if not isinstance(target, Mapping):
        return False
    from torchglass.capture.model.module_parts import module_parts

    return not module_parts(target)


def is_run(path: Path) -> bool:
    """Whether a path is a run file, or a folder with the run files of all ranks."""
    if path.is_dir():
        return any(path.glob(f"*{RUN_SUFFIX}"))
    return path.suffix == RUN_SUFFIX or _is_database(path)


def _is_database(path: Path) -> bool:
    """Whether a file is an SQLite database, as all runs are."""
    try:
        with path.open("rb") as file:
            return file.read(len(_DATABASE)) == _DATABASE
    except OSError:
        return False


def read(target: object, *, unsafe: bool = False) -> Model:
    """The structure of any target: a live model, a name, a checkpoint, a run or a record."""
    target = resolve(target)
    if isinstance(target, Model):
        return target
    if is_reader(target):
        return target.model()
    if is_state(target):
        from torchglass.capture.model.checkpoints import read_contents

        name = type(target).__name__
        return replace(read_contents([target], f"this {name}"), name=name)
    if not isinstance(target, Path):
        from torchglass.capture.model.structure import read_model

        return read_model(target)
    if is_run(target):
        with closing(open_reader(target)) as reader:
            return reader.model()
    if target.suffix == ONNX_SUFFIX:
        from torchglass.whatif.onnx_model import weights

        return replace(read(weights(target)), name=target.stem)
    from torchglass.capture.model.checkpoints import read_checkpoint

    return read_checkpoint(target, unsafe=unsafe)


def open_reader(target: object, *, unsafe: bool = False) -> Reader:
    """A reader of any target; a model is read into memory."""
    target = resolve(target)
    if is_reader(target):
        return target
    if isinstance(target, Path) and is_run(target):
        from torchglass.results.run import open_run

        return open_run(target).reader

    return hold(read(target, unsafe=unsafe))


def hold(model: Model, *documents: Document) -> Reader:
    """A model and its documents as a finished run, so that a view does not wait for more."""
    from torchglass.records.run import RunRecord
    from torchglass.store.readers import MemoryStore

    store = MemoryStore(RunRecord(name=model.name, created_ns=time.time_ns()))
    store.put_model(model)
    for document in documents:
        store.put_document(document)
    store.close()
    return store

"""Any target as the record of a model, or as a reader."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from torchglass.errors import LookupFailedError
from torchglass.records.calls import CallTensor, ForwardStats, Statistics, statistics_of
from torchglass.records.model import Activations, Model
from torchglass.records.run import Document, Reader, RunRecord
from torchglass.records.trace import CallId, OpId, Value
from torchglass.results.feature_maps import ATTENTION
from torchglass.results.report import Report, measures
from torchglass.targets.names import ONNX_SUFFIX, RUN_SUFFIX, resolve

if TYPE_CHECKING:
    from torchglass.results.trace import Trace

NOT_LIVE = "only a live model can run: omit the inputs, or load the model"
_DATABASE = b"SQLite format 3\0"


def is_reader(target: object) -> TypeGuard[Reader]:
    """Whether a target is already a reader."""
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
    from torchglass.store.readers import MemoryStore

    store = MemoryStore(RunRecord(name=model.name, created_ns=time.time_ns()))
    store.put_model(model)
    for document in documents:
        store.put_document(document)
    store.close()
    return store


def reader_of_result(target: object, *, pictures: bool = False) -> Reader | None:
    """A reader of the result of another verb; None for anything else.

    With `pictures`, that of a trace has images of the outputs that it saved.
    """
    from torchglass.results.comparison import Comparison
    from torchglass.results.flops import Flops
    from torchglass.results.memory import Memory
    from torchglass.results.profile import Profile
    from torchglass.results.run import SavedRun
    from torchglass.results.summary import Summary
    from torchglass.results.trace import Trace

    if isinstance(target, SavedRun):
        return target.reader
    if isinstance(target, Summary):
        return hold(target.model)
    if isinstance(target, Trace):
        images = _pictures_of(target) if pictures else []
        return hold(target.model, target.record, *_values_of(target), *images)
    if isinstance(target, Memory):
        return hold(target.model, target.footprint)
    if isinstance(target, Profile):
        return hold(target.model, measures(target.rows, {}, {}, target.timing.notes))
    if isinstance(target, Flops):
        return hold(target.model, measures({}, target.rows, {}, target.work.notes))
    if isinstance(target, Comparison):
        # What the run is called; the tree of both models has its own name.
        both = target.structure
        return hold(replace(both.model, name=target.title)) if both is not None else None
    model = getattr(target, "model", None) if isinstance(target, Report) else None
    return hold(model) if isinstance(model, Model) else None


def _values_of(trace: Trace) -> list[Statistics]:
    """The statistics of a trace's saved tensors, if it has any.

    A part for each module that ran, and one for each op, whose path is "op:" and its number.
    """
    record = trace.record
    kept = {op for op, _ in trace.saved_tensors}
    if not kept:
        return []

    def measured(value: Value) -> CallTensor:
        # Only the first output of an op is measured.
        op = None if value.output else value.op
        stats = trace.stats(op) if op in kept and op is not None else None
        return CallTensor(place=value.place, spec=value.spec, stats=stats)

    calls: dict[tuple[str, str], list[ForwardStats]] = {}
    for call in record.calls:
        known = trace.model.find(call.path)
        class_name = known.class_name.rpartition(".")[2] if known is not None else ""
        one = ForwardStats(
            path=call.path,
            number=call.number,
            forward=1,
            inputs=tuple(map(measured, call.inputs)),
            outputs=tuple(map(measured, call.outputs)),
            start_ns=call.start_ns,
            total_ns=call.total_ns,
        )
        calls.setdefault((call.path, class_name), []).append(one)
    for op in (op for op in record.ops if op.kind == "op" and op.id in kept and op.outputs):
        out = CallTensor(place="", spec=op.outputs[0].spec, stats=trace.stats(op.id))
        place, taken = f"op:{op.id}", op.end_ns - op.start_ns
        one = ForwardStats(path=place, number=1, forward=1, outputs=(out,), total_ns=taken)
        calls[place, op.function] = [one]
    return [
        Statistics(
            modules=tuple(
                statistics_of(path, all_calls, class_name)
                for (path, class_name), all_calls in calls.items()
            )
        )
    ]


def _pictures_of(trace: Trace) -> list[Activations]:
    """Images of the outputs of modules, and of the weights of attention, that a trace saved."""
    if not trace.saved_tensors:
        return []
    from torchglass.capture.watch.activations import MOST_PICTURES, picture_of

    found = [
        picture
        for path, name, tensor in itertools.islice(_tensors_to_picture(trace), MOST_PICTURES)
        if (picture := picture_of(path, name, tensor)) is not None
    ]
    return [Activations(maps=tuple(found))] if found else []


def _tensors_to_picture(trace: Trace) -> Iterator[tuple[str, str, Any]]:
    """The path, name and tensor of each image, in the order of the calls."""
    import torch

    attention: dict[CallId | None, list[OpId]] = {}
    for one in trace.record.ops:
        if one.function == ATTENTION:
            attention.setdefault(one.call, []).append(one.id)
    for call in trace.record.calls:
        for number, value in enumerate(call.outputs):
            if value.op is None or call.number > 1:
                continue
            tensor = trace.saved_tensors.get((value.op, value.output))
            if tensor is not None and tensor.dim() > 1:
                yield call.path, f"output.{number}" if len(call.outputs) > 1 else "output", tensor
        for op in attention.get(call.id, ()):
            # Query or key may not be saved, or were made outside of the trace.
            with contextlib.suppress(LookupFailedError):
                maps = trace.ops[op].attention().maps
                yield call.path, "attention weights (recomputed)", torch.from_numpy(maps)[None]

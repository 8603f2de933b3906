"""What the explorer shows: a target as a reader, what one forward of it tells, and a comparison."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from torchglass.analyse.comparing import Comparison, compare
from torchglass.analyse.measuring import measures
from torchglass.errors import CaptureError, TargetError
from torchglass.records.documents import Document
from torchglass.records.model import Model, join_path
from torchglass.records.statistics import ModuleStatistics, Statistics, Totals
from torchglass.targets.held import hold, reader_of_result
from torchglass.targets.names import resolve
from torchglass.targets.reading import is_live, is_run, is_state, open_reader, read

if TYPE_CHECKING:
    import torch

    from torchglass.records.attributes import LiveModel
    from torchglass.records.flow import Reader
    from torchglass.views.tui.app import Exhibit

_TENSORS_BYTES = 1 << 28
_WARMUP, _REPEATS = 1, 3


def exhibit(
    target: object,
    inputs: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    against: object = None,
    unsafe: bool = False,
) -> Exhibit:
    """Whatever a user points at, made ready to be looked at; with inputs a model is run."""
    from torchglass.views.tui.app import Exhibit

    found = resolve(target)
    if inputs or kwargs:
        if not is_live(found):
            raise TargetError("only a live model can be run: leave the inputs out, or load it")
        reader, live = _run(found, inputs, kwargs or {})
    else:
        reader, live = _opened(found, unsafe)
    return Exhibit(
        reader=reader,
        live=live,
        comparison=None if against is None else _compared(found, reader.model(), against, unsafe),
    )


Opened = tuple["Reader", "LiveModel | None"]


def _opened(target: object, unsafe: bool) -> Opened:
    """A target as a reader, and a way to get at its tensors if there is one."""
    from torchglass.results.trace import Trace

    result = reader_of_result(target)
    if isinstance(target, Trace) and result is not None:
        from torchglass.capture.attributes.recorded import recorded_tensors
        from torchglass.capture.attributes.stored import StoredObject

        seen = recorded_tensors(target.record, target.saved_tensors)
        return result, StoredObject(target.model, {}, seen)
    if result is not None:
        return result, None
    if is_state(target):
        from torchglass.capture.attributes.stored import StoredObject

        model = read(target)
        return hold(model), StoredObject(model, _tensors_of(target, unsafe))
    if is_live(target):
        from torchglass.capture.attributes.live import LiveObject

        before = _recorded_before(target)
        documents = [before] if before.modules else []
        return hold(read(target), *documents), LiveObject(target)
    reader = open_reader(target, unsafe=unsafe)
    if not _is_checkpoint(target):
        return reader, None
    from torchglass.capture.attributes.stored import StoredObject
    from torchglass.capture.checkpoint.tensors import StoredTensors

    return reader, StoredObject(reader.model(), StoredTensors(target, unsafe=unsafe))


def _is_checkpoint(target: object) -> TypeGuard[Path]:
    return isinstance(target, Path) and not is_run(target)


def _run(model: Any, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Opened:
    """What forwards of a model show, and the model with what went through it."""
    from torch import nn

    from torchglass.api.passes import trace_forward
    from torchglass.api.recording import record
    from torchglass.capture.attributes.live import LiveObject

    # One after the other: tracing takes time that would be taken for the model's.
    with _leaving_as_found(model), record(model, tensors=_TENSORS_BYTES) as recording:
        model(*inputs, **kwargs)
    documents: list[Document] = [Statistics(modules=tuple(recording.values()))]
    if isinstance(model, nn.Module):
        with _leaving_as_found(model):
            documents.append(trace_forward(model, inputs, kwargs, save=None).record)
    with contextlib.suppress(CaptureError):
        documents.append(_measured(model, inputs, kwargs))
    tensors: dict[str, dict[str, torch.Tensor]] = {}
    for (path, _, place), tensor in recording.tensors.items():
        side, _, inner = place.partition(".")
        name = join_path("input" if side == "in" else "output", inner)
        tensors.setdefault(path, {})[name] = tensor
    return hold(read(model), *documents), LiveObject(model, tensors)


def _measured(model: Any, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Document:
    """What the modules take, with a backward where the model is in training mode."""
    from torchglass.capture.flops import working
    from torchglass.capture.memory import measuring as memory
    from torchglass.capture.timing import measuring as timing
    from torchglass.results.flops import Flops
    from torchglass.results.memory import Memory
    from torchglass.results.profile import Profile

    # Not by the verbs: an argument of forward may have the name of one of their options.
    backward = bool(getattr(model, "training", False))
    timed = Profile(
        *timing.measure(
            model, inputs, kwargs, backward=backward, warmup=_WARMUP, repeats=_REPEATS, ops=False
        )
    )
    counted = Flops(*working.count(model, inputs, kwargs, backward=backward))
    taken = Memory(*memory.measure(model, inputs, kwargs, backward=backward))
    return measures(timed.rows, counted.rows, taken.rows, timed.timing.notes)


def _recorded_before(model: Any) -> Statistics:
    """What `record_torch_module_forward_stats` left on the modules."""
    from torchglass.classic.statistics import get_forward_stats

    return Statistics(
        modules=tuple(
            ModuleStatistics(
                path=path,
                class_name="",
                calls=tuple(calls),
                totals=Totals(
                    calls=calls[-1].number,
                    total_ns=sum(call.total_ns for call in calls),
                    self_ns=sum(call.self_ns for call in calls),
                ),
            )
            for path, calls in get_forward_stats(model).items()
        )
    )


@contextlib.contextmanager
def _leaving_as_found(model: Any) -> Iterator[None]:
    """Put random state and buffers back, and compute no gradients."""
    import torch
    from torch.nn.parameter import is_lazy

    from torchglass.capture.forward.keeping import keeping_modules, keeping_random_state
    from torchglass.capture.forward.looking import modules_in, tensors_of

    located = modules_in(model)
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(keeping_random_state())
        # A lazy module gets its tensors from its first forward, and keeps them.
        if not any(map(is_lazy, tensors_of(located))):
            inner = (module for _, module in located)
            copies = {"_buffers": lambda buffer: buffer.detach().clone()}
            stack.enter_context(keeping_modules(inner, copies))
        yield


def _compared(target: object, model: Model, against: object, unsafe: bool) -> Comparison:
    from torchglass.capture.tensor.distances import distances

    other = resolve(against)
    before, after = _tensors_of(other, unsafe), _tensors_of(target, unsafe)
    return compare(_opened(other, unsafe)[0].model(), model, distances(before, after))


def _tensors_of(target: object, unsafe: bool) -> Mapping[str, Callable[[], torch.Tensor]]:
    """How to get at the tensors of a target, by their dotted names; a record has none."""
    if _is_checkpoint(target):
        from torchglass.capture.checkpoint.tensors import StoredTensors

        return StoredTensors(target, unsafe=unsafe)
    if is_state(target):
        from torchglass.capture.checkpoint.pickled import tensors_in

        return {name: partial(_itself, tensor) for name, tensor in tensors_in([target]).items()}
    if not is_live(target):
        return {}
    from torchglass.capture.forward.looking import modules_in

    return {
        join_path(path, name): partial(_itself, tensor)
        for path, module in modules_in(target)
        for table in (module._parameters, module._buffers)
        for name, tensor in table.items()
        if tensor is not None
    }


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor

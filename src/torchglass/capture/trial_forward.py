"""One forward for inspection, after which the model is unchanged."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, is_lazy

from torchglass.blocks import together
from torchglass.capture.fake_tensors import Faking, has_fakes
from torchglass.capture.model.containers import module_parts
from torchglass.capture.model.structure import read_model
from torchglass.capture.model_inputs import (
    Arguments,
    Dtype,
    Size,
    arguments_from_data,
    arguments_from_sizes,
)
from torchglass.capture.module_calls import CallRecorder, observe_calls
from torchglass.capture.restore_state import (
    KeptGradients,
    gradients_set,
    keeping_modules,
    keeping_random_state,
    retried_with_gradients,
    running_uncompiled,
    telling_of_changes,
)
from torchglass.capture.torch_internals import tree_map_only
from torchglass.errors import CaptureError
from torchglass.records.model import Model, join_path
from torchglass.records.trace import CallRecord

Located = tuple[str, nn.Module]


class Seen(NamedTuple):
    """A model, and the calls of its modules if it was run."""

    model: Model
    calls: tuple[CallRecord, ...] | None


def look_at(
    target: Any,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    input_size: Size | Iterable[Size] | None = None,
    input_data: Any = None,
    dtypes: Dtype | Sequence[Dtype] | None = None,
    fake: bool = False,
) -> Seen:
    """Read a model and, with inputs of any kind, run one forward without gradients.

    Random state, buffers, attributes and inputs are afterwards what they were. A model with lazy
    modules is run as a copy and read from it, so that it has shapes here and stays lazy there.
    """
    given = [bool(args or kwargs), input_size is not None, input_data is not None]
    if sum(given) > 1:
        raise CaptureError(
            "pass the inputs in one way: as arguments, as input_size or as input_data"
        )
    if not any(given):
        return Seen(read_model(target), None)
    modules = modules_in(target)
    tensors = tensors_of(modules)
    if any(map(is_lazy, tensors)):
        if fake:
            raise CaptureError("lazy modules take their shapes from real tensors; try fake=False")
        target = copy_of_lazy(target, tensors)
        modules = modules_in(target)
        tensors = tensors_of(modules)
    faking = Faking(tensors, modules) if fake or has_fakes(tensors) else None
    if input_size is not None:
        arguments = _from_sizes(input_size, dtypes, tensors, faking)
    elif input_data is not None:
        arguments = arguments_from_data(input_data)
    else:
        arguments = Arguments(args, kwargs or {})
    calls = _run(target, modules, arguments, faking)
    return Seen(read_model(target), calls)


@retried_with_gradients
def _run(
    target: Any,
    modules: Sequence[Located],
    arguments: Arguments,
    faking: Faking | None,
    *,
    gradients: bool = False,
) -> tuple[CallRecord, ...]:
    if not callable(target):
        raise CaptureError(f"{type(target).__name__} cannot be run: it is not callable")
    stand_in = faking.fake if faking else _clone
    replace = {"_buffers": stand_in, **({"_parameters": stand_in} if faking else {})}
    args, kwargs = tree_map_only(torch.Tensor, stand_in, tuple(arguments))
    recorder = CallRecorder(modules)
    kept = KeptGradients()
    with together(
        contextlib.nullcontext() if faking else telling_of_changes(one for _, one in modules),
        keeping_random_state(),
        keeping_modules((module for _, module in modules), replace),
        kept,
        running_uncompiled(),
        faking.running() if faking else contextlib.nullcontext(),
        gradients_set(gradients),
        observe_calls(recorder),
    ):
        if gradients:
            kept.keep(tensors_of(modules))
        try:
            target(*args, **kwargs)
        except Exception as error:
            note_where(error, recorder)
            raise
    return recorder.calls


def note_where(error: Exception, recorder: CallRecorder) -> None:
    """Let an exception say which module it came out of."""
    path = recorder.where_failed(error)
    # Python 3.10 has no notes.
    if path is not None and hasattr(error, "add_note"):
        error.add_note(f"while running {path or 'the model itself'}")


def _from_sizes(
    sizes: Size | Iterable[Size],
    dtypes: Dtype | Sequence[Dtype] | None,
    tensors: Sequence[torch.Tensor],
    faking: Faking | None,
) -> Arguments:
    """Inputs where the model is and of the dtype it computes in."""
    device = torch.device("meta") if faking else next((t.device for t in tensors), None)
    dtype = next((t.dtype for t in tensors if t.dtype.is_floating_point), None)
    return arguments_from_sizes(
        sizes, dtypes, device or torch.get_default_device(), dtype or torch.get_default_dtype()
    )


def modules_in(target: Any) -> list[Located]:
    """The modules of a model, or of an object that holds some, each under its first path."""
    found: dict[int, tuple[str, Any]] = {}
    waiting: list[tuple[str, Any]] = [("", target)]
    while waiting:
        path, thing = located = waiting.pop()
        if id(thing) not in found:
            found[id(thing)] = located
            parts = _parts(thing)
            if parts:
                waiting += [(join_path(path, name), part) for name, part in reversed(parts)]
    return [located for located in found.values() if isinstance(located[1], nn.Module)]


def _parts(thing: Any) -> list[tuple[str, Any]]:
    if isinstance(thing, nn.Module):
        # One whose `__init__` was never called has no table of modules.
        children = getattr(thing, "_modules", None)
        if not children:
            return []
        return [(name, child) for name, child in children.items() if child is not None]
    return module_parts(thing)


def tensors_of(modules: Sequence[Located]) -> list[torch.Tensor]:
    """The parameters and buffers that modules hold."""
    tables = (table for _, module in modules for table in (module._parameters, module._buffers))
    return [tensor for table in tables for tensor in table.values() if tensor is not None]


def copy_of_lazy(target: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """A copy of a model with lazy modules, which a forward gives shapes to."""
    # torch can copy a parameter that has no shape yet, but not such a buffer.
    copies = {
        id(tensor): UninitializedBuffer(device=tensor.device, dtype=tensor.dtype)  # type: ignore[call-arg]
        for tensor in tensors
        if isinstance(tensor, UninitializedBuffer)
    }
    return copy.deepcopy(target, copies)


def _clone(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if is_lazy(tensor) else tensor.detach().clone()

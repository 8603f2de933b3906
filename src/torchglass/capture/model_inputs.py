"""The forward of `tg.summary`: inputs in the forms in which users pass them, and what ran."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from torchglass.capture.autograd import retried_with_gradients
from torchglass.capture.isolated_run import ForwardCalls, isolated_run
from torchglass.capture.model.structure import modules_in, read_model, tensors_of
from torchglass.capture.module_calls import CallRecorder
from torchglass.capture.tensor.description import Args, has_fakes
from torchglass.errors import CaptureError
from torchglass.records.model import Model
from torchglass.records.trace import CallRecord

Size = Sequence[int]
Dtype = torch.dtype | str


class Arguments(NamedTuple):
    """The arguments of a forward."""

    args: Args
    kwargs: dict[str, Any]


class Seen(NamedTuple):
    """A model, and the calls of its modules."""

    model: Model
    calls: tuple[CallRecord, ...]


def look_at(
    target: Any,
    args: Args = (),
    kwargs: dict[str, Any] | None = None,
    *,
    input_size: Size | Iterable[Size] | None = None,
    input_data: Any = None,
    dtypes: Dtype | Sequence[Dtype] | None = None,
    fake: bool = False,
) -> Seen:
    """Run one forward without gradients, on inputs in any of the forms, and read the model.

    A model with lazy modules is run and read as a copy, so that the original stays lazy.
    """
    given = [bool(args or kwargs), input_size is not None, input_data is not None]
    if sum(given) > 1:
        raise CaptureError(
            "pass the inputs only once: as arguments, as input_size or as input_data"
        )
    tensors = tensors_of(modules_in(target))
    fake = fake or has_fakes(tensors)
    if input_size is not None:
        arguments = _from_sizes(input_size, dtypes, tensors, fake=fake)
    elif input_data is not None:
        arguments = arguments_from_data(input_data)
    else:
        arguments = Arguments(args, kwargs or {})
    return _run(target, arguments, fake)


@retried_with_gradients
def _run(target: Any, arguments: Arguments, fake: bool, *, gradients: bool = False) -> Seen:
    with isolated_run(target, *arguments, gradients=gradients, fake=fake) as run:
        recorder = CallRecorder(run.located)
        run.run(ForwardCalls(recorder))
    return Seen(read_model(run.target), recorder.calls)


def _from_sizes(
    sizes: Size | Iterable[Size],
    dtypes: Dtype | Sequence[Dtype] | None,
    tensors: Sequence[torch.Tensor],
    *,
    fake: bool,
) -> Arguments:
    """Inputs on the model's device and in its dtype."""
    device = torch.device("meta") if fake else next((t.device for t in tensors), None)
    dtype = next((t.dtype for t in tensors if t.dtype.is_floating_point), None)
    return arguments_from_sizes(
        sizes, dtypes, device or torch.get_default_device(), dtype or torch.get_default_dtype()
    )


def arguments_from_data(data: Any) -> Arguments:
    """A tensor is one argument, a list or tuple is all of them, a mapping has them by name."""
    if isinstance(data, Mapping):
        return Arguments((), dict(data))
    if isinstance(data, (list, tuple)):
        return Arguments(tuple(data), {})
    return Arguments((data,), {})


def arguments_from_sizes(
    sizes: Size | Iterable[Size],
    dtypes: Dtype | Sequence[Dtype] | None,
    device: torch.device,
    default_dtype: torch.dtype,
) -> Arguments:
    """A random tensor for each size: `(1, 3, 224, 224)` is one, a list is several."""
    wanted = _sizes(sizes)
    if dtypes is None:
        kinds: list[Dtype] = [default_dtype] * len(wanted)
    elif isinstance(dtypes, (torch.dtype, str)):
        kinds = [dtypes] * len(wanted)
    else:
        kinds = list(dtypes)
    if len(kinds) != len(wanted):
        raise CaptureError(f"dtypes must have one dtype per input: {len(wanted)}, not {len(kinds)}")
    made = (
        make_tensor(size, _dtype(kind), device) for size, kind in zip(wanted, kinds, strict=True)
    )
    return Arguments(tuple(made), {})


def make_tensor(size: Size, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Fixed random values for a float dtype; zeros for others."""
    if device.type == "meta":
        return torch.empty(size, dtype=dtype, device=device)
    if not (dtype.is_floating_point or dtype.is_complex):
        # Every embedding has a row 0.
        return torch.zeros(size, dtype=dtype, device=device)
    generator = torch.Generator("cpu").manual_seed(0)
    return torch.rand(size, generator=generator, device="cpu").to(dtype).to(device)


def _sizes(sizes: Size | Iterable[Size]) -> list[tuple[int, ...]]:
    listed: list[Any] = list(sizes)
    if all(isinstance(size, int) for size in listed):
        listed = [listed]
    try:
        return [tuple(map(int, size)) for size in listed]
    except (TypeError, ValueError):
        raise CaptureError(
            f"input_size must be a size such as (1, 3, 224, 224) or a list of sizes, not {sizes!r}"
        ) from None


def _dtype(kind: Dtype) -> torch.dtype:
    if isinstance(kind, torch.dtype):
        return kind
    dtype = getattr(torch, kind.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise CaptureError(f"torch has no dtype {kind!r}")
    return dtype

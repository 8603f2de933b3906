"""Tensors with shapes but no values, so that a forward of any size takes no memory."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from torchglass.capture.tensor.description import Args, Kwargs
from torchglass.capture.torch_internals import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
    disable_current_modes,
    is_sharded,
)
from torchglass.capture.torch_modes import LookingMode
from torchglass.errors import CaptureError, uninterruptible

_READS = "it reads tensor values, which fake tensors lack"
_SHAPES = "a shape depends on tensor values, which fake tensors lack"
_REASONS: dict[type[Exception], str] = {
    DataDependentOutputException: (
        "its control flow depends on tensor values, which fake tensors lack"
    ),
    DynamicOutputShapeException: _SHAPES,
    UnsupportedFakeTensorException: "torch has no fake version of such a tensor",
}
_SAID = {
    "not supported for tensor subclasses": _READS,
    "data is not allocated": _READS,
    "of Tensor (e.g. FakeTensor": _READS,
    "shape_env must not be None": _SHAPES,
    "unbacked_symbols": _SHAPES,
    "python object of type FakeTensor": "it creates a tensor subclass",
}
"""The reason, by a part of torch's message."""
_SHARDED = (
    "a model under FSDP does not run with fake=True: FSDP gathers weights in real memory. "
    "Use fake=True before sharding, or fake=False."
)
_NESTED = "torch has no fake version of a nested tensor. Use fake=False."
_log = logging.getLogger(FakeTensorMode.__module__)


class Faking:
    """Creates one fake per real tensor."""

    def __init__(
        self, tensors: Iterable[torch.Tensor], located: Sequence[tuple[str, nn.Module]] = ()
    ) -> None:
        if is_sharded(module for _, module in located):
            raise CaptureError(_SHARDED)
        modes = (tensor.fake_mode for tensor in tensors if isinstance(tensor, FakeTensor))
        self._mode = next(modes, None) or FakeTensorMode(allow_non_fake_inputs=True)
        self._located = located
        self._made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def fake(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake of a tensor; one on "meta" becomes a fake on the CPU."""
        made = self._made.get(id(tensor))
        if made is None:
            # The original is kept, so that no other tensor gets its id.
            made = self._made[id(tensor)] = tensor, self._make(tensor)
        return made[1]

    @uninterruptible
    def running(self) -> Iterator[None]:
        """Compute nothing in this block."""
        _log.addFilter(_is_worth_telling)
        try:
            with self._mode, _TruerKernels():
                yield
        except Exception as error:
            reason = _reason(error)
            if reason is None:
                raise
            raise CaptureError(
                f"{self._where(error)} does not run with fake=True: {reason}. Use fake=False."
            ) from error
        finally:
            _log.removeFilter(_is_worth_telling)

    def _where(self, error: Exception) -> str:
        """The module that raised, and the line of the user's code."""
        from torchglass.capture.trace.failing_forward import clues, failed_module

        failed = failed_module(error)
        path = next((path for path, module in self._located if module is failed), "")
        source = clues(error).source
        return (path or "the model") + (f" ({source.file}:{source.line})" if source else "")

    def _make(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, FakeTensor) or is_lazy(tensor):
            return tensor
        if tensor.device.type != "meta":
            try:
                return self._mode.from_tensor(tensor, static_shapes=True)
            except (UnsupportedFakeTensorException, NotImplementedError):
                # The mode accepts real tensors, and some kinds have no fakes.
                return tensor
            except AssertionError as error:
                # torch assumes that sizes of nested tensors may be symbolic.
                if tensor.is_nested:
                    raise CaptureError(_NESTED) from error
                raise
        # Some operations fail on "meta" that work on fake tensors.
        # In separate memory: FakeTensor makes the memory that it gets unreadable.
        sizes, dtype = (tensor.shape, tensor.stride()), tensor.dtype
        with disable_current_modes():
            # The mode itself may be on, and would make a fake tensor of it.
            like = torch.empty_strided(*sizes, dtype=dtype, device="meta")
        fake = FakeTensor(self._mode, like, torch.device("cpu"))
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(fake, requires_grad=tensor.requires_grad)
        return fake


class _TruerKernels(LookingMode):  # type: ignore[no-untyped-call]
    """Makes fake kernels accept and return what the real ones do."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        kernel = _KERNELS.get(str(func))
        return func(*args, **(kwargs or {})) if kernel is None else kernel(func, args, kwargs or {})


def _grouped_mm(func: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
    """The fake kernel supports only bfloat16; the real one on the CPU also supports float32."""
    first, second, *others = args
    if first.dtype is torch.bfloat16:
        return func(*args, **kwargs)
    output = func(first.bfloat16(), second.bfloat16(), *others, **kwargs)
    return output.to(kwargs.get("out_dtype") or first.dtype)


def _lstm(func: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
    """The fake kernel keeps no workspace for the backward; the real one keeps a large one."""
    *outputs, workspace = func(*args, **kwargs)
    given, *weights = args[:5]
    keeps = torch.is_grad_enabled() and args[-1]
    if not keeps or sum(weight.nbytes for weight in weights) > MOST_LSTM_WEIGHTS:
        return *outputs, workspace
    steps, batch = given.shape[:2]
    known = min(64, max(8, _KNOWN_ROWS // batch))
    shapes = tuple(tuple(tensor.shape) for tensor in (*weights, *args[5:7]))
    options = tuple(tuple(one) if isinstance(one, list) else one for one in args[7:])
    row = tuple(given.shape[1:]), shapes, options, given.dtype
    if steps <= known:
        size = _lstm_workspace(steps, *row)
    else:
        half, whole = (_lstm_workspace(count, *row) for count in (known // 2, known))
        size = whole + (whole - half) * (steps - known) // (known - known // 2)
    return *outputs, workspace.new_empty(size, dtype=torch.uint8)


@functools.lru_cache(maxsize=64)
def _lstm_workspace(
    steps: int,
    row: tuple[int, ...],
    shapes: tuple[tuple[int, ...], ...],
    options: tuple[Any, ...],
    dtype: torch.dtype,
) -> int:
    """The workspace that the real kernel keeps for a few steps."""
    with disable_current_modes(), torch.enable_grad():
        tensors = [torch.zeros(shape, dtype=dtype) for shape in ((steps, *row), *shapes)]
        outputs = torch.ops.aten.mkldnn_rnn_layer.default(*tensors, *map(_listed, options))
    return int(outputs[-1].nbytes)


def _listed(option: Any) -> Any:
    return list(option) if isinstance(option, tuple) else option


_KERNELS: dict[str, Callable[..., Any]] = {
    "aten._grouped_mm.default": _grouped_mm,
    "aten.mkldnn_rnn_layer.default": _lstm,
}
_KNOWN_ROWS = 2048
"""Rows that run through a real LSTM to measure its workspace, which grows linearly."""
MOST_LSTM_WEIGHTS = 1 << 26
"""An LSTM with more bytes of weights is not run."""


def _reason(error: Exception) -> str | None:
    """Why a forward failed on fake tensors; None if it would also fail on real ones."""
    if isinstance(error, UnsupportedOperatorException):
        return f"torch has no fake version of {error.func}"
    for kind, reason in _REASONS.items():
        if isinstance(error, kind):
            return reason
    said = str(error)
    return next((reason for words, reason in _SAID.items() if words in said), None)


def _is_worth_telling(record: logging.LogRecord) -> bool:
    """Whether to keep a log message of torch; the exceptions that it raises say the same."""
    return "failed while attempting to run meta" not in str(record.msg)

"""Records every kernel that runs in a with-block.

    with KernelMode(listener):
        model(x).sum().backward()

Below autograd, modules, scripts and C++ look the same: a `linear` is a `t` and an `addmm`, a
scripted module shows its internals, and a backward consists of kernels like the forward. Kernels of
a backward belong to the module call, and to the position in it, whose op they differentiate.

A trace affects autograd in two ways. A gradient that something else refers to is copied when it
reaches its parameter: while results are kept, the trace has that copy instead of a `detach`. And
torch has different formulas for tensors that Python handles, which any dispatch mode selects: the
gradient of `prod` may differ in its last bits.
"""

from __future__ import annotations

import functools
import sys
import time
import types
from enum import Enum
from typing import Any, NamedTuple

import torch

from torchglass.capture.autograd import UNNUMBERED, NodeCreators
from torchglass.capture.tensor.description import Args, Kwargs, iter_tensors
from torchglass.capture.torch_internals import (
    BACKWARD_CODE,
    COMPOSITE,
    FORWARD_CODE,
    OpOverload,
    dispatch_key_of_device,
    has_kernel_for,
    keep_from_dynamo,
    node_number,
    running_node,
    with_dispatch_key,
)
from torchglass.capture.torch_modes import LookingMode, written_by_schema
from torchglass.capture.trace.op_mode import (
    KnownChains,
    OpEvent,
    OpListener,
    chain_from,
    first_tensor,
    tell_of_failure,
)

_clock = time.perf_counter_ns


class _KernelHandling(Enum):
    """What the mode does with a kernel."""

    RECORD = "record it"
    RECORD_WRITE = "record it; its schema tells what it writes"
    MAY_UPDATE = "record it; while training it writes into its statistics, and does not declare it"
    OPEN = "run its parts with the mode on, unless its tensors have a kernel for it"


class KernelMode(LookingMode):  # type: ignore[no-untyped-call]
    """Tells a listener about every kernel that is dispatched while the mode is on.

    A higher-order op, such as `torch.cond`, and a tensor subclass's own op are one kernel each:
    torch runs their internals with all modes off.
    """

    def __init__(self, listener: OpListener) -> None:
        super().__init__()
        self._listener = listener
        self._homes = _Homes(listener)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        kwargs = kwargs or {}
        try:
            handling = _handling(func)
            is_opened = handling is _KernelHandling.OPEN and is_made_of_others(func, args, kwargs)
            if not is_opened:
                written = _written(func, handling, args, kwargs)
                if written:
                    self._listener.before_write(written)
                call, chain = self._homes.of_next(sys._getframe().f_back)
        except Exception as problem:  # noqa: BLE001 - see OpListener.missed
            self._listener.missed(problem)
            return func(*args, **kwargs)
        if is_opened:
            with self:
                return with_dispatch_key(func)(COMPOSITE, *args, **kwargs)
        start = _clock()
        try:
            output = func(*args, **kwargs)
        except BaseException as error:
            event = OpEvent(func, args, kwargs, None, call, chain, start, _clock(), written, "")
            tell_of_failure(self._listener, event, error)
            raise
        end = _clock()
        try:
            if written or first_tensor(output) is not None:
                return self._listener.seen(
                    OpEvent(func, args, kwargs, output, call, chain, start, end, written, "")
                )
        except Exception as problem:  # noqa: BLE001 - see OpListener.missed
            self._listener.missed(problem)
        return output


class _Home(NamedTuple):
    """Where in the model a kernel belongs."""

    call: Any
    chain: tuple[Any, ...]


_OUTSIDE = _Home(None, ())


class _Homes:
    """Finds where kernels belong, and remembers it for the autograd nodes that they create.

    A node is created right before the kernel whose backward it is.
    """

    def __init__(self, listener: OpListener) -> None:
        self._listener = listener
        self._creators: NodeCreators[_Home] = NodeCreators()
        self._node = -1
        self._name = ""
        self._home = _OUTSIDE
        self._script: Any = None
        self._part = 0
        self._chains: KnownChains = {}

    def of_next(self, frame: types.FrameType | None) -> _Home:
        """The home of the kernel that is about to run, called from a frame."""
        while frame is not None and frame.f_code is _HANDLER:
            frame = frame.f_back
        node = running_node()
        home = self._of_forward(frame) if node is None else self._of_backward(node, frame)
        self._creators.created(home)
        return home

    def _of_forward(self, frame: types.FrameType | None) -> _Home:
        call, chain = self._listener.current, chain_from(frame, self._chains)
        if chain:
            return _Home(call, chain)
        # The forward is a script, not Python: its kernels are numbered.
        if call is not self._script:
            self._script, self._part = call, 0
        self._part += 1
        return _Home(call, (FORWARD_CODE, self._part))

    def _of_backward(self, node: Any, frame: types.FrameType | None) -> _Home:
        if frame is None or frame.f_code is BACKWARD_CODE:
            return self._of_part(node)
        home = self._of_forward(frame)
        if BACKWARD_CODE in home.chain:
            # Python that autograd runs: a hook, or the backward of a user's own Function.
            return home._replace(call=self._of_part(node).call)
        return home

    def _of_part(self, node: Any) -> _Home:
        """The home of the next kernel of a running node: its kernels are numbered."""
        number = node_number(node)
        # The node that adds a gradient to its parameter has no number; it runs after its creator.
        if number not in (self._node, UNNUMBERED):
            self._node, self._name, self._part = number, node.name(), 0
            made = number - (self._name == _MADE_AFTER_ITS_KERNEL)
            self._home = self._creators.find(made) or _OUTSIDE
        self._part += 1
        part = self._name, self._part
        return _Home(self._home.call, (*self._home.chain, BACKWARD_CODE, part))


_HANDLER = KernelMode.__torch_dispatch__.__code__
_MADE_AFTER_ITS_KERNEL = "torch::autograd::CopySlices"
keep_from_dynamo(_HANDLER)

_STATISTICS = slice(3, 5)
"""Where batch norms take their running statistics; whether they update them comes next."""
_BATCH_NORMS = frozenset(
    {"aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm"}
)


@functools.lru_cache(maxsize=4096)
def _handling(func: Any) -> _KernelHandling:
    if not isinstance(func, OpOverload):
        return _KernelHandling.RECORD
    if func._schema.name in _BATCH_NORMS:
        return _KernelHandling.MAY_UPDATE
    if has_kernel_for(func, COMPOSITE):
        return _KernelHandling.OPEN
    return _KernelHandling.RECORD_WRITE if func._schema.is_mutable else _KernelHandling.RECORD


def _written(
    func: Any, handling: _KernelHandling, args: Args, kwargs: Kwargs
) -> tuple[torch.Tensor, ...]:
    if handling is _KernelHandling.RECORD:
        return ()
    if handling is _KernelHandling.MAY_UPDATE:
        training = args[_STATISTICS.stop :][:1]
        return tuple(iter_tensors(args[_STATISTICS])) if any(training) else ()
    return tuple(written_by_schema(func, args, kwargs))


def is_made_of_others(func: Any, args: Args, kwargs: Kwargs) -> bool:
    """Whether a composite op has no own kernel for these tensors."""
    return all(
        tensor.layout is torch.strided
        and not tensor.is_nested
        and not tensor.is_quantized
        and not has_kernel_for(func, dispatch_key_of_device(tensor.device.type))
        for tensor in iter_tensors((args, dict(kwargs)))
    )

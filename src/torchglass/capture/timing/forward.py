"""The modules and ops of a forward, timed as they run.

watch = Stopwatch(clock, cpu)
with recording(ModuleTimer(watch, model.named_modules())), timing_ops(watch):
    model(x)
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from torchglass.blocks import unbroken
from torchglass.capture.places import tensors_in
from torchglass.capture.timing.spans import Stopwatch
from torchglass.capture.trace.dispatch import mode_on, run_below
from torchglass.capture.trace.functions import OPENED, without_guards
from torchglass.capture.trace.overrides import fused_paths_kept
from torchglass.records.model import join_path

Tag = Callable[[Iterable[torch.Tensor]], None]
"""Has the nodes that made some tensors timed when autograd comes to them."""

_is_compiling = torch.compiler.is_compiling
_ASK_ONLY = frozenset(
    {
        *("__get__", "__set__", "__delete__", "__len__", "__hash__", "__repr__", "__format__"),
        *("size", "dim", "ndimension", "stride", "numel", "nelement", "element_size", "is_complex"),
        *("is_floating_point", "is_contiguous", "storage_offset", "data_ptr", "get_device"),
        *("untyped_storage", "requires_grad_", "retain_grad", "register_hook", "is_shared"),
        *("_set_grad_enabled", "set_grad_enabled"),
    }
)
"""Functions that look at a tensor and compute nothing."""


class ModuleTimer:
    """Shows a stopwatch the calls of the modules it is given, and of those that they make.

    A module that is not in the model stands below the one that called it, as "encoder.<Linear>".
    """

    def __init__(
        self,
        watch: Stopwatch,
        modules: Iterable[tuple[str, nn.Module]],
        tag: Tag | None = None,
    ) -> None:
        self._watch = watch
        # The modules are kept, so that no other object gets the id of one of them.
        self._modules = {id(module): (path, module) for path, module in modules}
        self._callers: dict[str, int | None] = {}
        self._tag = tag
        self.thread = threading.get_ident()

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
        """A call begins; how deep it is."""
        watch = self._watch
        path = self._path(module)
        if path is None:
            return watch.depth
        if watch.is_in_node():
            # Autograd runs it again: it is still part of whoever called it in the forward.
            return watch.begin("module", path, self._callers.get(path))
        self._callers[path] = watch.current
        return watch.begin("module", path)

    def leave(self, depth: int, output: Any = None, error: BaseException | None = None) -> None:
        """The call at a depth returned or raised."""
        self._watch.end(depth)
        if self._tag is not None and self._watch.is_in_node():
            # A checkpoint that runs its forward again may well run a backward of that right after.
            self._tag(tensor for _, tensor in tensors_in(output))

    def _path(self, module: nn.Module) -> str | None:
        known = self._modules.get(id(module))
        if known is not None:
            return known[0]
        caller = self._watch.innermost_path()
        return None if caller is None else join_path(caller, f"<{type(module).__name__}>")


class _OpTimer(TorchFunctionMode):
    """Shows a stopwatch the torch functions that this thread calls."""

    def __init__(self, watch: Stopwatch) -> None:
        super().__init__()
        self._watch = watch
        self._thread = threading.get_ident()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if _is_compiling():
            # Constant while dynamo looks at this method, as it does when `torch.cond` runs.
            return func(*args, **kwargs)
        # Autograd hands our mode on to the threads that it has for devices.
        if not _computes(func) or threading.get_ident() != self._thread:
            return func(*args, **kwargs)
        if func in OPENED:
            return run_below(self, without_guards(func), *args, **kwargs)
        depth = self._watch.begin("op", func)
        try:
            return func(*args, **kwargs)
        finally:
            self._watch.end(depth)


@unbroken
def timing_ops(watch: Stopwatch) -> Iterator[None]:
    """Show a stopwatch the ops of this thread until the block ends."""
    with fused_paths_kept(), mode_on(_OpTimer(watch)):
        yield


@functools.lru_cache(maxsize=4096)
def _computes(func: Any) -> bool:
    return getattr(func, "__name__", "") not in _ASK_ONLY

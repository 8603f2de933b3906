"""Records every torch operation in a with-block, at the cost of one tuple each.

The mode is called between the caller and torch. It only appends an event: names, parents, shapes
and source lines are computed from the events after the pass, in `trace.producers`.
"""

from __future__ import annotations

import functools
import sys
import time
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch.overrides import TorchFunctionMode

from torchglass.capture.tensor.description import Args, Kwargs, iter_tensors
from torchglass.capture.torch_internals import (
    BACKWARD_CODE,
    FORWARD_CODE,
    DisableTorchFunction,
    any_autocast_enabled,
    function_mode_count,
    get_unwrapped,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
    maybe_get_bdim,
    peek_interpreter_stack,
    tree_map_only,
)
from torchglass.capture.torch_modes import (
    Handling,
    handling_of,
    quietly,
    run_below,
    without_guards,
    written_by,
)
from torchglass.records.trace import Phase

_clock = time.perf_counter_ns
_is_compiling = torch.compiler.is_compiling
_NO_KWARGS: Mapping[str, Any] = {}
_BACKWARDS = frozenset({torch.Tensor.backward, torch.autograd.backward})
_PACKAGE = Path(__file__).parents[2]
_NOT_THE_USERS = (torch.__file__.rpartition("__init__")[0], str(_PACKAGE))
_COMMAND_LINE = str(_PACKAGE / "cli")


KnownChains = dict[tuple[int, ...], "Chain"]
"""Chains by the ids of their code, which they keep alive."""
Chain = tuple[Any, ...]
"""Code objects and instruction offsets alternating, innermost first."""


class OpEvent(NamedTuple):
    """One operation: its arguments and what it returned."""

    function: Callable[..., Any]
    args: Args
    kwargs: Kwargs
    output: Any
    call: Any
    """The module call it ran in, as the observer represents it."""
    chain: Chain
    """From the op's caller out to its module's forward."""
    start_ns: int
    end_ns: int
    written: tuple[torch.Tensor, ...]
    """What it changed in place."""

    grad_fn: str
    """The class name of its autograd node."""
    autocast: tuple[tuple[str, torch.dtype], ...] = ()
    """The devices on which autocast changed its dtype, and that dtype."""

    @property
    def results(self) -> tuple[torch.Tensor, ...]:
        """The tensors it returned; if it returned none, as `x[0] = 1` does, what it wrote."""
        return results_of(self.output, self.written)


class UnwrappedEvent(OpEvent):
    """An op inside `vmap`, `grad` or a similar transform."""

    __slots__ = ()


def results_of(output: Any, written: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """The tensors that an op returned; if it returned none, what it wrote."""
    if isinstance(output, torch.Tensor):
        return (output,)
    return tuple(iter_tensors(output)) or written


# Half the cost of calling the class, for every op.
_event: Callable[[tuple[Any, ...]], OpEvent] = functools.partial(tuple.__new__, OpEvent)


# Needed for every op, and reading an Enum member takes fifteen times as long as a name.
_RECORD, _OPEN, _PASS = Handling.RECORD, Handling.OPEN, Handling.PASS


class OpListener(Protocol):
    """Receives the operations."""

    @property
    def current(self) -> Any:
        """The module call that is running."""

    def before_write(self, written: tuple[torch.Tensor, ...]) -> None:
        """An op is about to change these tensors in place."""

    def seen(self, event: OpEvent) -> Any:
        """An op ran. Returns what its caller gets: `event.output`, or something else."""

    def failed(self, event: OpEvent, error: BaseException) -> None:
        """An op raised, so the event has no output."""

    def missed(self, problem: Exception) -> None:
        """Our own error at an op, which runs anyway.

        It becomes a warning; an exception raised on purpose is raised again.
        """


class OpMode(TorchFunctionMode):
    """Tells a listener about every operation that this thread runs while the mode is on."""

    def __init__(
        self, listener: OpListener, before_backward: Callable[[], None] = lambda: None
    ) -> None:
        """`before_backward` is called before each backward, whose writes are not seen."""
        super().__init__()
        self._listener = listener
        self._before_backward = before_backward
        self._opened: list[Callable[..., Any]] = []
        self._chains: KnownChains = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        kwargs = kwargs or _NO_KWARGS
        if _is_compiling():
            return func(*args, **kwargs)
        run = None
        try:
            handling = handling_of(func)
            if handling is _PASS:
                run = func if func not in _BACKWARDS else self._backward(func)
            elif handling is _OPEN and func not in self._opened:
                run = functools.partial(self._run_opened, func, without_guards(func))
            else:
                writes = handling is not _RECORD or "out" in kwargs
                written = self._written(func, handling, args, kwargs) if writes else ()
                call, chain = self._listener.current, chain_from(sys._getframe(1), self._chains)
                given = args if CHANGEABLE.isdisjoint(map(type, args)) else unchanging(args)
                named = unchanging(kwargs) if kwargs else kwargs
        except Exception as problem:  # noqa: BLE001 - see OpListener.missed
            self._listener.missed(problem)
            run = func
        if run is not None:
            return run(*args, **kwargs)
        start = _clock()
        try:
            output = func(*args, **kwargs)
        except BaseException as error:
            event = OpEvent(func, given, named, None, call, chain, start, _clock(), written, "")
            tell_of_failure(self._listener, event, error)
            raise
        end = _clock()
        try:
            tensor = first_tensor(output)
            if tensor is None and not written:
                return output
            grad_fn = "" if tensor is None else _grad_fn(tensor)
            autocast = _autocast() if any_autocast_enabled() else ()
            event = _event(
                (func, given, named, output, call, chain, start, end, written, grad_fn, autocast)
            )
            if peek_interpreter_stack() is None:
                return self._listener.seen(event)
            self._listener.seen(_unwrapped_event(event))
        except Exception as problem:  # noqa: BLE001 - see OpListener.missed
            self._listener.missed(problem)
        return output

    def _written(
        self, func: Callable[..., Any], handling: Handling, args: Args, kwargs: Kwargs
    ) -> tuple[torch.Tensor, ...]:
        """What an op is about to write; also tells the listener."""
        written = written_by(func, handling, args, kwargs)
        if written:
            self._listener.before_write(unwrapped(written))
        return written

    def _backward(self, func: Callable[..., Any]) -> Callable[..., Any]:
        self._before_backward()
        return func

    def _run_opened(
        self, func: Callable[..., Any], inside: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        self._opened.append(func)
        try:
            return run_below(self, inside, *args, **kwargs)
        finally:
            self._opened.pop()


CHANGEABLE = frozenset({list, tuple, dict})
"""Containers that a model may change after a call, or that may contain such containers."""


def unchanging(value: Any, depth: int = 0) -> Any:
    """An argument with its lists and dicts copied: the model may append to the originals later."""
    kind = type(value)
    # Arguments of ops are nested at most twice; a list passed to a module may contain itself.
    if kind not in CHANGEABLE or depth > _DEEPEST:
        return value
    if kind is dict:
        if CHANGEABLE.isdisjoint(map(type, value.values())):
            return value.copy()
        return {key: unchanging(item, depth + 1) for key, item in value.items()}
    if CHANGEABLE.isdisjoint(map(type, value)):
        return value if kind is tuple else value.copy()
    items = [unchanging(item, depth + 1) if type(item) in CHANGEABLE else item for item in value]
    return items if kind is list else tuple(items)


_DEEPEST = 4


def tell_of_failure(listener: OpListener, event: OpEvent, error: BaseException) -> None:
    """Tell a listener about an op that raised; an error in the listener is ignored."""
    try:
        listener.failed(event, error)
    except Exception as problem:  # noqa: BLE001 - see OpListener.missed
        listener.missed(problem)


def _unwrapped_event(event: OpEvent) -> UnwrappedEvent:
    args, kwargs, inner, written = unwrapped(
        (event.args, event.kwargs, event.output, event.written)
    )
    event = event._replace(args=args, kwargs=kwargs, output=inner, written=written)
    return UnwrappedEvent(*event)


def _autocast() -> tuple[tuple[str, torch.dtype], ...]:
    return tuple(
        (device, torch.get_autocast_dtype(device))
        for device in ("cpu", "cuda")
        if torch.is_autocast_enabled(device)
    )


def unwrapped(nest: Any) -> Any:
    """Tensors without the wrappers of `vmap`, `grad` and the like, which are short-lived."""
    if peek_interpreter_stack() is None:
        return nest
    return tree_map_only(torch.Tensor, _innermost, nest)


def _innermost(tensor: torch.Tensor) -> torch.Tensor:
    while is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
    return tensor


def returned(nest: Any) -> Any:
    """Tensors as the caller of `vmap`, `grad` and the like gets them, with batches in front."""
    if peek_interpreter_stack() is None:
        return nest
    with quietly():
        return tree_map_only(torch.Tensor, _with_batches_in_front, nest)


def _with_batches_in_front(tensor: torch.Tensor) -> torch.Tensor:
    batches = []
    while is_functorch_wrapped_tensor(tensor):
        if is_batchedtensor(tensor):
            batches.append(maybe_get_bdim(tensor))
        tensor = get_unwrapped(tensor)
    # The innermost `vmap` counts its dimensions without those of the others.
    others = list(range(tensor.dim()))
    front = [others.pop(batch) for batch in reversed(batches)]
    order = [*front, *others]
    # Without a wrapper it is known by its id.
    return tensor if order == sorted(order) else tensor.permute(order)


def first_tensor(output: Any) -> torch.Tensor | None:
    """The tensor that an op returned, or the first of several."""
    if isinstance(output, torch.Tensor):
        return output
    if isinstance(output, (tuple, list)):
        for item in output:
            tensor = first_tensor(item)
            if tensor is not None:
                return tensor
    return None


def _grad_fn(tensor: torch.Tensor) -> str:
    if function_mode_count():
        # The user's modes must not see this.
        with DisableTorchFunction():
            node = tensor.grad_fn
    else:
        node = tensor.grad_fn
    return "" if node is None else type(node).__name__


def chain_from(frame: types.FrameType | None, known: KnownChains) -> Chain:
    """The code from an op out to its module's forward: ops with the same chain are repeats.

    Equal chains are one object, which `known` keeps.
    """
    first = frame
    # Hashing a code object takes longer than all else here, so chains are found by its id.
    key: tuple[int, ...] = ()
    while frame is not None:
        code = frame.f_code
        if code is FORWARD_CODE or len(key) > _LONGEST_CHAIN:
            break
        key += (id(code), frame.f_lasti)
        frame = frame.f_back
    return known.get(key) or known.setdefault(key, _chain(first, len(key)))


def _chain(frame: types.FrameType | None, length: int) -> Chain:
    chain: Chain = ()
    while frame is not None and len(chain) < length:
        chain += (frame.f_code, frame.f_lasti)
        frame = frame.f_back
    return chain


_LONGEST_CHAIN = 64


def user_code(chain: Chain) -> tuple[types.CodeType, int] | None:
    """The innermost place of a chain that is neither torch's code nor ours.

    Outside of our command line there is only the library that parses its arguments.
    """
    for code, offset in zip(chain[::2], chain[1::2], strict=True):
        if code.co_filename.startswith(_COMMAND_LINE):
            return None
        if not code.co_filename.startswith(_NOT_THE_USERS):
            return code, offset
    return None


OPTIMIZER_STEP = next(
    part
    for part in torch.optim.Optimizer.profile_hook_step.__code__.co_consts
    if isinstance(part, types.CodeType)
)
"""The wrapper that torch puts around the `step` of every optimizer."""


def phase_of(chain: Chain) -> Phase:
    """The phase of an op that was called along a chain of code."""
    if BACKWARD_CODE in chain:
        return "backward"
    return "optimizer" if OPTIMIZER_STEP in chain else "forward"

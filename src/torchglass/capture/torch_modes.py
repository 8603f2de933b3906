"""Our modes, which leave what torch runs unchanged, and what torch's functions write.

`nn.MultiheadAttention` and `nn.TransformerEncoderLayer` leave their fast path when
`torch.overrides.has_torch_function` is true, and any active function mode makes it so.

At the end: torch's own modes for a block, gradients and compilation, which are always restored, and
its random state.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from torchglass.capture.tensor.description import Args, Kwargs, iter_tensors
from torchglass.capture.tensor.device_reads import is_capturing
from torchglass.capture.torch_internals import (
    DISABLED_TORCH_FUNCTION,
    DYNAMO,
    DisableTorchFunction,
    OpOverload,
    OpOverloadPacket,
    TorchDispatchMode,
    disable_current_modes,
    dispatch_mode_count,
    dispatch_modes,
    first_overload,
    function_mode_at,
    function_mode_count,
    is_compiled,
    let_modes_see_higher_order_ops,
    peek_interpreter_stack,
    pop_dispatch_mode,
    pop_function_mode,
    push_dispatch_mode,
    push_function_mode,
    set_grad_enabled,
    temporarily_clear_interpreter_stack,
)
from torchglass.errors import deferred_signals, undo_reliably, uninterruptible

Mode = TypeVar("Mode", TorchFunctionMode, TorchDispatchMode)


@uninterruptible
def mode_on(mode: Mode) -> Iterator[Mode]:
    """Activate a mode until the block ends, and remove it from the stack in any case.

    torch's own blocks pop whatever is on top, and an interrupt may skip that.
    """
    is_for_functions = TorchFunctionMode in type(mode).__mro__
    take_off = _take_off_function_mode if is_for_functions else _take_off_dispatch_mode
    begin: Callable[[], object] = mode.__enter__
    try:
        begin()
        yield mode
    finally:
        undo_reliably(take_off, mode)


def run_below(mode: TorchFunctionMode, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a function with a mode on that is handling another one and therefore off."""
    push_function_mode(mode)
    try:
        return run(*args, **kwargs)
    finally:
        # torch has not restored it if Ctrl-C came while another op was handled.
        depth = function_mode_count()
        if depth and function_mode_at(depth - 1) is mode:
            pop_function_mode()


def _take_off_function_mode(mode: TorchFunctionMode) -> None:
    others = []
    for _ in range(function_mode_count()):
        top = pop_function_mode()
        if top is not mode:
            others.append(top)
    for other in reversed(others):
        push_function_mode(other)


def _take_off_dispatch_mode(mode: TorchDispatchMode) -> None:
    while any(one is mode for one in dispatch_modes()):
        above = []
        while dispatch_modes()[-1] is not mode:
            above.append(pop_dispatch_mode())
        mode.__exit__(None, None, None)
        for other in reversed(above):
            push_dispatch_mode(other)


class LookingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that observes all kernels, and changes nothing about them."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch would import dynamo to keep it out of a mode's method: seconds at the first kernel.
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        # Otherwise nothing compiles below the mode: `torch.cond` loses its gradients, and functions
        # first called here stay uncompiled for good.
        return True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        let_modes_see_higher_order_ops(type(self))


_lock = threading.Lock()
_blocks: dict[object, int] = {}
"""The blocks that keep them, by thread."""
_original: Callable[[Iterable[Any]], bool] = torch.overrides.has_torch_function
_ours: Counter[int] = Counter()
"""How many of our modes are active, by thread."""


@uninterruptible
def fused_paths_kept() -> Iterator[None]:
    """Let this thread take torch's fast paths although one of our modes is active in it."""
    block = object()
    try:
        _keep(block)
        yield
    finally:
        undo_reliably(_let_go, block)


def _keep(block: object) -> None:
    global _original  # noqa: PLW0603 - torch has one such function for all threads
    with _lock:
        if not _blocks:
            _original = torch.overrides.has_torch_function
        _blocks[block] = threading.get_ident()
        _count()
        _stand_in(_of_arguments)


def _let_go(block: object) -> None:
    with _lock:
        _blocks.pop(block, None)
        _count()
        if not _blocks and torch.overrides.has_torch_function is _of_arguments:
            _stand_in(_original)


def _count() -> None:
    global _ours  # noqa: PLW0603 - see _keep
    _ours = Counter(_blocks.values())


def _stand_in(function: Callable[[Iterable[Any]], bool]) -> None:
    vars(torch.overrides)["has_torch_function"] = function


def _of_arguments(arguments: Iterable[Any]) -> bool:
    """Whether the arguments, or a mode that is not ours, override the call."""
    arguments = tuple(arguments)
    if function_mode_count() > _ours[threading.get_ident()]:
        return _original(arguments)
    return any(map(_overrides, arguments))


def _overrides(argument: Any) -> bool:
    cls = type(argument)
    return (
        cls is not torch.Tensor
        and cls is not torch.nn.Parameter
        and hasattr(cls, "__torch_function__")
        and cls.__torch_function__ is not DISABLED_TORCH_FUNCTION
    )


def is_overheard() -> bool:
    """Whether someone else's mode would see what we do with a plain tensor."""
    return (
        function_mode_count() > 0
        or dispatch_mode_count() > 0
        or peek_interpreter_stack() is not None
    )


def quietly() -> contextlib.AbstractContextManager[Any]:
    """Hide what we do from the user's modes, tensor classes and function transforms."""
    if not dispatch_mode_count() and peek_interpreter_stack() is None:
        return DisableTorchFunction()
    return _without_modes()


@contextlib.contextmanager
def _without_modes() -> Iterator[None]:
    with (
        # Modes must be restored before any block ends. Python handles signals when `__exit__`
        # begins, so a signal at that point would leave the modes off.
        deferred_signals(),
        DisableTorchFunction(),
        disable_current_modes(),
        temporarily_clear_interpreter_stack(),
    ):
        yield


class Handling(Enum):
    """What a mode that records ops does with a function."""

    RECORD = "record it"
    RECORD_WRITE = "record it; it writes into its first argument"
    MAY_WRITE = "record it; its `inplace` argument tells whether it writes"
    BY_SCHEMA = "record it; its schema tells what it writes"
    MAY_RENORM = "record it; with a `max_norm` it writes into the weight it is given"
    MAY_UPDATE = "record it; while training it writes into the running statistics it is given"
    OPEN = "run its Python code with the mode on, and record what is inside"
    PASS = "do not record it: it computes nothing"


# Needed at every activation, and reading an Enum member takes fifteen times as long as a name.
_MAY_WRITE = Handling.MAY_WRITE


_OPERATORS = (
    *("add", "and", "div", "floordiv", "lshift", "matmul", "mod", "mul", "or", "pow", "rshift"),
    *("sub", "truediv", "xor"),
)
_IN_PLACE_OPERATORS = frozenset(f"__i{name}__" for name in _OPERATORS)
_WRITES_NO_NUMBERS = frozenset(
    {"detach_", "requires_grad_", "share_memory_", "rename_", "retain_grad"}
)
_PASSED = frozenset(
    {
        "requires_grad_",
        "retain_grad",
        "register_hook",
        "__set__",
        "__delete__",
        "__len__",
        "__bool__",
        "__contains__",
        "backward",
        "numpy",
        "__array__",
        "tolist",
        "item",
        "dim",
        "size",
        "stride",
    }
)
_VIEWS_BY_ATTRIBUTE = frozenset({"data", "T", "mT", "H", "mH", "real", "imag"})
SETS_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]
"""`y.data = x`, after which `y` uses the memory of `x`; nothing is written to it."""
OPENED = frozenset(
    {
        functional.gumbel_softmax,
        functional.local_response_norm,
        functional.lp_pool1d,
        functional.lp_pool2d,
        functional.lp_pool3d,
        functional.multi_head_attention_forward,
        functional.normalize,
        functional.softsign,
        functional.tanhshrink,
    }
)
"""Functions of torch that are Python code made of other functions worth recording."""


_STATISTICS: dict[Any, slice] = {
    functional.batch_norm: slice(1, 3),
    functional.instance_norm: slice(1, 3),
    torch.batch_norm: slice(3, 5),
    torch.instance_norm: slice(3, 5),
}
"""Where normalisations take their running statistics; whether they update them comes sixth."""
_EMBEDDINGS = (functional.embedding, functional.embedding_bag)
"""Take their weight second and `max_norm` fourth."""


@functools.lru_cache(maxsize=4096)
def handling_of(func: Any) -> Handling:
    """How a mode that records ops handles a function."""
    name = getattr(func, "__name__", "")
    if func == SETS_DATA:
        return Handling.RECORD_WRITE
    if name in _PASSED or (name == "__get__" and not _makes_a_view(func)):
        return Handling.PASS
    if func in OPENED:
        return Handling.OPEN
    if func in _STATISTICS:
        return Handling.MAY_UPDATE
    if func in _EMBEDDINGS:
        return Handling.MAY_RENORM
    if isinstance(func, (OpOverload, OpOverloadPacket)):
        return Handling.BY_SCHEMA if _schema(func).is_mutable else Handling.RECORD
    if _named_as_in_place(name):
        return Handling.RECORD_WRITE
    return Handling.RECORD if _place_of_inplace(func) is None else Handling.MAY_WRITE


def _makes_a_view(getter: Any) -> bool:
    """Whether reading an attribute gives a new tensor: `.T` does, `.shape` and `.grad` do not."""
    return getattr(getattr(getter, "__self__", None), "__name__", "") in _VIEWS_BY_ATTRIBUTE


def _named_as_in_place(name: str) -> bool:
    if name == "__setitem__" or name in _IN_PLACE_OPERATORS:
        return True
    return name.endswith("_") and not name.endswith("__") and name not in _WRITES_NO_NUMBERS


@functools.lru_cache(maxsize=4096)
def _place_of_inplace(func: Any) -> int | None:
    code = getattr(func, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code is not None else ()
    return names.index("inplace") if "inplace" in names else None


def written_by(
    func: Any, handling: Handling, args: Args, kwargs: Kwargs
) -> tuple[torch.Tensor, ...]:
    """The arguments that a function is about to change in place."""
    if "out" in kwargs:
        return tuple(iter_tensors(kwargs["out"]))
    if handling is _MAY_WRITE:
        place = _place_of_inplace(func)
        assert place is not None
        if not (kwargs.get("inplace") or (len(args) > place and args[place])):
            return ()
    elif handling is Handling.RECORD:
        return ()
    elif handling is Handling.BY_SCHEMA:
        return tuple(written_by_schema(func, args, kwargs))
    elif handling is Handling.MAY_RENORM:
        max_norm = next(iter(args[3:4]), kwargs.get("max_norm"))
        return (
            tuple(iter_tensors(args[1:2] or kwargs.get("weight"))) if max_norm is not None else ()
        )
    elif handling is Handling.MAY_UPDATE:
        training = args[5:6] or (kwargs.get("training"), kwargs.get("use_input_stats"))
        running = (*args[_STATISTICS[func]], kwargs.get("running_mean"), kwargs.get("running_var"))
        return tuple(iter_tensors(running)) if any(training) else ()
    return tuple(iter_tensors(args[0] if args else kwargs.get("input")))


def _schema(func: OpOverload[..., Any] | OpOverloadPacket[..., Any]) -> Any:
    """The schema of an op; with several overloads the first: all of them write, or none does."""
    if isinstance(func, OpOverloadPacket):
        func = first_overload(func)
    return func._schema


def written_by_schema(func: Any, args: Args, kwargs: Kwargs) -> Iterator[torch.Tensor]:
    """The same by the schema of an op."""
    for place, argument in enumerate(_schema(func).arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            yield from iter_tensors(value)


@functools.lru_cache(maxsize=4096)
def without_guards(func: Any) -> Callable[..., Any]:
    """A copy of a torch function that runs its code without calling the mode first."""
    world = dict(func.__globals__)
    for name in world:
        if name.startswith("has_torch_function"):
            world[name] = _never
    copy = types.FunctionType(
        func.__code__, world, func.__name__, func.__defaults__, func.__closure__
    )
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy


def _never(*_: object) -> bool:
    return False


@uninterruptible
def gradients_set(enabled: bool) -> Iterator[None]:
    """`torch.set_grad_enabled`, always restored."""
    before = torch.is_grad_enabled()
    try:
        set_grad_enabled(enabled)
        yield
    finally:
        set_grad_enabled(before)


def has_compiled(modules: Iterable[nn.Module]) -> bool:
    """Whether one of the modules was compiled."""
    return DYNAMO in sys.modules and any(map(is_compiled, modules))


@uninterruptible
def running_uncompiled() -> Iterator[None]:
    """Run compiled models as plain Python, which calls their modules."""
    if DYNAMO not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"), _compiling_parts_of_torch():
        yield


@uninterruptible
def _compiling_parts_of_torch() -> Iterator[None]:
    """Let torch compile its own functions: uncompiled, `torch.cond` loses its gradients."""
    original = torch.compile

    def compile_with_stance(*args: Any, **kwargs: Any) -> Any:
        compiled: Any = original(*args, **kwargs)
        if not args or not getattr(args[0], "__module__", "").startswith("torch."):
            return compiled

        def run(*args: Any, **kwargs: Any) -> Any:
            with torch.compiler.set_stance("default"):
                return compiled(*args, **kwargs)

        return run

    torch.compile = compile_with_stance
    try:
        yield
    finally:
        torch.compile = original


class TorchRandomState:
    """torch's random state, of the host and of every device in use."""

    def __init__(self) -> None:
        self._host = torch.get_rng_state()
        self._devices: list[tuple[Any, list[torch.Tensor]]] = []
        # The states of devices are kept on the host: reading them waits for nothing.
        for world in (torch.cuda, torch.xpu):
            if world.is_initialized() and not is_capturing():
                self._devices.append((world.set_rng_state_all, world.get_rng_state_all()))
        if torch.backends.mps.is_available():
            self._devices.append((_set_mps_state, [torch.mps.get_rng_state()]))

    def restore(self) -> None:
        """Go back to this state."""
        torch.set_rng_state(self._host)
        for restore, states in self._devices:
            restore(states)

    def is_current(self) -> bool:
        """Whether no random number was drawn since."""
        return all(map(torch.equal, self._all(), TorchRandomState()._all()))

    def _all(self) -> list[torch.Tensor]:
        return [self._host, *(state for _, states in self._devices for state in states)]


def _set_mps_state(states: list[torch.Tensor]) -> None:
    torch.mps.set_rng_state(states[0])

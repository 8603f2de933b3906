"""Every torch operation that runs inside a with-block, at the price of one tuple each.

The mode stands between the caller and torch. It appends what it saw and works nothing out: names,
parents, shapes and source lines are read off the events after the pass, by `capture.trace.linking`.
"""

from __future__ import annotations

import functools
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch._C._functorch import (
    get_unwrapped,
    is_functorch_wrapped_tensor,
    peek_interpreter_stack,
)
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

_clock = time.perf_counter_ns
_any_autocast = torch._C._is_any_autocast_enabled
_is_compiling = torch.compiler.is_compiling
_NO_KWARGS: Mapping[str, Any] = {}
_NOT_THE_USERS = (torch.__file__.rpartition("__init__")[0], str(Path(__file__).parents[2]))
_FORWARD_BEGINS = torch.nn.Module._call_impl.__code__


Chain = tuple[Any, ...]
"""Code objects and instruction offsets in turns, from the inside out."""


class OpEvent(NamedTuple):
    """One operation, as it was called and what it returned."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: Any
    call: Any
    """The module call it ran in, whatever the observer of modules calls that."""
    chain: Chain
    """From the op's caller out to its module's forward."""
    start_ns: int
    end_ns: int
    written: tuple[torch.Tensor, ...]
    """What it changed in place."""

    grad_fn: str
    """The autograd node that will take its gradient, by class name."""
    autocast: tuple[tuple[str, torch.dtype], ...] = ()
    """The devices on which it ran in another dtype than its arguments have, and that dtype."""

    @property
    def results(self) -> tuple[torch.Tensor, ...]:
        """The tensors it made; for one that returns nothing, as `x[0] = 1` does, what it wrote."""
        return results_of(self.output, self.written)


class UnwrappedEvent(OpEvent):
    """One inside `vmap`, `grad` or the like, which tell how its arguments are to be taken."""

    __slots__ = ()


def results_of(output: Any, written: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """The tensors that an op returned; what it wrote, where it returned none."""
    if isinstance(output, torch.Tensor):
        return (output,)
    return tuple(tensors_in(output)) or written


# Half the price of calling the class, which is paid for every op.
_event: Callable[[tuple[Any, ...]], OpEvent] = functools.partial(tuple.__new__, OpEvent)


class _Handling(Enum):
    """What the mode does with a function."""

    RECORD = "record it"
    RECORD_WRITE = "record it; it writes into its first argument"
    MAY_WRITE = "record it; its `inplace` argument tells whether it writes"
    BY_SCHEMA = "record it; its schema tells what it writes"
    MAY_UPDATE = "record it; while training it writes into the running statistics it is given"
    OPEN = "run its Python code with the mode on, and record what is inside"
    PASS = "let it by: it computes nothing"


# Asked for with every op, and looking into an Enum takes fifteen times as long as a name.
_RECORD, _OPEN, _PASS = _Handling.RECORD, _Handling.OPEN, _Handling.PASS


class OpListener(Protocol):
    """Who is told of the operations."""

    @property
    def current(self) -> Any:
        """The module call that is running."""

    def before_write(self, written: tuple[torch.Tensor, ...]) -> None:
        """An op is about to change these tensors in place."""

    def seen(self, event: OpEvent) -> Any:
        """An op ran. What this returns, its caller gets: `event.output`, or something else."""

    def failed(self, event: OpEvent, error: BaseException) -> None:
        """An op raised, so the event has no output."""


class OpMode(TorchFunctionMode):
    """Tells a listener of every operation that this thread runs while the mode is on."""

    def __init__(
        self, listener: OpListener, before_backward: Callable[[], None] = lambda: None
    ) -> None:
        """`before_backward` is told of each `loss.backward()`, which writes out of our sight."""
        super().__init__()
        self._listener = listener
        self._before_backward = before_backward
        self._opened: list[Callable[..., Any]] = []
        self._chains: dict[Chain, Chain] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or _NO_KWARGS
        if _is_compiling():
            return func(*args, **kwargs)
        handling = _handling(func)
        if handling is _PASS:
            if func is torch.Tensor.backward:
                self._before_backward()
            return func(*args, **kwargs)
        if handling is _OPEN and func not in self._opened:
            return self._run_opened(func, args, kwargs)
        written: tuple[torch.Tensor, ...] = ()
        if handling is not _RECORD or "out" in kwargs:
            written = _written(func, handling, args, kwargs)
            if written:
                self._listener.before_write(written)
        call, chain = self._listener.current, chain_from(sys._getframe(1), self._chains)
        start = _clock()
        try:
            output = func(*args, **kwargs)
        except BaseException as error:
            event = OpEvent(func, args, kwargs, None, call, chain, start, _clock(), written, "")
            self._listener.failed(event, error)
            raise
        end = _clock()
        if not written and not holds_tensor(output):
            return output
        grad_fn = _grad_fn(output)
        autocast = _autocast() if _any_autocast() else ()
        event = _event(
            (func, args, kwargs, output, call, chain, start, end, written, grad_fn, autocast)
        )
        if peek_interpreter_stack() is None:
            return self._listener.seen(event)
        args, kwargs, inner, written = unwrapped((args, kwargs, output, written))
        event = event._replace(args=args, kwargs=kwargs, output=inner, written=written)
        self._listener.seen(UnwrappedEvent(*event))
        return output

    def _run_opened(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        self._opened.append(func)
        try:
            with self:
                return without_guards(func)(*args, **kwargs)
        finally:
            self._opened.pop()


def _autocast() -> tuple[tuple[str, torch.dtype], ...]:
    return tuple(
        (device, torch.get_autocast_dtype(device))
        for device in ("cpu", "cuda")
        if torch.is_autocast_enabled(device)
    )


def unwrapped(nest: Any) -> Any:
    """Tensors as they are below `vmap`, `grad` and the like, whose own do not outlive them."""
    if peek_interpreter_stack() is None:
        return nest
    return tree_map_only(torch.Tensor, _innermost, nest)


def _innermost(tensor: torch.Tensor) -> torch.Tensor:
    while is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
    return tensor


def holds_tensor(output: Any) -> bool:
    """Whether an op returned a tensor, alone or among others."""
    if isinstance(output, torch.Tensor):
        return True
    return isinstance(output, (tuple, list)) and any(map(holds_tensor, output))


def _grad_fn(output: Any) -> str:
    tensor = output if isinstance(output, torch.Tensor) else next(tensors_in(output), None)
    node = None if tensor is None else tensor.grad_fn
    return "" if node is None else type(node).__name__


def tensors_in(nest: Any) -> Iterator[torch.Tensor]:
    """The tensors in an op's arguments or output, which nest in tuples, lists and dicts only."""
    if isinstance(nest, torch.Tensor):
        yield nest
    elif isinstance(nest, (tuple, list)):
        for item in nest:
            yield from tensors_in(item)
    elif isinstance(nest, dict):
        for item in nest.values():
            yield from tensors_in(item)


def chain_from(frame: types.FrameType | None, known: dict[Chain, Chain]) -> Chain:
    """The way from an op out to the forward it is in: ops of one way are one op, repeated.

    One that is known is given as it was, and becomes known otherwise.
    """
    chain: Chain = ()
    while frame is not None:
        code = frame.f_code
        if code is _FORWARD_BEGINS or len(chain) > _LONGEST_CHAIN:
            break
        chain += (code, frame.f_lasti)
        frame = frame.f_back
    return known.setdefault(chain, chain)


_LONGEST_CHAIN = 64


def user_code(chain: Chain) -> tuple[types.CodeType, int] | None:
    """The innermost place of a chain that is neither torch's code nor ours."""
    for code, offset in zip(chain[::2], chain[1::2], strict=True):
        if not code.co_filename.startswith(_NOT_THE_USERS):
            return code, offset
    return None


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
"""`y.data = x`, after which `y` lies in the memory of `x`; nothing is written there."""
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
"""Functions of torch that are written in Python, and made of others worth seeing."""


_STATISTICS: dict[Any, slice] = {
    functional.batch_norm: slice(1, 3),
    functional.instance_norm: slice(1, 3),
    torch.batch_norm: slice(3, 5),
    torch.instance_norm: slice(3, 5),
}
"""Where normalisations take their running statistics; whether they update them comes sixth."""


@functools.lru_cache(maxsize=4096)
def _handling(func: Any) -> _Handling:
    name = getattr(func, "__name__", "")
    if func == SETS_DATA:
        return _Handling.RECORD_WRITE
    if name in _PASSED or (name == "__get__" and not _makes_a_view(func)):
        return _Handling.PASS
    if func in OPENED:
        return _Handling.OPEN
    if func in _STATISTICS:
        return _Handling.MAY_UPDATE
    if isinstance(func, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return _Handling.BY_SCHEMA if _schema(func).is_mutable else _Handling.RECORD
    if _named_as_in_place(name):
        return _Handling.RECORD_WRITE
    return _Handling.RECORD if _place_of_inplace(func) is None else _Handling.MAY_WRITE


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


def _written(
    func: Any, handling: _Handling, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[torch.Tensor, ...]:
    if "out" in kwargs:
        return tuple(tensors_in(kwargs["out"]))
    if handling is _Handling.RECORD:
        return ()
    if handling is _Handling.BY_SCHEMA:
        return tuple(written_by_schema(func, args, kwargs))
    if handling is _Handling.MAY_UPDATE:
        training = args[5:6] or (kwargs.get("training"), kwargs.get("use_input_stats"))
        running = (*args[_STATISTICS[func]], kwargs.get("running_mean"), kwargs.get("running_var"))
        return tuple(tensors_in(running)) if any(training) else ()
    if handling is _Handling.MAY_WRITE:
        place = _place_of_inplace(func)
        assert place is not None
        if not (kwargs.get("inplace") or (len(args) > place and args[place])):
            return ()
    return tuple(tensors_in(args[0] if args else kwargs.get("input")))


def _schema(func: torch._ops.OpOverload[..., Any] | torch._ops.OpOverloadPacket[..., Any]) -> Any:
    """What an op declares; of several overloads the first, as all of them write or none does."""
    if isinstance(func, torch._ops.OpOverloadPacket):
        func = getattr(func, func._overload_names[0])
    return func._schema


def written_by_schema(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[torch.Tensor]:
    """The arguments that an op declares to change in place."""
    for place, argument in enumerate(_schema(func).arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            yield from tensors_in(value)


@functools.lru_cache(maxsize=4096)
def without_guards(func: Any) -> Callable[..., Any]:
    """A copy of a function of torch that does not hand itself to the mode before it runs."""
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

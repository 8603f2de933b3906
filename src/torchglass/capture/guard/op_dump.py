"""Dumps the op to blame with its inputs into a file, and replays it without the model.

>>> writer = ArgumentWriter()
>>> writer.write((torch.ones(2), 1e-5, None))
{'is': 'tuple', 'of': [{'is': 'tensor', 'number': 0}, 1e-05, None]}
>>> writer.tensors
[tensor([1., 1.])]

One safetensors file: the tensors, and in its header the call as JSON. Nothing in it is code; the
function is one of torch's own, by name.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.overrides import get_overridable_functions, resolve_name

from torchglass.capture.guard.evidence import (
    KINDS,
    ShownTensor,
    TensorNames,
    argument_names,
    evidence,
    noted,
)
from torchglass.capture.guard.tensor_health import look_again
from torchglass.capture.isolated_run import keeping_random_state
from torchglass.capture.tensor.description import (
    PLAIN_CLASSES,
    Args,
    Kwargs,
    iter_tensors,
    tensors_of_call,
    version_of,
)
from torchglass.capture.tensor.files import SavedTensors, read_note, write_tensors
from torchglass.capture.torch_internals import (
    OpOverload,
    OpOverloadPacket,
    has_kernel,
    tree_map_only,
)
from torchglass.capture.torch_modes import gradients_set
from torchglass.capture.trace.op_mode import OpEvent
from torchglass.errors import (
    CaptureError,
    StoreError,
    TargetError,
    TorchglassError,
    UnsafeFileError,
)
from torchglass.records.findings import Finding, ReplayRecord
from torchglass.records.json_data import from_json_data, to_json_data
from torchglass.records.trace import OpId

_NAMED = {torch.dtype: "dtype", torch.layout: "layout", torch.memory_format: "memory_format"}


class NotWrittenError(CaptureError):
    """A call that cannot be saved, and why."""


class ArgumentWriter:
    """Converts arguments to JSON, and collects their tensors."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self._numbers: dict[int, int] = {}

    def write(self, value: Any) -> Any:
        """A value as JSON; what JSON does not know is a dict that says what it is."""
        if isinstance(value, torch.Tensor):
            return {"is": "tensor", "number": self._number(value)}
        if isinstance(value, dict):
            return {"is": "dict", "of": [[self.write(k), self.write(v)] for k, v in value.items()]}
        if isinstance(value, list):
            return [self.write(item) for item in value]
        if isinstance(value, tuple):
            return {"is": "tuple", "of": [self.write(item) for item in value]}
        return _write_plain(value)

    def _number(self, tensor: torch.Tensor) -> int:
        if id(tensor) not in self._numbers:
            self._numbers[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
        return self._numbers[id(tensor)]


def read(written: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """The value that `ArgumentWriter.write` converted."""
    if isinstance(written, list):
        return [read(item, tensors) for item in written]
    if not isinstance(written, Mapping):
        return written
    what = written["is"]
    if what == "tensor":
        return tensors[written["number"]]
    if what == "tuple":
        return tuple(read(item, tensors) for item in written["of"])
    if what == "dict":
        return {read(k, tensors): read(v, tensors) for k, v in written["of"]}
    return _READERS[what](written)


def function_name(function: Any) -> str:
    """The name by which `function_of` finds a function."""
    if isinstance(function, OpOverload):
        if not _computes(function):
            raise NotWrittenError(f"{function} is not a pure torch op")
        return f"torch.ops.{function}"
    name: str = resolve_name(function) or ""
    if name not in _functions():
        told = getattr(function, "__name__", repr(function))
        raise NotWrittenError(f"{told} is not a named torch function")
    return name


def function_of(name: str) -> Callable[..., Any]:
    """The torch function with a name, if it only computes with tensors.

    No other code can be reached by a name: neither files nor settings can be changed.
    """
    if name in _functions():
        return _functions()[name]
    parts = name.split(".")
    if parts[:2] == ["torch", "ops"] and len(parts) == 5 and all(map(str.isidentifier, parts)):
        if parts[2] not in _LIBRARIES:
            raise UnsafeFileError(f"{name} is not one of torch's own ops, so it is not run")
        overload: Any = None
        with contextlib.suppress(AttributeError, RuntimeError):
            overload = functools.reduce(getattr, parts[2:], torch.ops)
        if isinstance(overload, OpOverload):
            if _computes(overload):
                return overload
            raise UnsafeFileError(f"{name} does more than compute with tensors, so it is not run")
        raise NotWrittenError(
            f"torch has no op {name} here: import the package that registers it first"
        )
    if name in _named_functions():
        raise UnsafeFileError(f"{name} does more than compute with tensors, so it is not run")
    raise NotWrittenError(f"torch has no function {name!r} here")


_LIBRARIES = ("aten", "prims")
_TOUCHES_MORE = frozenset({"from_file", "share_memory_", "record_stream", "_print"})
"""Kernels that read or write files, shared memory or streams."""
_OPERATORS = frozenset(
    f"__{prefix}{name}__"
    for prefix in ("", "r", "i")
    for name in (
        *("add", "and", "div", "floordiv", "lshift", "matmul", "mod", "mul", "or", "pow"),
        *("rshift", "sub", "truediv", "xor", "abs", "neg", "pos", "invert", "getitem", "setitem"),
        *("eq", "ne", "lt", "le", "gt", "ge"),
    )
)
_IN_PYTHON = frozenset(
    {
        *("half", "bfloat16", "float", "double", "cfloat", "cdouble", "bool", "byte", "char"),
        *("short", "int", "long", "cpu", "lu", "lobpcg", "spmm", "pca_lowrank", "svd_lowrank"),
    }
)
"""Conversions and compositions that are not kernels."""
_PLACES = ("torch", "torch.Tensor", "torch.functional", "torch.nn.functional", "torch._C._nn")
_GROUPS = ("linalg", "fft", "special", "sparse", "nested")


@functools.cache
def _functions() -> dict[str, Callable[..., Any]]:
    return {name: function for name, function in _named_functions().items() if _only_computes(name)}


@functools.cache
def _named_functions() -> dict[str, Callable[..., Any]]:
    every = (function for group in get_overridable_functions().values() for function in group)
    return {name: function for function in every if (name := resolve_name(function))}


def _only_computes(name: str) -> bool:
    """Whether a function is a kernel of torch, or Python made of such kernels."""
    place, _, last = name.rpartition(".")
    if last in _TOUCHES_MORE:
        return False
    if place == "torch.nn.functional" or (place == "torch.Tensor" and last in _OPERATORS):
        return True
    group = place.rpartition(".")[2]
    if place not in _PLACES and group not in _GROUPS:
        return False
    if last in _IN_PYTHON:
        return True
    packets = (getattr(torch.ops.aten, known, None) for known in (last, f"{group}_{last}"))
    return any(
        _computes(getattr(packet, overload))
        for packet in packets
        if isinstance(packet, OpOverloadPacket)
        for overload in packet.overloads()  # type: ignore[no-untyped-call]
    )


def _computes(op: OpOverload[..., Any]) -> bool:
    """Whether an op is a kernel that returns tensors or writes into its arguments."""
    schema = op._schema
    library, _, name = schema.name.partition("::")
    if library not in _LIBRARIES or name in _TOUCHES_MORE:
        return False
    # Ops that only scripts can call, such as `aten::save`, are in no dispatcher.
    if not has_kernel(f"{schema.name}.{schema.overload_name}".rstrip(".")):
        return False
    gives = any("Tensor" in str(given.type) for given in schema.returns)
    return gives or schema.is_mutable


def _write_plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {"is": "float", "text": str(value)}
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, complex):
        return {"is": "complex", "text": str(value)}
    if isinstance(value, slice):
        return {
            "is": "slice",
            "of": [_write_plain(x) for x in (value.start, value.stop, value.step)],
        }
    if value is Ellipsis:
        return {"is": "ellipsis"}
    if isinstance(value, torch.device):
        return {"is": "device", "text": str(value)}
    for kind, name in _NAMED.items():
        if isinstance(value, kind):
            return {"is": name, "text": str(value).removeprefix("torch.")}
    raise NotWrittenError(
        f"an argument is a {type(value).__name__}, which cannot be written to a file"
    )


def _read_constant(kind: type) -> Callable[[Any], Any]:
    def read_one(written: Any) -> Any:
        constant = getattr(torch, written["text"], None)
        if not isinstance(constant, kind):
            raise NotWrittenError(f"torch has no {kind.__name__} {written['text']!r}")
        return constant

    return read_one


_READERS: dict[str, Callable[[Any], Any]] = {
    "float": lambda written: float(written["text"]),
    "complex": lambda written: complex(written["text"]),
    "slice": lambda written: slice(*written["of"]),
    "ellipsis": lambda written: ...,
    "device": lambda written: torch.device(written["text"]),
    **{name: _read_constant(kind) for kind, name in _NAMED.items()},
}

NOTE = "torchglass.replay"
GIVEN, GRADIENTS = "given", "gradients"

Gradients = Mapping[int, torch.Tensor]
"""The gradients of an op's results, by the number of the result."""


class OpArguments(NamedTuple):
    """The call of an op without its graph, so that it can be rerun."""

    function: Callable[..., Any]
    args: Args
    kwargs: Kwargs
    trained: frozenset[int]
    """The ids of the tensors whose originals required a gradient."""
    versions: Mapping[int, int]
    autocast: tuple[tuple[str, torch.dtype], ...]

    @property
    def is_as_it_was(self) -> bool:
        """Whether its tensors have not been overwritten."""
        held = iter_tensors((self.args, dict(self.kwargs)))
        return all(version_of(tensor) == self.versions[id(tensor)] for tensor in held)


def keep_arguments(event: OpEvent, copies: Mapping[int, torch.Tensor]) -> OpArguments:
    """Keep the call of an op; `copies` has what it has overwritten, by id."""
    trained = set()
    held: dict[int, torch.Tensor] = {}

    def hold(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in held:
            held[id(tensor)] = copies.get(id(tensor), tensor).detach()
            if tensor.requires_grad:
                trained.add(id(held[id(tensor)]))
        return held[id(tensor)]

    args, kwargs = tree_map_only(torch.Tensor, hold, (event.args, dict(event.kwargs)))
    versions = {id(tensor): version_of(tensor) for tensor in held.values()}
    return OpArguments(event.function, args, kwargs, frozenset(trained), versions, event.autocast)


class Dumper:
    """Writes the ops to blame into a folder, one file each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def dump(self, finding: Finding, kept: OpArguments | None, gradients: Gradients) -> Finding:
        """The finding with the path of its file, or the reason why there is none."""
        try:
            if kept is None:
                raise NotWrittenError("the op was not called as a torch function")
            if not kept.is_as_it_was:
                raise NotWrittenError("its inputs have been overwritten since")
            return noted(finding, dump=str(self._write(finding, kept, gradients)))
        except (NotWrittenError, OSError, RuntimeError, TypeError) as problem:
            return noted(finding, not_dumped=str(problem))

    def _write(self, finding: Finding, kept: OpArguments, gradients: Gradients) -> Path:
        sheet = ArgumentWriter()
        call: dict[str, Any] = {
            "function": function_name(kept.function),
            "args": sheet.write(kept.args),
            "kwargs": sheet.write(dict(kept.kwargs)),
            "autocast": [[device, str(dtype)] for device, dtype in kept.autocast],
            "trained": [id(tensor) in kept.trained for tensor in sheet.tensors],
            "finding": to_json_data(finding),
        }
        for tensor in sheet.tensors:
            if type(tensor) not in PLAIN_CLASSES:
                raise NotWrittenError(f"an argument is a {type(tensor).__name__}")
        groups = {GIVEN: _keyed(enumerate(sheet.tensors)), GRADIENTS: _keyed(gradients.items())}
        path = self._next_path(finding)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(path, groups, {NOTE: json.dumps(call)})
        return path

    def _next_path(self, finding: Finding) -> Path:
        where = re.sub(r"[^\w.-]+", "_", finding.path) or "model"
        back = "-backward" if finding.phase == "backward" else ""
        name = f"{where}-{finding.op.strip('_')}{back}.safetensors"
        paths = (self._folder / f"{number:03d}-{name}" for number in count(1))
        return next(path for path in paths if not path.exists())


def _keyed(tensors: Iterable[tuple[int, torch.Tensor]]) -> dict[tuple[OpId, int], torch.Tensor]:
    return {(OpId(number), 0): tensor for number, tensor in tensors}


_NOBODYS = TensorNames({}, {})


def replay(path: Path) -> ReplayRecord:
    """Rerun the op of a dump on its inputs, and say whether it fails again."""
    note = read_note(path, NOTE)
    if note is None:
        raise TargetError(f"{path} has no operation to rerun: it was not written by tg.guard")
    try:
        return _replayed(path, json.loads(note))
    except TorchglassError:
        raise
    except Exception as error:
        raise StoreError(
            f"{path} is corrupt, or its op cannot run here: {type(error).__name__}: {error}"
        ) from error


def _replayed(path: Path, call: Mapping[str, Any]) -> ReplayRecord:
    finding = from_json_data(Finding, call["finding"])
    given = _numbered(SavedTensors(path, GIVEN))
    with keeping_random_state(), gradients_set(True):
        leaves = [
            given[number].requires_grad_(trained) for number, trained in enumerate(call["trained"])
        ]
        made = _made(call, leaves, _numbered(SavedTensors(path, GRADIENTS)))
    # An op that writes in place got copies, so these are unchanged.
    args, kwargs = read(call["args"], leaves), read(call["kwargs"], leaves)
    located = list(tensors_of_call(args, kwargs))
    names = argument_names(finding.op, [place for place, _ in located])
    shown = [
        *(
            ShownTensor(name, "argument", tensor)
            for name, (_, tensor) in zip(names, located, strict=True)
        ),
        *made,
    ]
    kinds = {KINDS.get(look_again(shown.tensor)) for shown in made}
    return ReplayRecord(
        finding=finding,
        tensors=tuple(evidence(shown, _NOBODYS) for shown in shown),
        reproduced=finding.kind in kinds,
    )


def _made(
    call: Mapping[str, Any], leaves: list[torch.Tensor], gradients: Mapping[int, torch.Tensor]
) -> list[ShownTensor]:
    """What an op returns, or the gradients that its backward returns."""
    copies = [leaf.clone() for leaf in leaves]
    args, kwargs = read(call["args"], copies), read(call["kwargs"], copies)
    with contextlib.ExitStack() as stack:
        for device, dtype in call["autocast"]:
            kind = getattr(torch, dtype.removeprefix("torch."))
            stack.enter_context(torch.autocast(device, kind, cache_enabled=False))
        output = function_of(call["function"])(*args, **kwargs)
    # An op that returns nothing, such as `x[0] = 1`, has changed its argument.
    results = list(iter_tensors(output)) or copies
    if not gradients:
        return [ShownTensor("result", "result", tensor.detach()) for tensor in results]
    trained = [leaf for leaf in leaves if leaf.requires_grad]
    pairs = [(results[number], gradient) for number, gradient in gradients.items()]
    tensors, given = zip(*pairs, strict=True)
    back = torch.autograd.grad(tensors, trained, given, allow_unused=True)
    return [
        ShownTensor("gradient produced", "gradient", gradient)
        for gradient in filter(_is_there, back)
    ]


def _is_there(gradient: torch.Tensor | None) -> bool:
    return gradient is not None


def _numbered(saved: SavedTensors) -> dict[int, torch.Tensor]:
    return {int(op): saved[op, output] for op, output in saved}

"""Where a size was set: back from a tensor, past all ops that only hand its sizes on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchglass.analyse.failure.scene import arguments
from torchglass.analyse.trace.signatures import plain_name
from torchglass.records.trace import Op, Operand, OpId

SAME_SHAPE = frozenset(
    (
        *("abs", "add", "alpha_dropout", "and", "batch_norm", "bfloat16", "celu", "clamp"),
        *("clone", "contiguous", "cos", "cpu", "cuda", "detach", "div", "double", "dropout"),
        *("elu", "eq", "exp", "feature_dropout", "float", "ge", "gelu", "group_norm", "gt"),
        *("half", "hardsigmoid", "hardswish", "hardtanh", "instance_norm", "layer_norm", "le"),
        *("leaky_relu", "local_response_norm", "log", "log_softmax", "logsigmoid", "long", "lt"),
        *("masked_fill", "mish", "mul", "ne", "neg", "normalize", "pow", "prelu", "relu"),
        *("relu6", "rms_norm", "rsqrt", "selu", "sigmoid", "silu", "sin", "softmax", "softplus"),
        *("sqrt", "square", "sub", "tanh", "to", "truediv", "type", "type_as"),
    )
)
"""What gives each number a new value and leaves it at its place."""
_PLACES = re.compile(r"pool([123])d$")


def set_by(ops: Sequence[Op], operand: Operand, dim: int) -> OpId | None:
    """The op that gave a tensor its size in a dimension; None for what no op made."""
    while operand.op is not None:
        op = ops[operand.op]
        shape = op.outputs[operand.output].spec.shape or ()
        handed_on = _handed_on(op, shape, dim % len(shape)) if shape else None
        if handed_on is None or handed_on[0].op is None:
            return op.id
        operand, dim = handed_on
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A parameter or buffer that was too short for the slice that was taken of it."""

    held: Operand
    dim: int
    asked: int
    """Where the slice was to end."""

    @property
    def size(self) -> int:
        """What there is of it."""
        return (self.held.spec.shape or ())[self.dim]


def limit_behind(ops: Sequence[Op], operand: Operand) -> Limit | None:
    """The held tensor that ran out where a tensor came from: `positions[:, :600]` of 512."""
    waiting, seen = [operand.op], set[OpId]()
    while waiting:
        number = waiting.pop()
        if number is None or number in seen:
            continue
        seen.add(number)
        op = ops[number]
        if op.kind == "op":
            limit = next(_short_slices(op), None)
            if limit is not None:
                return limit
            waiting += [one.op for one in op.operands if not (one.parameter or one.buffer)]
    return None


def depends_on_inputs(ops: Sequence[Op], operand: Operand) -> bool:
    """Whether the values of a tensor come from an input of the model."""
    waiting, seen = [operand.op], set[OpId]()
    while waiting:
        number = waiting.pop()
        if number is None or number in seen:
            continue
        seen.add(number)
        if ops[number].kind == "input":
            return True
        waiting += [one.op for one in ops[number].operands]
    return False


def input_of_size(ops: Sequence[Op], size: int) -> tuple[Op, int] | None:
    """The input of the model that has a size, and in which dimension; that of indices first."""
    found = [
        (op, dim)
        for op in ops
        if op.kind == "input" and op.outputs
        for dim, one in enumerate(op.outputs[0].spec.shape or ())
        if one == size
    ]
    found.sort(key=lambda pair: not pair[0].outputs[0].spec.dtype.startswith("int"))
    return found[0] if found else None


def _short_slices(op: Op) -> Iterator[Limit]:
    if plain_name(op.function) != "getitem" or not op.operands:
        return
    held = op.operands[0]
    shape = held.spec.shape
    if not (held.parameter or held.buffer) or shape is None:
        return
    _, settings = arguments(op)
    whole = settings.get("index", ())
    indices = list(whole) if isinstance(whole, tuple) else [whole]
    every = indices or [settings[name] for name in settings if name.startswith("index[")]
    for dim, index in enumerate(every):
        if index is ... or index is None or dim >= len(shape):
            return
        stop = index.stop if isinstance(index, slice) else None
        if type(stop) is int and stop > shape[dim]:
            yield Limit(held=held, dim=dim, asked=stop)


def _handed_on(op: Op, shape: tuple[int, ...], dim: int) -> tuple[Operand, int] | None:
    """The operand and its dimension whose size an op passes on as a dimension of its result."""
    function = plain_name(op.function)
    if not op.operands:
        return None
    first = op.operands[0]
    if function in SAME_SHAPE:
        alike = (operand for operand in op.operands if operand.spec.shape == shape)
        source = next((operand for operand in alike if operand.op is not None), None)
        return (source, dim) if source is not None else None
    if function in ("transpose", "permute"):
        place = _moved_from(op, function, dim)
        return (first, place) if place is not None else None
    return (first, dim) if dim < _untouched(function, op, len(shape)) else None


def _untouched(function: str, op: Op, rank: int) -> int:
    """How many of the first dimensions an op leaves as they are in its first operand."""
    if function in ("linear", "embedding"):
        return rank - 1
    if function.startswith("conv"):
        is_batched = len(op.operands) > 1 and rank == len(op.operands[1].spec.shape or ())
        return int(is_batched)
    pooled = _PLACES.search(function)
    return rank - int(pooled[1]) if pooled else 0


def _moved_from(op: Op, function: str, dim: int) -> int | None:
    """The dimension of the operand that stands at `dim` in the result."""
    rank = len(op.operands[0].spec.shape or ())
    _, settings = arguments(op)
    asked = settings.get("dims", (settings.get("dim0"), settings.get("dim1")))
    dims = asked[0] if len(asked) == 1 else asked
    if not isinstance(dims, tuple) or not all(isinstance(item, int) for item in dims):
        return None
    places: list[int] = [item % rank for item in dims]
    if function == "permute":
        return places[dim]
    return places[1 - places.index(dim)] if dim in places else dim

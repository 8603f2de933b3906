"""The arguments of a failed op, where a size came from, and which input sizes a model accepts."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torchglass.analyse.signatures import REST, argument_name, plain_name, signature
from torchglass.records.model import Module, Stats, join_path
from torchglass.records.trace import Operand, OpId, OpRecord

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorArgument:
    """A tensor among the arguments of a failed op."""

    name: str
    """The argument's: "input", "weight", "tensors[1]"."""
    operand: Operand
    stats: Stats | None = None
    """The range of its values, if they could be read."""

    @property
    def shape(self) -> Shape:
        return self.operand.spec.shape or ()

    @property
    def dtype(self) -> str:
        return self.operand.spec.dtype

    @property
    def is_plain(self) -> bool:
        """Whether it is a dense tensor whose shape is known."""
        return self.operand.spec.layout == "strided" and self.operand.spec.shape is not None

    @property
    def is_held(self) -> bool:
        return bool(self.operand.parameter or self.operand.buffer)


@dataclass(frozen=True, kw_only=True)
class FailedOp:
    """An op that failed, or a module whose Python code failed, and its arguments."""

    function: str
    """torch's plain name: "add" for `add_` and `+=`; for a module its class: "LSTM"."""
    tensors: tuple[TensorArgument, ...]
    settings: Mapping[str, Any]
    """The other arguments by name; text where Python cannot parse them."""
    error: str
    writes: bool = False
    layer: Module | None = None
    """The module it happened in."""
    parts: tuple[str, ...] = ()
    """The names of that module's children, parameters and buffers."""
    has_worked: bool = False
    """Whether the same op already ran in this pass, so its layer accepts other inputs."""

    def __getitem__(self, name: str) -> TensorArgument | None:
        return self._by_name.get(name)

    def several(self, name: str) -> list[TensorArgument]:
        """The tensors of an argument that is a list of tensors."""
        return [tensor for tensor in self.tensors if tensor.name.startswith(f"{name}[")]

    def numbers(self, name: str) -> tuple[int, ...]:
        """An argument that is one integer or several."""
        value = self.settings.get(name)
        items = value if isinstance(value, tuple) else (value,)
        if len(items) == 1 and isinstance(items[0], tuple):
            items = items[0]
        return items if all(type(item) is int for item in items) else ()

    @property
    def owner(self) -> Module | None:
        """The layer whose parameters or buffers the op used, so that changing the layer helps."""
        if self.layer is None or self.layer.kind == self.function:
            return self.layer
        used = {tensor.operand.parameter or tensor.operand.buffer for tensor in self.tensors} - {""}
        own = {join_path(self.layer.path, slot.name) for slot in self.layer.slots}
        return self.layer if own & used else None

    @property
    def subject(self) -> str:
        """The layer or op, as the subject of a sentence."""
        owner = self.owner
        if owner is None:
            return f"this {self.function}"
        return f"{module_name(owner.path)} ({owner.kind})" if owner.path else f"this {owner.kind}"

    @cached_property
    def _by_name(self) -> Mapping[str, TensorArgument]:
        return {tensor.name: tensor for tensor in self.tensors}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenRule:
    """The rule that an op broke, and how to satisfy it."""

    why: str
    fits: tuple[str, ...] = ()
    """Changes, each of which is enough for this op to run."""
    sizes: tuple[tuple[str, int], ...] = ()
    """The sizes that do not match, as tensor name and dimension."""
    least_side: int | None = None
    """The height and width that square images need here, if they are too small."""


Rule = Callable[[FailedOp], BrokenRule | None]
"""Returns the broken rule, or None if the op satisfies it."""


def module_name(path: str) -> str:
    """A path that cannot be mistaken for a number."""
    return path if any(map(str.isalpha, path)) else f"module {path}"


def text(shape: Sequence[int]) -> str:
    """A shape as text: "2×3"; "(3,)" because a bare number does not look like a shape."""
    if len(shape) == 1:
        return f"({shape[0]},)"
    return sizes_text(shape) if shape else "a scalar"


def sizes_text(sizes: Sequence[int]) -> str:
    """The sizes of a window or block as text: "5×5", "3"."""
    return "×".join(map(str, sizes))


def first_of(numbers: Sequence[int], default: int) -> int:
    """The first of several numbers, or the default."""
    return numbers[0] if numbers else default


def broadcast(*shapes: Shape) -> Shape | None:
    """The shape to which all of these broadcast; None if there is none."""
    sizes = []
    for place in range(1, max(map(len, shapes), default=0) + 1):
        found = {shape[-place] for shape in shapes if len(shape) >= place} - {1}
        if len(found) > 1:
            return None
        sizes.append(found.pop() if found else 1)
    return tuple(reversed(sizes))


def arguments(
    op: OpRecord, stats: Mapping[str, Stats] | None = None
) -> tuple[tuple[TensorArgument, ...], dict[str, Any]]:
    """An op's tensors, with statistics by position, and its other arguments by name."""
    names = signature(op.function)
    tensors = tuple(
        TensorArgument(
            name=argument_name(operand.place, names),
            operand=operand,
            stats=(stats or {}).get(operand.place),
        )
        for operand in op.operands
    )
    settings: dict[str, Any] = {}
    spread: list[Any] = []
    for place, text in op.settings:
        if names[-1:] == (REST,) and place.isdecimal() and int(place) >= len(names) - 2:
            spread.append(_value(text))
        else:
            settings[argument_name(place, names)] = _value(text)
    if spread:
        settings[names[-2]] = tuple(spread)
    return tensors, settings


def _value(text: str) -> Any:
    try:
        return _evaluated(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError):
        return text


def _evaluated(node: ast.expr) -> Any:
    """The value of a setting's text: a literal, a slice or a torch.Size."""
    if isinstance(node, (ast.Tuple, ast.List)):
        return tuple(_evaluated(item) for item in node.elts)
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("slice", "torch.Size"):
        inner = [_evaluated(item) for item in node.args]
        return slice(*inner) if ast.unparse(node.func) == "slice" else inner[0]
    if isinstance(node, ast.Name) and node.id == "Ellipsis":
        return ...
    return ast.literal_eval(node)


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
"""Functions that compute element by element."""
_PLACES = re.compile(r"pool([123])d$")


def set_by(ops: Sequence[OpRecord], operand: Operand, dim: int) -> OpId | None:
    """The op that set the size of a dimension; None if no op did."""
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
    """A parameter or buffer that was too short for a slice of it."""

    held: Operand
    dim: int
    asked: int
    """The end of the slice."""

    @property
    def size(self) -> int:
        return (self.held.spec.shape or ())[self.dim]


def limit_behind(ops: Sequence[OpRecord], operand: Operand) -> Limit | None:
    """The parameter or buffer that was too short for a slice: `positions[:, :600]` of 512."""
    computed = _behind(ops, operand, through_held=False)
    return next((limit for op in computed for limit in _short_slices(op)), None)


def depends_on_inputs(ops: Sequence[OpRecord], operand: Operand) -> bool:
    """Whether the values of a tensor depend on an input of the model."""
    return any(op.kind == "input" for op in _behind(ops, operand))


def _behind(
    ops: Sequence[OpRecord], operand: Operand, *, through_held: bool = True
) -> Iterator[OpRecord]:
    """The ops that a tensor was computed from, directly or not, each once.

    Without `through_held`, the ops that parameters and buffers were computed from are left out.
    """
    waiting, seen = [operand.op], set[OpId]()
    while waiting:
        number = waiting.pop()
        if number is not None and number not in seen:
            seen.add(number)
            yield ops[number]
            waiting += [
                one.op
                for one in ops[number].operands
                if through_held or not (one.parameter or one.buffer)
            ]


def input_of_size(ops: Sequence[OpRecord], size: int) -> tuple[OpRecord, int] | None:
    """The input of the model with a size, and the dimension; integer inputs first."""
    found = [
        (op, dim)
        for op in ops
        if op.kind == "input" and op.outputs
        for dim, one in enumerate(op.outputs[0].spec.shape or ())
        if one == size
    ]
    found.sort(key=lambda pair: not pair[0].outputs[0].spec.dtype.startswith("int"))
    return found[0] if found else None


def _short_slices(op: OpRecord) -> Iterator[Limit]:
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


def _handed_on(op: OpRecord, shape: tuple[int, ...], dim: int) -> tuple[Operand, int] | None:
    """The operand and dimension from which a dimension of the result gets its size."""
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


def _untouched(function: str, op: OpRecord, rank: int) -> int:
    """The number of leading dimensions that an op keeps from its first operand."""
    if function in ("linear", "embedding"):
        return rank - 1
    if function.startswith("conv"):
        is_batched = len(op.operands) > 1 and rank == len(op.operands[1].spec.shape or ())
        return int(is_batched)
    pooled = _PLACES.search(function)
    return rank - int(pooled[1]) if pooled else 0


def _moved_from(op: OpRecord, function: str, dim: int) -> int | None:
    """The dimension of the operand that becomes `dim` of the result."""
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


_LARGEST = 1024

Step = Callable[[int], int]
"""From the side of a square image to the side of an op's result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """An input of the model, and the square image sizes that would fit."""

    input: OpRecord
    least: int
    most: int
    """The largest one; if it is the search limit, larger ones were not tried."""

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The smallest and, if known, the largest one."""
        before = (self.input.outputs[0].spec.shape or ())[:-2]
        ends = (self.least,) if self.most in (self.least, _LARGEST) else (self.least, self.most)
        return tuple((*before, size, size) for size in ends)


def fitting_images(
    ops: Sequence[OpRecord], operand: Operand, fits: Callable[[int], bool]
) -> Images | None:
    """The inputs for which a tensor N×C×H×W would have a fitting height and width.

    None if the path from the input is not a chain of ops with known sizes, or if no size fits.
    """
    steps: list[Step] = []
    end = operand
    while end.op is not None and ops[end.op].kind != "input":
        op = ops[end.op]
        step = _step(op)
        if step is None:
            return None
        steps.insert(0, step)
        end = op.operands[0]
    if end.op is None or _side(end) is None or _through(steps, _side(end)) != _side(operand):
        return None
    found = [size for size in range(1, _LARGEST + 1) if _fits(_through(steps, size), fits)]
    return Images(input=ops[end.op], least=found[0], most=found[-1]) if found else None


def _fits(side: int | None, fits: Callable[[int], bool]) -> bool:
    return side is not None and fits(side)


def _side(operand: Operand) -> int | None:
    """The height of a square image; None for other tensors."""
    shape = operand.spec.shape or ()
    return shape[-1] if len(shape) == 4 and shape[-1] == shape[-2] else None


def _through(steps: Sequence[Step], side: int | None) -> int | None:
    for step in steps:
        side = step(side) if side is not None else None
        if side is None or side < 1:
            return None
    return side


def _step(op: OpRecord) -> Step | None:
    """How an op changes the size of an image; None if not known."""
    function = plain_name(op.function)
    if sum(operand.op is not None for operand in op.operands) != 1 or op.operands[0].op is None:
        return None
    if function in SAME_SHAPE:
        return _same
    if function not in ("conv2d", "max_pool2d", "avg_pool2d"):
        return None
    tensors, settings = arguments(op)
    if settings.get("ceil_mode", False):
        return None
    kernel = tensors[1].shape[2:] if function == "conv2d" else settings.get("kernel_size")
    # The stride of a pool defaults to its kernel size.
    stride = settings.get("stride") or (1 if function == "conv2d" else kernel)
    window = _one(kernel), _one(stride), _one(settings.get("padding", 0))
    return _window(*window, _one(settings.get("dilation", 1)))


def _same(side: int) -> int:
    return side


def _window(
    kernel: int | None, stride: int | None, padding: int | None, dilation: int | None
) -> Step | None:
    if kernel is None or stride is None or padding is None or dilation is None:
        return None
    return lambda side: (side + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def _one(setting: object) -> int | None:
    """A setting with the same value for height and width."""
    values = set(setting) if isinstance(setting, tuple) else {setting}
    value = values.pop()
    return value if not values and isinstance(value, int) else None

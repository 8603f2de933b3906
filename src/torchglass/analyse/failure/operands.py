"""The arguments of a failed op by name, and what a rule can say about them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torchglass.analyse.signatures import REST, argument_name, signature
from torchglass.records.model import Module, join_path
from torchglass.records.tensors import Stats
from torchglass.records.trace import Operand, OpRecord

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
        """Whether it is a parameter or a buffer of the model."""
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


def product(sizes: Sequence[int]) -> int:
    """The number of elements of a shape."""
    count = 1
    for size in sizes:
        count *= size
    return count


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

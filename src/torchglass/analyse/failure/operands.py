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
class Given:
    """A tensor that stood among the arguments."""

    name: str
    """The argument's: "input", "weight", "tensors[1]"."""
    operand: Operand
    stats: Stats | None = None
    """Its numbers, where they could be read."""

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
class Scene:
    """An operation that failed, or a module whose Python code did, and what it was given."""

    function: str
    """torch's plain name: "add" for `add_` and `+=`; of a module its class: "LSTM"."""
    given: tuple[Given, ...]
    settings: Mapping[str, Any]
    """Its other arguments by name; text where Python cannot read them back."""
    error: str
    writes: bool = False
    layer: Module | None = None
    """The module it happened in."""
    parts: tuple[str, ...] = ()
    """What that module holds: modules, parameters and buffers, by name."""
    has_worked: bool = False
    """Whether the same op ran before in this pass, so that its layer is right for others."""

    def __getitem__(self, name: str) -> Given | None:
        return self._by_name.get(name)

    def several(self, name: str) -> list[Given]:
        """The tensors of an argument that is a list of them."""
        return [given for given in self.given if given.name.startswith(f"{name}[")]

    def numbers(self, name: str) -> tuple[int, ...]:
        """An argument that is one integer, or several."""
        value = self.settings.get(name)
        items = value if isinstance(value, tuple) else (value,)
        if len(items) == 1 and isinstance(items[0], tuple):
            items = items[0]
        return items if all(type(item) is int for item in items) else ()

    @property
    def owner(self) -> Module | None:
        """The layer, if the op used tensors of its own: changing that layer changes the op."""
        if self.layer is None or self.layer.kind == self.function:
            return self.layer
        used = {given.operand.parameter or given.operand.buffer for given in self.given} - {""}
        own = {join_path(self.layer.path, slot.name) for slot in self.layer.slots}
        return self.layer if own & used else None

    @property
    def subject(self) -> str:
        """Who it is about, for the beginning of a sentence."""
        owner = self.owner
        if owner is None:
            return f"this {self.function}"
        return f"{module_name(owner.path)} ({owner.kind})" if owner.path else f"this {owner.kind}"

    @cached_property
    def _by_name(self) -> Mapping[str, Given]:
        return {given.name: given for given in self.given}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The rule that was broken, and what would keep it."""

    why: str
    fits: tuple[str, ...] = ()
    """Changes of which each by itself is enough, as far as this operation goes."""
    sizes: tuple[tuple[str, int], ...] = ()
    """The sizes that do not go together, by tensor and dimension."""
    least_side: int | None = None
    """Where square images are too small, the height and width that they must have here."""


Rule = Callable[[Scene], Verdict | None]
"""Says what is wrong where its rule was broken, and nothing where it was kept."""


def module_name(path: str) -> str:
    """A path that cannot be taken for a number."""
    return path if any(map(str.isalpha, path)) else f"module {path}"


def times(shape: Sequence[int]) -> str:
    """A shape as people write it: "2×3", and "(3,)", as a bare number would not be seen as one."""
    if len(shape) == 1:
        return f"({shape[0]},)"
    return across(shape) if shape else "a scalar"


def across(sizes: Sequence[int]) -> str:
    """What a window or a block measures: "5×5", "3"."""
    return "×".join(map(str, sizes))


def first_of(numbers: Sequence[int], default: int) -> int:
    """The number of an argument that is one."""
    return numbers[0] if numbers else default


def product(sizes: Sequence[int]) -> int:
    """The number of elements of a shape."""
    count = 1
    for size in sizes:
        count *= size
    return count


def broadcast(*shapes: Shape) -> Shape | None:
    """The shape that all of these stretch to; None if there is none."""
    sizes = []
    for place in range(1, max(map(len, shapes), default=0) + 1):
        found = {shape[-place] for shape in shapes if len(shape) >= place} - {1}
        if len(found) > 1:
            return None
        sizes.append(found.pop() if found else 1)
    return tuple(reversed(sizes))


def arguments(
    op: OpRecord, stats: Mapping[str, Stats] | None = None
) -> tuple[tuple[Given, ...], dict[str, Any]]:
    """An op's tensors, with their numbers by place, and its other arguments by name."""
    names = signature(op.function)
    given = tuple(
        Given(
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
    return given, settings


def _value(text: str) -> Any:
    try:
        return _evaluated(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError):
        return text


def _evaluated(node: ast.expr) -> Any:
    """What the text of a setting means: literals, and the slices and sizes that are none."""
    if isinstance(node, (ast.Tuple, ast.List)):
        return tuple(_evaluated(item) for item in node.elts)
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("slice", "torch.Size"):
        inner = [_evaluated(item) for item in node.args]
        return slice(*inner) if ast.unparse(node.func) == "slice" else inner[0]
    if isinstance(node, ast.Name) and node.id == "Ellipsis":
        return ...
    return ast.literal_eval(node)

"""Filters rows by an expression that a user types: "lr < 1e-3 and optimizer == 'adam'".

The expression is Python's, of names, numbers, texts, comparisons, `in`, `and`, `or` and `not`. It
is never run as code. A comparison with a value that a row does not have is false.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torchglass.errors import ViewError

EXAMPLE = "\"lr < 1e-3 and optimizer == 'adam'\""

Lookup = Callable[[str], Any]
"""The value of a row by its name, None if it has none."""

_QUOTED = re.compile(r"`([^`]+)`")
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}
_CONSTANTS = {"true": True, "false": False, "none": None}


class Filter:
    """An expression over the values of a row.

    >>> lr_is_low = Filter("lr < 1e-3")
    >>> lr_is_low({"lr": 1e-4}.get), lr_is_low({}.get)
    (True, False)
    """

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self._quoted: list[str] = []
        try:
            self._tree = ast.parse(_QUOTED.sub(self._name, expression.strip()), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise self._wrong(getattr(error, "msg", None) or str(error)) from error
        self._check(self._tree)

    @property
    def names(self) -> set[str]:
        """The names in it, with dots: "lr", "config.model.width"."""
        return set(self._names(self._tree))

    def __call__(self, lookup: Lookup) -> bool:
        """Whether a row passes."""
        return bool(self._value(self._tree, lookup))

    def _name(self, found: re.Match[str]) -> str:
        """A placeholder for a name in backquotes, which may have any characters."""
        self._quoted.append(found[1])
        return f"__quoted_{len(self._quoted) - 1}"

    def _wrong(self, why: str) -> ViewError:
        return ViewError(f"{self.expression!r} is not a filter: {why}. Use for example {EXAMPLE}")

    def _check(self, node: ast.AST) -> None:
        """Raise for anything that is not a comparison of names and values."""
        if isinstance(node, ast.Name):
            return
        if isinstance(node, ast.Attribute):
            self._dotted(node)
            return
        allowed = (ast.BoolOp, ast.Compare, ast.UnaryOp, ast.Constant, ast.List, ast.Tuple, ast.Set)
        if not isinstance(node, allowed):
            word = type(node).__name__.lower()
            raise self._wrong(f"it has a {word}, and only comparisons are allowed")
        if isinstance(node, ast.UnaryOp) and not isinstance(node.op, (ast.Not, ast.USub)):
            raise self._wrong("only `not` and `-` can precede a value")
        if isinstance(node, ast.Compare) and not set(map(type, node.ops)) <= set(_COMPARISONS):
            raise self._wrong("use == and != instead of `is`")
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._check(child)

    def _dotted(self, node: ast.AST) -> str:
        if isinstance(node, ast.Attribute):
            return f"{self._dotted(node.value)}.{node.attr}"
        if not isinstance(node, ast.Name):
            raise self._wrong("a dot can only follow a name")
        _, is_quoted, number = node.id.partition("__quoted_")
        return self._quoted[int(number)] if is_quoted else node.id

    def _names(self, node: ast.AST) -> Iterator[str]:
        if isinstance(node, (ast.Name, ast.Attribute)):
            name = self._dotted(node)
            if name.lower() not in _CONSTANTS:
                yield name
            return
        for child in ast.iter_child_nodes(node):
            yield from self._names(child)

    def _value(self, node: ast.AST, lookup: Lookup) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, (ast.Name, ast.Attribute)):
            name = self._dotted(node)
            return _CONSTANTS[name.lower()] if name.lower() in _CONSTANTS else lookup(name)
        if isinstance(node, ast.BoolOp):
            parts = (bool(self._value(part, lookup)) for part in node.values)
            return all(parts) if isinstance(node.op, ast.And) else any(parts)
        if isinstance(node, ast.UnaryOp):
            value = self._value(node.operand, lookup)
            return not value if isinstance(node.op, ast.Not) else _negative(value)
        if isinstance(node, ast.Compare):
            return self._compared(node, lookup)
        return [self._value(one, lookup) for one in ast.iter_child_nodes(node) if _is_value(one)]

    def _compared(self, node: ast.Compare, lookup: Lookup) -> bool:
        left = self._value(node.left, lookup)
        for kind, other in zip(node.ops, node.comparators, strict=True):
            right = self._value(other, lookup)
            if not _holds(type(kind), left, right):
                return False
            left = right
        return True


def _holds(kind: type[ast.cmpop], left: Any, right: Any) -> bool:
    # "x == None" asks whether there is a value; all else needs one.
    if (left is None or right is None) and kind not in (ast.Eq, ast.NotEq):
        return False
    try:
        return bool(_COMPARISONS[kind](left, right))
    except TypeError:  # A text is neither smaller nor larger than a number.
        return False


def _negative(value: Any) -> Any:
    return -value if isinstance(value, (int, float)) else None


def _is_value(node: ast.AST) -> bool:
    return isinstance(node, ast.expr)

"""The source code of a module's class, read from its file on demand.

Files are read through `linecache`, which also knows the cells of a notebook.
"""

from __future__ import annotations

import ast
import linecache
from dataclasses import dataclass
from functools import lru_cache

from torchglass.records.model import ClassSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassCode:
    """A class statement in its file."""

    file: str
    line: int
    """Of the word `class`, counted from 1."""
    text: str
    """The statement with its decorators, indented as it is in the file."""
    forward_file: str
    forward_line: int | None = None
    """Of `def forward`, if the class or a base class has one in Python."""


def read_class(source: ClassSource, class_name: str) -> ClassCode | None:
    """The code of a class; None if its file does not exist or no longer contains it."""
    lines = _lines(source.file)
    found = _class_statement(lines, class_name)
    if found is None:
        return None
    first = min([found.lineno, *(decorator.lineno for decorator in found.decorator_list)])
    forward_file = source.forward_file or source.file
    return ClassCode(
        file=source.file,
        line=found.lineno,
        text="".join(lines[first - 1 : found.end_lineno]),
        forward_file=forward_file,
        forward_line=_forward_line(_lines(forward_file), source.forward_line),
    )


def _lines(file: str) -> tuple[str, ...]:
    linecache.checkcache(file)
    return tuple(linecache.getlines(file))


@lru_cache(maxsize=32)
def _parsed(lines: tuple[str, ...]) -> ast.Module:
    try:
        return ast.parse("".join(lines))
    except (SyntaxError, ValueError, RecursionError):
        return ast.Module(body=[], type_ignores=[])


def _class_statement(lines: tuple[str, ...], class_name: str) -> ast.ClassDef | None:
    """The statement whose position in the file best matches the end of the qualified name."""
    names = [name for name in class_name.split(".") if name != "<locals>"]
    best, fit = None, 0
    waiting: list[tuple[ast.AST, list[str]]] = [(_parsed(lines), [])]
    while waiting:
        node, place = waiting.pop()
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            place = [*place, node.name]
        if isinstance(node, ast.ClassDef) and names[-1:] == [node.name]:
            common = len(place) if names[-len(place) :] == place else 0
            if common > fit:
                best, fit = node, common
        waiting += [(child, place) for child in reversed([*ast.iter_child_nodes(node)])]
    return best


def _forward_line(lines: tuple[str, ...], near: int | None) -> int | None:
    """The `def` at or after a line: Python counts a function from its first decorator."""
    if near is None:
        return None
    for node in ast.walk(_parsed(lines)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first == near:
                return node.lineno
    return near

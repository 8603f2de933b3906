"""The code of a module: the statement of its class, and the lines that create and use it.

A module or parameter is found in the class of the module around it: `self.head = nn.Linear(8)` in
one method, `self.head(x)` in another. Of a part of `nn.Sequential(...)` it is the line of its
argument. Source files are read through `linecache`, which also knows the cells of a notebook.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeGuard

from torchglass.records.model import ClassSource, Model, Module, join_path
from torchglass.records.trace import SourceLine


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassCode:
    """A class statement in its file."""

    file: str
    line: int
    """The line of the word `class`, counted from 1."""
    text: str
    """The statement with its decorators, indented as it is in the file."""
    forward_file: str
    forward_line: int | None = None
    """Of `def forward`, if the class or a base class has one in Python."""


def read_class(source: ClassSource, class_name: str) -> ClassCode | None:
    """The code of a class; None if its file does not exist or no longer contains it."""
    lines = _lines(source.file)
    found = class_statement(source.file, class_name)
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


def class_statement(file: str, class_name: str) -> ast.ClassDef | None:
    """The statement whose position in the file best matches the end of the qualified name."""
    lines = _lines(file)
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


_TORCH = "torch."


class ModuleLines(NamedTuple):
    """Where a module is in the code of the model; both are empty if that is not known."""

    created: SourceLine | None = None
    set_up: tuple[SourceLine, ...] = ()
    """Further lines of `__init__` that refer to it, as those that initialize its weights."""
    used: tuple[SourceLine, ...] = ()
    """The lines that call it or loop over it, outside of `__init__`."""
    siblings_used: tuple[SourceLine, ...] = ()
    """If it is not used: where modules beside it are, and it may have been forgotten."""


def module_lines(model: Model, path: str) -> ModuleLines:
    """The lines of a module, or else of the innermost module around it that is an attribute."""
    parts = path.split(".") if path else []
    for depth in range(len(parts), 0, -1):
        owner = model.find(join_path(*parts[: depth - 1]))
        if owner is not None:
            found = _lines_of_attribute(model, owner, parts[depth - 1], parts[depth:])
            if found.created is not None or found.used:
                return found
    return ModuleLines(created=_class_line(model, model.root))


def _class_line(model: Model, module: Module) -> SourceLine | None:
    for file, class_name in _own_classes(model, module):
        statement = class_statement(file, class_name)
        if statement is not None:
            return SourceLine(file=file, line=statement.lineno, function="")
    return None


def _own_classes(model: Model, module: Module) -> Iterator[tuple[str, str]]:
    """The files and names of a module's class and its base classes, without those of torch."""
    source = model.classes.get(module.class_name)
    if source is None:
        return
    every = [(source.file, module.class_name)]
    every += [(one.file, one.class_name) for one in source.ancestors]
    yield from ((file, name) for file, name in every if file and not name.startswith(_TORCH))


def _lines_of_attribute(
    model: Model, owner: Module, name: str, inside: Sequence[str]
) -> ModuleLines:
    methods = list(_methods(model, owner))
    created = next(_creations(methods, name, inside), None)
    builders = [method for method in methods if method.code.name == "__init__"]
    runners = [method for method in methods if method.code.name != "__init__" and method.runs]
    used = tuple(_uses(runners, {name}))
    siblings = {child.name for child in model.children(owner)} - {name}
    return ModuleLines(
        created=created,
        set_up=tuple(line for line in _uses(builders, {name}) if line != created),
        used=used,
        siblings_used=() if used else tuple(_uses(runners, siblings)),
    )


class _Method(NamedTuple):
    """A method in its file."""

    file: str
    code: ast.FunctionDef | ast.AsyncFunctionDef
    runs: bool
    """Whether no class derived from it replaces it; one that does may still call it."""


def _methods(model: Model, owner: Module) -> Iterator[_Method]:
    """The methods of a module's class and its base classes."""
    known: set[str] = set()
    for file, class_name in _own_classes(model, owner):
        statement = class_statement(file, class_name)
        for node in statement.body if statement is not None else ():
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield _Method(file, node, node.name not in known)
                known.add(node.name)


def _creations(
    methods: Sequence[_Method], name: str, inside: Sequence[str]
) -> Iterator[SourceLine]:
    """The lines that assign an attribute of `self`, or the argument that became a part of it."""
    for method in methods:
        for node in ast.walk(method.code):
            if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(_is_own(one, {name}) for one in targets):
                line = _part(node.value, inside).lineno if inside else node.lineno
                yield SourceLine(file=method.file, line=line, function=method.code.name)


def _part(value: ast.expr, inside: Sequence[str]) -> ast.expr:
    """The argument of `nn.Sequential(a, b)` or `nn.ModuleList([a, b])` at a path of indices."""
    for index in inside:
        items = value.args if isinstance(value, ast.Call) else []
        if len(items) == 1 and isinstance(items[0], (ast.List, ast.Tuple)):
            items = items[0].elts
        if not index.isdigit() or any(isinstance(one, ast.Starred) for one in items):
            break
        if int(index) >= len(items) or isinstance(items[int(index)], ast.GeneratorExp):
            break
        value = items[int(index)]
    return value


def _uses(methods: Sequence[_Method], names: Container[str]) -> Iterator[SourceLine]:
    """The lines that read one of these attributes of `self`."""
    for method in methods:
        found = [node for node in ast.walk(method.code) if _is_own(node, names)]
        for line in sorted({node.lineno for node in found if isinstance(node.ctx, ast.Load)}):
            yield SourceLine(file=method.file, line=line, function=method.code.name)


def _is_own(node: ast.AST, names: Container[str]) -> TypeGuard[ast.Attribute]:
    """Whether an expression is `self.name` with one of these names."""
    return (
        isinstance(node, ast.Attribute)
        and node.attr in names
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )

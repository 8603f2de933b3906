"""The code of a class as coloured lines: alone, in its whole file, or that of an ancestor."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache

from pygments.lexers.python import PythonLexer  # type: ignore[import-untyped]

from torchglass.analyse.model.source import ClassCode, read_class
from torchglass.records.model import Ancestor, ClassSource, Model
from torchglass.views.formats import harmless
from torchglass.views.tui.cells import Piece
from torchglass.views.tui.panels.drawing import Line

_TAB = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Some lines of a file."""

    class_name: str
    """The class that they show."""
    file: str
    first: int
    """The number of the first line in the file."""
    lines: tuple[Line, ...]
    class_line: int
    forward_line: int | None = None
    """Of `def forward`, where it is among the lines."""

    def __contains__(self, line: int) -> bool:
        return self.first <= line < self.first + len(self.lines)


def lineage(model: Model, class_name: str) -> list[Ancestor]:
    """A class and those that it inherits from, as far as their code may be here."""
    source = model.classes.get(class_name)
    if source is None:
        return []
    return [Ancestor(class_name=class_name, file=source.file), *source.ancestors]


def list_class(model: Model, class_name: str, of: Ancestor, *, whole: bool) -> Listing | None:
    """The code of a class or of one that it inherits from; None where it is not here."""
    source = model.classes[class_name]
    code = read_class(
        ClassSource(
            file=of.file, forward_line=source.forward_line, forward_file=source.forward_file
        ),
        of.class_name,
    )
    if code is None:
        return None
    own = _first_line(code)
    text, first = (_file(of.file), 1) if whole else (code.text, own)
    lines = coloured(text)
    forward = code.forward_line if (source.forward_file or source.file) == of.file else None
    # In a whole file there may be one of another class, too.
    holds = forward is not None and 0 <= forward - own < len(coloured(code.text))
    return Listing(
        class_name=of.class_name,
        file=of.file,
        first=first,
        lines=lines,
        class_line=code.line,
        forward_line=forward if holds else None,
    )


def forward_holder(model: Model, class_name: str) -> Ancestor | None:
    """The nearest of a class and its ancestors whose code has the `forward` that runs."""
    for one in lineage(model, class_name):
        listing = list_class(model, class_name, one, whole=False) if one.file else None
        if listing is not None and listing.forward_line is not None:
            return one
    return None


@lru_cache(maxsize=64)
def coloured(text: str) -> tuple[Line, ...]:
    """Python code as lines of styled pieces."""
    lines: list[list[Piece]] = [[]]
    for style, words in _tokens(text.expandtabs(_TAB)):
        first, *rest = words.split("\n")
        lines[-1].append((harmless(first), style))
        lines += [[(harmless(part), style)] for part in rest]
    return tuple(lines[:-1] if lines[-1] in ([], [("", "plain")]) else lines)


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    # Nothing of the text is left out, so that its lines keep their numbers.
    lexer = PythonLexer(stripnl=False, stripall=False, ensurenl=True)
    for kind, words in lexer.get_tokens(text):
        yield _style(str(kind)), words


@cache
def _style(kind: str) -> str:
    return next((style for token, style in _STYLES.items() if kind.startswith(token)), "plain")


_STYLES = {
    "Token.Keyword.Constant": "literal",
    "Token.Keyword": "keyword",
    "Token.Operator.Word": "keyword",
    "Token.Name.Decorator": "decorator",
    "Token.Name.Function": "definition",
    "Token.Name.Class": "definition",
    "Token.Name.Builtin": "builtin",
    "Token.Literal.String.Doc": "muted",
    "Token.Literal.String": "string",
    "Token.Literal.Number": "literal",
    "Token.Comment": "comment",
}
"""The first that a token's name begins with."""


def _file(file: str) -> str:
    return "".join(linecache.getlines(file))


def _first_line(code: ClassCode) -> int:
    """The line of the first decorator, or of the class itself."""
    lines = code.text.split("\n")
    before = next(at for at, line in enumerate(lines) if re.match(r"\s*class\b", line))
    return code.line - before

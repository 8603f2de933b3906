"""The panel that shows the source code of a module's class."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import ClassVar

from pygments.lexers.python import PythonLexer  # type: ignore[import-untyped]

from torchglass.analyse.class_source import ClassCode, read_class
from torchglass.records.attributes import Progress
from torchglass.records.model import Ancestor, ClassSource, Model
from torchglass.records.trace import OpId
from torchglass.views.formats import harmless
from torchglass.views.tui.cells import Piece
from torchglass.views.tui.explorer_state import Subject
from torchglass.views.tui.panel_keys import panel_bindings
from torchglass.views.tui.panels.op_flow import Pass, pass_of
from torchglass.views.tui.panels.panel import Panel
from torchglass.views.tui.panels.text_rows import LazyRows, Line, Row

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


_RAN, _NOT_RAN = "•", " "
_PARTS = 3
_ABOVE = 2
"""Lines that are shown above the one that is gone to."""


@dataclass(frozen=True, slots=True)
class _View:
    """What is asked for: a class of a line of ancestors, alone or in its file."""

    class_name: str
    generation: int | None = None
    """How far up the line; None for where `forward` is."""
    whole: bool = False


class Code(Panel):
    """The class of the module, with the lines marked that ran in the recorded pass."""

    key: ClassVar[str] = "c"
    title: ClassVar[str] = "Code"
    missing: ClassVar[str] = "No source code here: open the model itself, or a run recorded from it"
    has_cursor = True
    BINDINGS: ClassVar = panel_bindings("panel:code", "panel:ancestors", "panel:lines run")

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._view = _View("")
        self._listings: dict[_View, Listing | None] = {}
        self._ran: Mapping[int, list[OpId]] = {}
        self._ran_of: tuple[Pass, str, _View] | None = None
        self._picked: OpId | None = None

    @classmethod
    def available(cls, subject: Subject) -> bool:
        """Whether the code of any class is known."""
        return bool(subject.model.classes)

    @property
    def places(self) -> tuple[str, ...]:
        """Where the keys act that act now."""
        inherits = len(lineage(self.subject.model, self._view.class_name)) > 1
        return (
            *super().places,
            *(("panel:ancestors",) if inherits else ()),
            *(("panel:lines run",) if self._ran else ()),
        )

    @property
    def listing(self) -> Listing | None:
        """The lines that are shown."""
        return self._listings.get(self._view)

    @property
    def place(self) -> tuple[str, int] | None:
        """The file and the line under the cursor, for an editor."""
        listing = self.listing
        return None if listing is None else (listing.file, listing.first + self.row)

    def follow(self, moved: bool) -> None:
        """Show the code of the module's class."""
        if self._view.class_name != self.module.class_name:
            self._turn_to(_View(self.module.class_name, whole=self._view.whole))
        elif moved or self.listing is not None:
            self._mark()

    def pick(self, op: OpId) -> None:
        """Mark the line that produced an op, and go there if it is shown."""
        self._picked = op
        trace, listing = pass_of(self.subject), self.listing
        source = trace.op(op).source if trace else None
        if listing and source and source.file == listing.file and source.line in listing:
            self._go_to_line(source.line)
        self._draw()

    def action_forward(self) -> None:
        """Show the `forward` that runs."""
        self._turn_to(_View(self._view.class_name, whole=self._view.whole))

    def action_top(self) -> None:
        """Show where the class begins."""
        if self.listing:
            self._go_to_line(self.listing.class_line)

    def action_whole(self) -> None:
        """Show the whole file, or the class alone."""
        view = self._view
        self._turn_to(_View(view.class_name, self._generation(), not view.whole))

    def action_ancestor(self, direction: int) -> None:
        """Show the class that this one inherits from, or come back from there."""
        line = lineage(self.subject.model, self._view.class_name)
        if line:
            there = min(max(self._generation() + direction, 0), len(line) - 1)
            self._turn_to(_View(self._view.class_name, there, self._view.whole))

    def choose(self, row: Row) -> None:
        """Pick the op that the line ran, the next one each time."""
        ops = row.target or []
        if ops:
            at = ops.index(self._picked) + 1 if self._picked in ops else 0
            self._picked = ops[at % len(ops)]
            self._draw()
            self.post_message(self.Picked(self._picked))

    def _generation(self) -> int:
        if self._view.generation is not None:
            return self._view.generation
        names = [one.class_name for one in lineage(self.subject.model, self._view.class_name)]
        return names.index(self.listing.class_name) if self.listing else 0

    def _turn_to(self, view: _View) -> None:
        self._view = view
        if view in self._listings:
            self._open()
            return
        model = self.subject.model
        self.work(
            "Reading the source",
            lambda progress: _read(model, view, progress),
            lambda listing: self._take_listing(view, listing),
        )

    def _take_listing(self, view: _View, listing: Listing | None) -> None:
        self._listings[view] = listing
        self._open()

    def _open(self) -> None:
        self._ran, self._ran_of = {}, None
        listing = self.listing
        self._draw()
        if listing is not None:
            self._go_to_line(listing.forward_line or listing.class_line)
        self._mark()

    def _mark(self) -> None:
        """Find out which lines ran, which takes a while in a large trace."""
        trace, listing = pass_of(self.subject), self.listing
        if trace is None or listing is None:
            self._draw()
            return
        path = self.module.path
        self.work(
            "Finding the lines that ran", lambda _: _lines_run(trace, path, listing), self._see
        )

    def _see(self, ran: Mapping[int, list[OpId]]) -> None:
        self._ran = ran
        self._draw()

    def _go_to_line(self, line: int) -> None:
        if self.listing:
            at = line - self.listing.first
            self.go(at)
            self.turn_to(y=max(at - _ABOVE, 0))

    def _draw(self) -> None:
        listing = self.listing
        if listing is None:
            self.subtitle = ""
            self.say(
                f"The code of {harmless(self.module.kind)} is not to be found on this machine."
            )
            return
        kind = listing.class_name.rpartition(".")[2]
        own = "" if listing.class_name == self.module.class_name else f"inherited from {kind}"
        whole = "whole file" if self._view.whole else ""
        self.subtitle = " · ".join(filter(None, (own, whole, _short(listing.file))))
        digits = len(str(listing.first + len(listing.lines)))
        picked = self._picked_line(listing)
        self.put(
            LazyRows(
                len(listing.lines),
                lambda at: self._row(listing, listing.first + at, digits, picked),
            )
        )

    def _row(self, listing: Listing, line: int, digits: int, picked: int | None) -> Row:
        ran = self._ran.get(line)
        return Row(
            [
                (f"{line:>{digits}}", "line"),
                (f" {_RAN if ran else _NOT_RAN} ", "mark"),
                *listing.lines[line - listing.first],
            ],
            ran,
            "marked" if line == picked else "plain",
        )

    def _picked_line(self, listing: Listing) -> int | None:
        trace = pass_of(self.subject)
        if trace is None or self._picked is None or self._picked >= len(trace.trace.ops):
            return None
        source = trace.op(self._picked).source
        return source.line if source and source.file == listing.file else None


def _read(model: Model, view: _View, progress: Progress) -> Listing | None:
    line = lineage(model, view.class_name)
    if not line:
        return None
    of: Ancestor = line[0]
    if view.generation is not None:
        of = line[view.generation]
    else:
        of = forward_holder(model, view.class_name) or of
    return list_class(model, view.class_name, of, whole=view.whole)


def _lines_run(trace: Pass, path: str, listing: Listing) -> Mapping[int, list[OpId]]:
    """The ops of a module by the line of the listing that ran them."""
    found: dict[int, list[OpId]] = {}
    for op in map(trace.op, trace.ops(path)):
        source = op.source
        if source is not None and source.file == listing.file and source.line in listing:
            found.setdefault(source.line, []).append(op.id)
    return found


def _short(file: str) -> str:
    """The end of a path, which tells most about it."""
    return harmless("/".join(Path(file).parts[-_PARTS:]))

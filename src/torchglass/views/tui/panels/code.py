"""The panel that shows the source code of a module's class."""

from __future__ import annotations

import linecache
import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import ClassVar

from pygments.lexers.python import PythonLexer  # type: ignore[import-untyped]
from textual.app import App, SuspendNotSupported

from torchglass.analyse.class_source import read_class
from torchglass.records.model import Ancestor, ClassSource, Model, Module
from torchglass.records.trace import OpId
from torchglass.tables.text import harmless
from torchglass.views.tui.explorer_state import ExplorerState, TracedForward
from torchglass.views.tui.keys import bindings
from torchglass.views.tui.panels.panel import Panel
from torchglass.views.tui.styled_text import LazyRows, Line, Piece, TextRow

_TAB = 4
_CLASS = re.compile(r"\s*class\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeListing:
    """Some lines of a file."""

    class_name: str
    """The class that they show."""
    file: str
    first: int
    """The number of the first line in the file."""
    lines: tuple[Line, ...]
    class_line: int
    forward_line: int | None = None
    """The line of `def forward`, if it is among these lines."""

    def __contains__(self, line: int) -> bool:
        return self.first <= line < self.first + len(self.lines)


def lineage(model: Model, class_name: str) -> list[Ancestor]:
    """A class and its base classes whose source may be available."""
    source = model.classes.get(class_name)
    if source is None:
        return []
    return [Ancestor(class_name=class_name, file=source.file), *source.ancestors]


def list_class(model: Model, class_name: str, of: Ancestor, *, whole: bool) -> CodeListing | None:
    """The source of a class or of one of its base classes; None if it is not available."""
    source = model.classes[class_name]
    code = read_class(
        ClassSource(
            file=of.file, forward_line=source.forward_line, forward_file=source.forward_file
        ),
        of.class_name,
    )
    if code is None:
        return None
    above = next(at for at, line in enumerate(code.text.split("\n")) if _CLASS.match(line))
    own = code.line - above
    lines = colored("".join(linecache.getlines(of.file)) if whole else code.text)
    forward = code.forward_line if (source.forward_file or source.file) == of.file else None
    # A whole file may also have the `forward` of another class.
    holds = forward is not None and 0 <= forward - own < len(colored(code.text))
    return CodeListing(
        class_name=of.class_name,
        file=of.file,
        first=1 if whole else own,
        lines=lines,
        class_line=code.line,
        forward_line=forward if holds else None,
    )


def forward_holder(model: Model, class_name: str) -> Ancestor | None:
    """The first of a class and its base classes whose source has the `forward` that runs."""
    for one in lineage(model, class_name):
        listing = list_class(model, class_name, one, whole=False) if one.file else None
        if listing is not None and listing.forward_line is not None:
            return one
    return None


@lru_cache(maxsize=64)
def colored(text: str) -> tuple[Line, ...]:
    """Python code as lines of styled pieces."""
    lines: list[list[Piece]] = [[]]
    # Nothing is stripped, so that lines keep their numbers.
    lexer = PythonLexer(stripnl=False, stripall=False, ensurenl=True)
    for kind, words in lexer.get_tokens(text.expandtabs(_TAB)):
        style = _style(str(kind))
        first, *rest = words.split("\n")
        lines[-1].append((harmless(first), style))
        lines += [[(harmless(part), style)] for part in rest]
    return tuple(lines[:-1] if lines[-1] in ([], [("", "plain")]) else lines)


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
"""The style of a token is that of the first prefix of its name."""


_PARTS = 3
_ABOVE = 2
"""Lines that stay visible above the target line."""


@dataclass(frozen=True, slots=True)
class _View:
    """Which class of the inheritance chain to show, alone or in its file."""

    class_name: str
    generation: int | None = None
    """The index in the inheritance chain; None for the class with `forward`."""
    whole: bool = False


class CodePanel(Panel):
    """The source of the module's class; lines that ran in the recorded forward are marked."""

    key: ClassVar[str] = "c"
    title: ClassVar[str] = "Code"
    missing: ClassVar[str] = "No source code: open the model itself or a run recorded from it"
    has_cursor = True
    BINDINGS: ClassVar = bindings("panel:code", "panel:ancestors", "panel:lines run")

    def __init__(self, state: ExplorerState) -> None:
        super().__init__(state)
        self._view = _View("")
        self._listings: dict[_View, CodeListing | None] = {}
        self._ran: Mapping[int, list[OpId]] = {}
        self._picked: OpId | None = None

    @classmethod
    def available(cls, state: ExplorerState) -> bool:
        return bool(state.model.classes)

    def extra_places(self) -> Iterable[str]:
        if len(lineage(self.state.model, self._view.class_name)) > 1:
            yield "panel:ancestors"
        if self._ran:
            yield "panel:lines run"

    @property
    def listing(self) -> CodeListing | None:
        return self._listings.get(self._view)

    @property
    def place(self) -> tuple[str, int] | None:
        """The file and the line under the cursor, for an editor."""
        listing = self.listing
        return None if listing is None else (listing.file, listing.first + self.row)

    def follow(self, moved: bool) -> None:
        if self._view.class_name != self.module.class_name:
            self._turn_to(_View(self.module.class_name, whole=self._view.whole))
        elif moved or self.listing is not None:
            self._mark()

    def pick(self, op: OpId) -> None:
        self._picked = op
        trace, listing = self.state.traced_forward, self.listing
        source = trace.op(op).source if trace else None
        if listing and source and source.file == listing.file and source.line in listing:
            self._go_to_line(source.line)
        self._draw()

    def action_forward(self) -> None:
        self._turn_to(_View(self._view.class_name, whole=self._view.whole))

    def action_top(self) -> None:
        if self.listing:
            self._go_to_line(self.listing.class_line)

    def action_whole(self) -> None:
        view = self._view
        self._turn_to(_View(view.class_name, self._generation(), not view.whole))

    def action_ancestor(self, direction: int) -> None:
        """Show the base class, or go back to the subclass."""
        line = lineage(self.state.model, self._view.class_name)
        if line:
            there = min(max(self._generation() + direction, 0), len(line) - 1)
            self._turn_to(_View(self._view.class_name, there, self._view.whole))

    def choose(self, row: TextRow) -> None:
        """Select the op of the line; again, the next op of the line."""
        ops = row.target or []
        if ops:
            at = ops.index(self._picked) + 1 if self._picked in ops else 0
            self._picked = ops[at % len(ops)]
            self._draw()
            self.post_message(self.Picked(self._picked))

    def _generation(self) -> int:
        if self._view.generation is not None:
            return self._view.generation
        names = [one.class_name for one in lineage(self.state.model, self._view.class_name)]
        return names.index(self.listing.class_name) if self.listing else 0

    def _turn_to(self, view: _View) -> None:
        self._view = view
        if view in self._listings:
            self._open()
            return
        model = self.state.model

        def take(listing: CodeListing | None) -> None:
            self._listings[view] = listing
            self._open()

        self.work("Reading the source", lambda _: _read(model, view), take)

    def _open(self) -> None:
        self._ran = {}
        listing = self.listing
        self._draw()
        if listing is not None:
            self._go_to_line(listing.forward_line or listing.class_line)
        self._mark()

    def _mark(self) -> None:
        trace, listing = self.state.traced_forward, self.listing
        if trace is None or listing is None:
            self._draw()
            return
        path = self.module.path

        def take(ran: Mapping[int, list[OpId]]) -> None:
            self._ran = ran
            self._draw()

        self.work("Finding the lines that ran", lambda _: _lines_run(trace, path, listing), take)

    def _go_to_line(self, line: int) -> None:
        if self.listing:
            at = line - self.listing.first
            self.go(at)
            self.turn_to(y=max(at - _ABOVE, 0))

    def _draw(self) -> None:
        listing = self.listing
        if listing is None:
            self.subtitle = ""
            self.say(f"The code of {harmless(self.module.kind)} is not available on this machine.")
            return
        kind = listing.class_name.rpartition(".")[2]
        own = "" if listing.class_name == self.module.class_name else f"inherited from {kind}"
        whole = "whole file" if self._view.whole else ""
        short = harmless("/".join(Path(listing.file).parts[-_PARTS:]))
        self.subtitle = " · ".join(filter(None, (own, whole, short)))
        digits = len(str(listing.first + len(listing.lines)))
        picked = self._picked_line(listing)

        def row(at: int) -> TextRow:
            line = listing.first + at
            ran = self._ran.get(line)
            mark = f" {'•' if ran else ' '} "
            pieces = [(f"{line:>{digits}}", "line"), (mark, "mark"), *listing.lines[at]]
            return TextRow(pieces, ran, "marked" if line == picked else "plain")

        self.put(LazyRows(len(listing.lines), row))

    def _picked_line(self, listing: CodeListing) -> int | None:
        trace = self.state.traced_forward
        if trace is None or self._picked is None or self._picked >= len(trace.trace.ops):
            return None
        source = trace.op(self._picked).source
        return source.line if source and source.file == listing.file else None


def _read(model: Model, view: _View) -> CodeListing | None:
    line = lineage(model, view.class_name)
    if not line:
        return None
    holder = forward_holder(model, view.class_name) if view.generation is None else None
    of = holder or line[view.generation or 0]
    return list_class(model, view.class_name, of, whole=view.whole)


def _lines_run(trace: TracedForward, path: str, listing: CodeListing) -> Mapping[int, list[OpId]]:
    found: dict[int, list[OpId]] = {}
    for op in map(trace.op, trace.ops(path)):
        source = op.source
        if source is not None and source.file == listing.file and source.line in listing:
            found.setdefault(source.line, []).append(op.id)
    return found


_GO_TO = {"code", "code-insiders", "codium", "cursor", "windsurf"}
_WITH_COLON = {"hx", "helix", "subl", "zed", "zeditor"}


def source_place(model: Model, module: Module) -> tuple[str, int] | None:
    """The file and line of a module's forward, or of its class; None if there is no file."""
    source = model.classes.get(module.class_name)
    if source is None:
        return None
    file = source.forward_file or source.file
    return (file, source.forward_line or 1) if Path(file).is_file() else None


def open_editor(app: App[None], file: str, line: int) -> str:
    """Open a file in the user's editor, and wait; the error message, or ""."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not editor:
        return f"Set $EDITOR to open {file}:{line}"
    try:
        words = shlex.split(editor)
        with app.suspend():
            subprocess.run([*words, *_arguments(words[0], file, line)], check=False)
    except (OSError, SuspendNotSupported, ValueError) as error:
        return f"Cannot start {editor}: {error}"
    return ""


def _arguments(editor: str, file: str, line: int) -> list[str]:
    """A line of a file as the arguments of an editor."""
    name = Path(editor).stem
    if name in _GO_TO:
        return ["--goto", f"{file}:{line}"]
    return [f"{file}:{line}"] if name in _WITH_COLON else [f"+{line}", file]

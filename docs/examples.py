"""Runs the examples of the pages and renews the outputs below them: `python -m docs.examples`.

The examples of a page run in order, as one program. What is shown after them is checked:

- A `text` block right after a `python` block is what that block prints.
- A `text` block right after a `sh` block is what its commands print.
- `<!-- numbers vary -->` before a `text` block: only its words have to be printed, as for times.
- `<!-- not run: why -->` before a block: it is not run.
- A `python` block with a title, such as `title="net.py"`, is saved under that name, not run.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
ROOT = DOCS.parent
PAGES = (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))

_BLOCK = re.compile(
    r"(?:^<!-- (?P<note>[^\n]*?) -->\n)?"
    r"^```(?P<language>\w*)(?: title=\"(?P<title>[^\"]*)\")?[^\n]*\n(?P<body>.*?)^```$",
    flags=re.MULTILINE | re.DOTALL,
)
_UNIT = r"[nμm]?s\b|%|×|[KMGT]?B\b|[KMGT]\b|threads?\b"
_NUMBER = re.compile(rf"[-−±<≈]*\d[\d,.]*(?:e[-+]\d+)?\s?(?:{_UNIT})?")
_DRAWN = re.compile(r"[─│├└┤┴━╸█▁▂▃▄▅▆▇]+")
_FILE = "example.py"


@dataclass
class Block:
    """One fenced block of a page."""

    language: str
    body: str
    span: tuple[int, int]
    """Where the body is in the page."""
    note: str = ""
    title: str = ""
    printed: str | None = None
    """What came out when the block before it ran; None if this block is not an output."""

    @property
    def varies(self) -> bool:
        """Whether its numbers differ from run to run."""
        return self.note == "numbers vary"

    @property
    def is_true(self) -> bool:
        """Whether the page shows what was printed."""
        if self.printed is None or not self.varies:
            return self.printed in (None, self.body)
        # A busy machine may add a note, so more words than shown are fine.
        return bool(self.body) and words_of(self.body) <= words_of(self.printed)


@dataclass
class Program:
    """The examples of one page as they run: one namespace, one file of source."""

    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "example"})
    lines: list[str] = field(default_factory=list)

    def run(self, block: Block) -> str:
        """Run a block and return what it printed."""
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            if block.language == "sh":
                _run_commands(block.body)
            else:
                self._run_python(block.body)
        return output.getvalue()

    def _run_python(self, source: str) -> None:
        padding = "\n" * len(self.lines)
        self.lines += source.splitlines(keepends=True)
        # Where an operation prints its source line, it is read from here.
        linecache.cache[_FILE] = (len(self.lines), None, self.lines, _FILE)
        exec(compile(padding + source, _FILE, "exec"), self.names)


def blocks_of(text: str) -> list[Block]:
    """All fenced blocks of a page."""
    return [
        Block(
            found["language"],
            found["body"],
            found.span("body"),
            found["note"] or "",
            found["title"] or "",
        )
        for found in _BLOCK.finditer(text)
    ]


def run_page(text: str) -> list[Block]:
    """Run the examples of a page in the current folder; the blocks that are outputs say which."""
    program = Program()
    blocks = blocks_of(text)
    # A program finds the files beside it.
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        for block, after in zip_longest(blocks, blocks[1:]):
            gap = text[block.span[1] : after.span[0]] if after else ""
            shown = after if after and after.language == "text" and gap.count("\n") <= 4 else None
            if block.title:
                Path(block.title).write_text(block.body, encoding="utf-8")
            elif _runs(block, shown):
                printed = program.run(block)
                if shown is not None:
                    shown.printed = printed
    finally:
        sys.path.remove(here)
    return blocks


def _runs(block: Block, shown: Block | None) -> bool:
    if block.note.startswith("not run"):
        return False
    return block.language == "python" or (block.language == "sh" and shown is not None)


def _run_commands(commands: str) -> None:
    from torchglass.cli import main

    for command in commands.splitlines():
        words = shlex.split(command, comments=True)
        if words and words[0] != "torchglass":
            raise ValueError(f"{command!r} is not a torchglass command, so it cannot be checked")
        main(words[1:])


def words_of(text: str) -> set[str]:
    """The words of an output, without numbers, units and drawn lines."""
    return set(_DRAWN.sub(" ", _NUMBER.sub(" # ", text)).split())


def renewed(text: str) -> str:
    """The page with every output as it is now; one whose numbers vary stays if its words hold."""
    parts, end = [], 0
    for block in run_page(text):
        if not block.is_true and block.printed is not None:
            parts += [text[end : block.span[0]], block.printed]
            end = block.span[1]
    return "".join([*parts, text[end:]])


@contextlib.contextmanager
def in_empty_folder() -> Iterator[None]:
    """Run in a folder of its own, which is deleted afterwards."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def renew(pages: Iterable[Path] = PAGES) -> None:
    """Renew the outputs on these pages."""
    for page in pages:
        text = page.read_text(encoding="utf-8")
        with in_empty_folder():
            new = renewed(text)
        if new != text:
            page.write_text(new, encoding="utf-8")
            sys.stderr.write(f"wrote {page.relative_to(ROOT)}\n")


if __name__ == "__main__":
    renew([Path(name).resolve() for name in sys.argv[1:]] or PAGES)

"""The panel that shows the code of a module's class, opened where it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from torchglass.records.attributes import Progress
from torchglass.records.model import Ancestor, Model
from torchglass.records.trace import OpId
from torchglass.views.formats import harmless
from torchglass.views.tui.panels.drawing import LazyRows, Row
from torchglass.views.tui.panels.keys import panel_bindings
from torchglass.views.tui.panels.panel import Panel
from torchglass.views.tui.panels.passes import Pass, pass_of
from torchglass.views.tui.panels.source import Listing, forward_holder, lineage, list_class
from torchglass.views.tui.subject import Subject

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

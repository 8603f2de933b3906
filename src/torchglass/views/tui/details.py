"""The panel that tells all about the module under the cursor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from torchglass.analyse.model.parameters import Counts, ModuleCounts
from torchglass.records.model import Module, Slot
from torchglass.records.series import Series
from torchglass.views.columns import shape_text
from torchglass.views.formats import (
    format_bytes,
    format_count,
    format_share,
    harmless,
    sparkline,
)
from torchglass.views.tui.cells import Piece, fit, squeeze
from torchglass.views.tui.columns import format_value
from torchglass.views.tui.keys import bindings
from torchglass.views.tui.subject import SHARED, TIED, Subject, moving, tied_to

Line = Sequence[Piece]

_SLOTS = 100
_SPARK = 48
_VALUE = 8


class Details(VerticalScroll, can_focus=True):
    """All that is known of one module."""

    BINDINGS: ClassVar = bindings("details")
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        f"details--{style}"
        for style in (
            *("path", "class", "extra", "heading", "name", "number", "shape"),
            *("muted", "spark", "note", "problem"),
        )
    }

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self.subject = subject
        self._module = subject.model.root
        self._height = 0

    def on_resize(self) -> None:
        """Draw for the new width."""
        self.show(self._module)

    def compose(self) -> ComposeResult:
        """One block of text."""
        yield Static()

    def show(self, module: Module) -> None:
        """Tell of another module, or of what is new about this one."""
        width = self.scrollable_content_region.width
        if module is not self._module:
            self._module = module
            self.scroll_home(animate=False)
        content = Content("\n").join(
            Content.assemble(*((text, f".details--{style}") for text, style in line))
            for line in describe(self.subject, module, width)
        )
        # Laying the whole screen out again is the costliest part of a step of the cursor.
        height = len(content.wrap(max(width, 1)))
        self.query_one(Static).update(content, layout=height != self._height)
        self._height = height


def describe(subject: Subject, module: Module, width: int) -> Iterator[Line]:
    """What there is to tell of a module, line by line."""
    yield from _who(subject, module)
    if module.problem:
        yield from _section("problem")
        yield [(harmless(module.problem), "problem")]
    counts = subject.counts(module)
    if counts:
        yield from _section("holds")
        yield from _totals(subject, counts)
    if module.slots:
        yield from _section("tensors")
        yield from _tensors(subject, module)
    if subject.series_at(module):
        yield from _section("over steps")
        yield from _series(subject, module, width)


def _section(title: str) -> Iterator[Line]:
    yield []
    yield [(title, "heading")]


def _who(subject: Subject, module: Module) -> Iterator[Line]:
    model = subject.model
    yield [(harmless(module.path or model.name), "path")]
    yield [
        (harmless(module.kind), "class"),
        (f"({harmless(module.extra)})" if module.extra else "", "extra"),
    ]
    package = module.class_name.rpartition(".")[0]
    peers = len(subject.outline.by_class[module.class_name])
    mode = "training" if module.training else "eval"
    yield [(" · ".join(filter(None, (harmless(package), mode, _peers(peers)))), "muted")]
    if module.alias_of is not None:
        first = model[module.alias_of].path or "the model itself"
        yield [(f"{SHARED} the very module at ", "note"), (harmless(first), "name")]
    for hook in module.hooks:
        yield [("hook ", "muted"), (harmless(hook), "name")]


def _peers(count: int) -> str:
    return "the only one of its class" if count == 1 else f"one of {count:,} of its class"


def _totals(subject: Subject, counts: ModuleCounts) -> Iterator[Line]:
    yield [(f"{'':12}{'own':>9}{'total':>11}", "muted")]
    for title, number in _HELD:
        yield [
            (f"{title:12}", "muted"),
            (f"{number(counts.own):>9}{number(counts.total):>11}", "number"),
        ]
    whole = subject.counts(subject.model.root)
    if whole and counts.total.parameters:
        share = format_share(counts.total.parameters, whole.total.parameters)
        yield [(f"{share} of the model's parameters", "muted")]
    if counts.per_use.parameters != counts.total.parameters:
        uses = format_count(counts.per_use.parameters)
        yield [(f"{uses} if each use were a copy", "muted")]


def _tensors(subject: Subject, module: Module) -> Iterator[Line]:
    shown = module.slots[:_SLOTS]
    table = [
        (
            harmless(slot.name),
            shape_text(slot.spec),
            harmless(slot.spec.dtype),
            format_bytes(slot.spec.bytes),
        )
        for slot in shown
    ]
    name, shape, dtype, size = (max(map(cell_len, column)) for column in zip(*table, strict=True))
    for slot, cells in zip(shown, table, strict=True):
        yield [
            (fit(cells[0], name + 2), "name"),
            (fit(cells[1], shape + 2), "shape"),
            (fit(cells[2], dtype + 2), "muted"),
            (fit(cells[3], size, right=True), "number"),
            (f"  {_standing(slot)}", "muted"),
        ]
        for place in tied_to(subject.model, module, slot):
            yield [(f"  {TIED} {harmless(place)}", "note")]
    if len(module.slots) > _SLOTS:
        yield [(f"and {len(module.slots) - _SLOTS:,} more", "muted")]


def _standing(slot: Slot) -> str:
    """What sets a tensor apart from a trainable parameter in plain memory."""
    words = []
    if slot.role != "parameter":
        words.append(slot.role if slot.persistent else f"{slot.role}, not saved")
    elif not slot.trainable:
        words.append("frozen")
    if slot.spec.device != "cpu":
        words.append(harmless(slot.spec.device))
    if slot.spec.layout != "strided":
        words.append(harmless(slot.spec.layout))
    return ", ".join(words)


def _series(subject: Subject, module: Module, width: int) -> Iterator[Line]:
    series = subject.series_at(module)
    titles = [harmless(_title(one)) for one in series]
    names = max(map(cell_len, titles))
    room = min(max(width - names - _VALUE - 4, 4), _SPARK)
    for one, title in zip(series, titles, strict=True):
        values = subject.values(one)
        last = format_value(values[-1]) if len(values) else ""
        yield [
            (fit(title, names + 2), "name"),
            (f"{last:>{_VALUE}}  ", "number"),
            (sparkline(squeeze(values, room), room), "spark"),
        ]


def _title(series: Series) -> str:
    return series.name if series.kind == "scalar" else f"{series.name} {moving(series)}"


_HELD: tuple[tuple[str, Callable[[Counts], str]], ...] = (
    ("parameters", lambda held: format_count(held.parameters)),
    ("trainable", lambda held: format_count(held.trainable)),
    ("frozen", lambda held: format_count(held.frozen)),
    ("buffers", lambda held: format_count(held.buffers)),
    ("memory", lambda held: format_bytes(held.bytes)),
)

"""The panel area: tabs, the panel in front, and an edge to drag."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from rich.cells import cell_len
from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widget import Widget

from torchglass.records.model import Module
from torchglass.views.formats import harmless
from torchglass.views.tui.keys import KEYS, PANEL_KEYS, KeyEntry, glyph
from torchglass.views.tui.panels import PANELS
from torchglass.views.tui.panels.panel import Panel
from torchglass.views.tui.text_rows import fit

_MORE = 2


class TabBar(Widget):
    """The titles of the open panels; a click brings one to the front."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        *("tabs--front", "tabs--behind", "tabs--key", "tabs--subtitle"),
    }

    class Clicked(Message):
        """The user wants a panel in front."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    def __init__(self) -> None:
        super().__init__()
        self._panels: Sequence[Panel] = ()
        self._front: Panel | None = None
        self._focused = False

    def show(self, panels: Sequence[Panel], front: Panel | None) -> None:
        """Draw the titles of these panels."""
        self._panels, self._front = panels, front
        self.refresh()

    def render(self) -> Content:
        """The titles, and what the panel in front says beside its own."""
        first, shown = self._in_sight()
        parts = [Content.styled("‹", ".tabs--key")] if first else []
        for panel in shown:
            style = self._style(panel)
            parts.append(
                Content.assemble(
                    (f" {glyph(panel.key)} ", ".tabs--key"), (f"{panel.title}", style), " "
                )
            )
        hidden = first + len(shown) < len(self._panels)
        parts += [Content.styled("›", ".tabs--key")] if hidden else []
        used = sum(map(_width, shown)) + bool(first) + hidden
        subtitle = harmless(self._front.subtitle) if self._front else ""
        room = max(self.size.width - used - 2, 0)
        parts.append(Content.styled(f" {fit(subtitle, room, right=True)} ", ".tabs--subtitle"))
        return Content("").join(parts)

    def on_click(self, event: events.Click) -> None:
        """Bring the panel to the front whose title was clicked."""
        first, shown = self._in_sight()
        left = int(bool(first))
        if event.x < left:
            self.post_message(self.Clicked(self._panels[first - 1].key))
            return
        for panel in [*shown, *self._panels[first + len(shown) :][:1]]:
            left += _width(panel)
            if event.x < left:
                self.post_message(self.Clicked(panel.key))
                return

    def mark(self, focused: bool) -> None:
        """Show whether keys go to the panel in front."""
        if focused != self._focused:
            self._focused = focused
            self.refresh()

    def _style(self, panel: Panel) -> str:
        if panel is not self._front:
            return ".tabs--behind"
        return "bold $background on $primary" if self._focused else ".tabs--front"

    def _in_sight(self) -> tuple[int, Sequence[Panel]]:
        """The titles that fit with that of the panel in front, and how many are left of them."""
        front = next((at for at, one in enumerate(self._panels) if one is self._front), 0)
        widths = [_width(panel) for panel in self._panels]
        room = self.size.width
        if sum(widths) <= room:
            return 0, self._panels
        # A cell at each end says that there are more.
        room -= _MORE
        first = front
        while first and sum(widths[first - 1 : front + 1]) <= room:
            first -= 1
        last = front + 1
        while last < len(widths) and sum(widths[first : last + 1]) <= room:
            last += 1
        return first, self._panels[first:last]


def _width(panel: Panel) -> int:
    return cell_len(f" {glyph(panel.key)} {panel.title} ")


class PanelEdge(Widget):
    """The line between the tree and the panels, which can be dragged."""

    class Dragged(Message):
        """The edge is to be at another place of the screen."""

        def __init__(self, x: int, y: int) -> None:
            super().__init__()
            self.x, self.y = x, y

    def render(self) -> str:
        """A line, upright or lying."""
        width, height = self.size
        return "\n".join(["│"] * height) if height > 1 else "─" * width

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Begin to drag."""
        self.capture_mouse()

    def on_mouse_up(self, event: events.MouseUp) -> None:
        """End it."""
        self.release_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Follow the mouse."""
        if self.app.mouse_captured is self:
            self.post_message(self.Dragged(event.screen_x, event.screen_y))


class PanelTabs(Vertical):
    """The open panels. They are asked to show a module only while they can be seen."""

    class Turned(Message):
        """Another panel is in front."""

    def __init__(self) -> None:
        super().__init__()
        self._tabs = TabBar()
        self._open: list[Panel] = []
        self.front: Panel | None = None

    def compose(self) -> ComposeResult:
        """The tabs; panels come when they are opened."""
        yield self._tabs

    def __iter__(self) -> Iterator[Panel]:
        return iter(self._open)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the open panels, that of the one in front first."""
        rest = [panel.key for panel in self._open if panel is not self.front]
        return (self.front.key, *rest) if self.front else ()

    def find(self, key: str) -> Panel | None:
        """The open panel with this key."""
        return next((panel for panel in self._open if panel.key == key), None)

    def open(self, panel: Panel) -> None:
        """Put a panel in front, behind whose tab it then is."""
        if panel not in self._open:
            self._open.append(panel)
            self.mount(panel)
        self.turn_to(panel)

    def close(self, panel: Panel) -> None:
        """Take a panel away; the one beside it comes to the front."""
        place = self._open.index(panel)
        self._open.remove(panel)
        panel.remove()
        beside = self._open[min(place, len(self._open) - 1)] if self._open else None
        self.turn_to(beside if panel is self.front else self.front)

    def turn_to(self, panel: Panel | None) -> None:
        """Bring an open panel to the front."""
        self.front = panel
        for each in self._open:
            each.display = each is panel
        self._tabs.show(self._open, panel)
        self.post_message(self.Turned())

    def mark(self, focused: bool) -> None:
        """Show whether keys go to the panel in front."""
        self._tabs.mark(focused)

    def beside(self, direction: int) -> Panel | None:
        """The panel after the one in front, or before it; None past the last."""
        if self.front is None:
            return None
        place = self._open.index(self.front) + direction
        return self._open[place] if 0 <= place < len(self._open) else None

    @property
    def last(self) -> Panel | None:
        """The panel of the last tab."""
        return self._open[-1] if self._open else None

    def show(self, module: Module) -> None:
        """Tell the panel in front which module to show."""
        if self.front is not None and self.display:
            self.front.show(module)

    def refresh_data(self) -> None:
        """Tell the panel in front that there is news."""
        if self.front is not None and self.display:
            self.front.refresh_data()

    @on(Panel.Retitled)
    def _retitle(self) -> None:
        self._tabs.refresh()

    @on(TabBar.Clicked)
    def _turn(self, message: TabBar.Clicked) -> None:
        self.turn_to(self.find(message.key))


def panel_toggles() -> tuple[KeyEntry, ...]:
    """The key of each panel."""
    return tuple(
        KeyEntry(
            keys=(panel.key,),
            action=f"toggle_panel('{panel.key}')",
            does=panel.title,
            section="Open or close a panel",
            place="anywhere",
            hint=panel.title.lower(),
        )
        for panel in PANELS
    )


def all_keys() -> tuple[KeyEntry, ...]:
    """Every key there is."""
    return (*KEYS, *panel_toggles(), *PANEL_KEYS)

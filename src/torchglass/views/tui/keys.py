"""Every key of the explorer: the one table that bindings, help and footer are made from."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from textual.binding import Binding, BindingType

Place = Literal["anywhere", "tree", "details", "search"]

_GLYPHS = {
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
    "escape": "Esc",
    "enter": "Enter",
    "tab": "Tab",
    "shift+left": "Shift+←",
    "shift+right": "Shift+→",
    "pageup": "PgUp",
    "pagedown": "PgDn",
    "home": "Home",
    "end": "End",
    "space": "Space",
    "ctrl+p": "Ctrl+P",
    "slash": "/",
    "question_mark": "?",
    "less_than_sign": "<",
    "greater_than_sign": ">",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One thing a key does."""

    keys: tuple[str, ...]
    """As Textual names them; any of them does it."""
    action: str
    does: str
    """What it does, as the help says it."""
    section: str
    """The heading in the help."""
    place: Place
    """Where the focus has to be for it to act."""
    hint: str = ""
    """The word beside it in the footer; "" keeps it out of there."""
    urgent: bool = False
    """Whether it moves the focus: it is done before the next key looks for its target."""

    @property
    def label(self) -> str:
        """Its keys as people know them: "↑ k"."""
        return " ".join(glyph(key) for key in self.keys)


def glyph(key: str) -> str:
    """One key as people know it: "question_mark" is "?"."""
    return _GLYPHS.get(key, key)


def _rows(place: Place, section: str, *rows: tuple[str, ...]) -> tuple[Key, ...]:
    """Keys of one place under one heading, each as keys, action, what it does, and its hint."""
    return tuple(
        Key(
            keys=tuple(keys.split()),
            action=action,
            does=does,
            section=section,
            place=place,
            hint=hint[0] if hint else "",
            urgent=action in _FOCUSING,
        )
        for keys, action, does, *hint in rows
    )


_FOCUSING = {
    "search",
    "panel",
    "screen.view",
    "screen.leave",
    "screen.keep_search",
    "screen.drop_search",
}

KEYS: tuple[Key, ...] = (
    *_rows(
        "anywhere",
        "Explorer",
        ("question_mark", "help", "show this page", "help"),
        ("q", "quit", "quit", "quit"),
        ("ctrl+p", "app.command_palette", "commands and themes"),
    ),
    *_rows(
        "anywhere",
        "Search",
        ("slash", "search", "search names and classes", "search"),
        ("n", "match(1)", "go to the next match"),
        ("N", "match(-1)", "go to the match before"),
        ("escape", "clear_search", "clear the search"),
    ),
    *_rows(
        "search",
        "While typing a search",
        ("enter", "screen.keep_search", "keep the matches", "keep"),
        ("escape", "screen.drop_search", "clear, and go back", "clear"),
        ("down", "screen.match(1)", "go to the next match", "next"),
        ("up", "screen.match(-1)", "go to the match before", "previous"),
    ),
    *_rows(
        "tree",
        "Move",
        ("up k", "move(-1)", "go up"),
        ("down j", "move(1)", "go down"),
        ("left h", "close", "fold, or go to the parent"),
        ("right l", "open", "unfold, go in, or view it"),
        ("pageup", "page(-1)", "go up a page"),
        ("pagedown", "page(1)", "go down a page"),
        ("home", "edge(-1)", "go to the top"),
        ("end", "edge(1)", "go to the end"),
        ("shift+left", "pan(-1)", "see columns further left"),
        ("shift+right", "pan(1)", "see columns further right"),
    ),
    *_rows(
        "tree",
        "Fold or unfold",
        ("space", "fold('one')", "the module", "fold"),
        ("z", "fold('branch')", "the module and all below it", "branch"),
        ("Z", "fold('all')", "the whole tree", "all"),
        ("s", "fold('siblings')", "the module and those beside it"),
        ("S", "fold('sibling branches')", "the same, and all below them"),
        ("o", "fold('class')", "all modules of its class", "same class"),
        ("O", "fold('class branches')", "the same, and all below them"),
    ),
    *_rows(
        "details",
        "Details",
        ("up k", "scroll_up", "scroll up"),
        ("down j", "scroll_down", "scroll down"),
        ("pageup", "page_up", "scroll up a page"),
        ("pagedown", "page_down", "scroll down a page"),
        ("home", "scroll_home", "scroll to the top"),
        ("end", "scroll_end", "scroll to the end"),
        ("left h escape", "screen.leave", "go back to the tree", "back"),
    ),
    *_rows("tree", "Panels", ("enter", "screen.view", "view the module's details")),
    *_rows(
        "anywhere",
        "Panels",
        ("tab", "panel", "change panel", "panel"),
        ("less_than_sign", "resize(1)", "more room for the details"),
        ("greater_than_sign", "resize(-1)", "less room for the details"),
    ),
    *_rows(
        "anywhere",
        "Show or hide",
        ("p", "column('parameters')", "parameter counts", "params"),
        ("b", "column('memory')", "memory", "memory"),
        ("t", "column('shapes')", "parameter shapes", "shapes"),
        ("d", "column('device')", "device and data type", "device"),
    ),
)


def bindings(place: Place) -> list[BindingType]:
    """The keys of one place as Textual takes them."""
    return [
        Binding(key, entry.action, entry.does, key_display=glyph(key), priority=entry.urgent)
        for entry in KEYS
        if entry.place == place
        for key in entry.keys
    ]


def hints(places: Collection[Place]) -> list[Key]:
    """The keys for the footer that act in one of these places."""
    return [key for key in KEYS if key.hint and key.place in places]


def sections() -> dict[str, list[Key]]:
    """All keys under the headings of the help."""
    found: dict[str, list[Key]] = {}
    for key in KEYS:
        found.setdefault(key.section, []).append(key)
    return found

"""Every key of the explorer: one table for bindings, help, footer and docs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from textual.binding import Binding, BindingType

Place = str
"""Where the focus is: "anywhere", "tree", "search", "labels", or "panel:…" with its name."""

_GLYPHS = {
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
    "escape": "Esc",
    "enter": "Enter",
    "tab": "Tab",
    "shift+tab": "Shift+Tab",
    "shift+left": "Shift+←",
    "shift+right": "Shift+→",
    "pageup": "PgUp",
    "pagedown": "PgDn",
    "home": "Home",
    "end": "End",
    "space": "Space",
    "ctrl+p": "Ctrl+P",
    "f11": "F11",
    "slash": "/",
    "question_mark": "?",
    "exclamation_mark": "!",
    "ampersand": "&",
    "comma": ",",
    "full_stop": ".",
    "backspace": "⌫",
    "less_than_sign": "<",
    "greater_than_sign": ">",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One thing a key does."""

    keys: tuple[str, ...]
    """As Textual names them; any of them does it."""
    action: str
    """"{key}" in it stands for the key that was pressed."""
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
        if self.keys == DIGITS:
            return "1–9 0"
        return " ".join(glyph(key) for key in self.keys)


DIGITS = tuple("1234567890")


def glyph(key: str) -> str:
    """One key as people know it: "question_mark" is "?"."""
    return _GLYPHS.get(key, key)


def rows(place: Place, section: str, *rows: tuple[str, ...]) -> tuple[Key, ...]:
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
    "panel(1)",
    "panel(-1)",
    "screen.unfold_or_view",
    "screen.leave",
    "screen.keep_search",
    "screen.drop_search",
    "screen.filter",
}

KEYS: tuple[Key, ...] = (
    *rows(
        "anywhere",
        "Explorer",
        ("question_mark", "help", "Show all keys", "help"),
        ("q", "quit", "Quit", "quit"),
        ("ctrl+p", "app.command_palette", "Find a command or a module"),
        ("x", "export", "Export the table"),
        ("y", "copy_path", "Copy the path of the module"),
        ("e", "edit", "Open the source in $EDITOR"),
    ),
    *rows(
        "anywhere",
        "Search",
        ("slash", "search", "Search; re: for a regex", "search"),
        ("n", "match(1)", "Next match"),
        ("N", "match(-1)", "Previous match"),
        ("ampersand", "filter", "Show only matches, or all"),
        ("escape", "clear_search", "Clear the search"),
    ),
    *rows(
        "search",
        "While typing a search",
        ("enter", "screen.keep_search", "Keep the matches", "keep"),
        ("escape", "screen.drop_search", "Clear, and go back", "clear"),
        ("tab", "screen.filter", "Show only matches, or all", "filter"),
        ("down", "screen.match(1)", "Next match", "next"),
        ("up", "screen.match(-1)", "Previous match", "previous"),
    ),
    *rows(
        "tree",
        "Move",
        ("up k", "move(-1)", "Up"),
        ("down j", "move(1)", "Down"),
        ("left h", "close", "Fold, or go to the parent"),
        ("right l", "open", "Unfold, go in, or go to the panel"),
        ("pageup", "page(-1)", "Page up"),
        ("pagedown", "page(1)", "Page down"),
        ("home", "edge(-1)", "First row"),
        ("end", "edge(1)", "Last row"),
        ("shift+left", "pan(-1)", "Scroll columns left"),
        ("shift+right", "pan(1)", "Scroll columns right"),
        ("J", "screen.jump_to_twin", "Go to where it is shared or tied"),
    ),
    *rows(
        "tree",
        "Fold or unfold",
        ("space", "fold('one')", "Fold the module", "fold"),
        ("enter", "screen.unfold_or_view", "Fold the module, or view a leaf"),
        ("z", "fold('branch')", "Fold the whole branch", "branch"),
        ("Z", "fold('all')", "Fold the whole tree", "all"),
        ("s", "fold('siblings')", "Fold the siblings"),
        ("S", "fold('sibling branches')", "Fold the siblings' branches"),
        ("o", "fold('class')", "Fold all of this class", "same class"),
        ("O", "fold('class branches')", "Fold all branches of this class"),
        ("B", "screen.fold_repeats", "Group repeats: 12 × Block"),
    ),
    *rows(
        "tree",
        "Sort",
        (" ".join(DIGITS), "sort({key})", "Sort by column 1–9; 0 = model order"),
    ),
    *rows(
        "anywhere",
        "Panels",
        ("tab", "panel(1)", "Next panel", "panel"),
        ("shift+tab", "panel(-1)", "Previous panel"),
        ("less_than_sign", "resize(1)", "Widen the panels"),
        ("greater_than_sign", "resize(-1)", "Narrow the panels"),
        ("M f11", "maximize", "Maximize the panel, or the tree"),
    ),
    *rows(
        "anywhere",
        "Show or hide columns",
        ("t", "column('shapes')", "Parameter shapes", "shapes"),
        ("b", "column('size')", "Memory", "memory"),
        ("p", "column('parameters')", "Parameter counts", "params"),
        ("d", "column('device')", "Device and data type", "device"),
        ("f", "column('flow')", "Forward: shapes, dtypes, calls", "forward"),
        ("m", "column('memory')", "Memory in detail"),
        ("r", "column('time')", "Run time"),
        ("F", "column('flops')", "FLOPs"),
        ("g", "column('gradients')", "Gradients over steps"),
        ("A", "align", "Align the columns"),
        ("L", "labels", "Choose and order the columns"),
    ),
    *rows(
        "labels",
        "Label panel",
        ("up k", "move(-1)", "Up"),
        ("down j", "move(1)", "Down"),
        ("space enter", "choose", "Show or hide the column", "toggle"),
        ("J", "shift(1)", "Move it down", "down"),
        ("K", "shift(-1)", "Move it up", "up"),
        ("T", "shift(-99)", "Move it to the top"),
        ("B", "shift(99)", "Move it to the bottom"),
        ("escape", "screen.labels", "Close the panel", "close"),
    ),
)


def bindings(place: Place, keys: Iterable[Key] = KEYS) -> list[BindingType]:
    """The keys of one place as Textual takes them."""
    return [
        Binding(
            key,
            entry.action.replace("{key}", key),
            entry.does,
            key_display=glyph(key),
            priority=entry.urgent,
        )
        for entry in keys
        if entry.place == place
        for key in entry.keys
    ]


_FOOTER = ("help", "quit", "search", "fold('one')", "panel(1)", "toggle_panel(", "fold('all')")
"""The first actions of the footer, as they begin; the others follow in the order of the table."""


def footer_order(key: Key) -> int:
    """Where a key of the tree stands in the footer."""
    found = (at for at, action in enumerate(_FOOTER) if key.action.startswith(action))
    return next(found, len(_FOOTER))


def hints(places: Collection[Place], keys: Iterable[Key] = KEYS) -> list[Key]:
    """The keys for the footer that act in one of these places."""
    return [key for key in keys if key.hint and key.place in places]


def sections(keys: Iterable[Key] = KEYS) -> dict[str, list[Key]]:
    """All keys under the headings of the help."""
    found: dict[str, list[Key]] = {}
    for key in keys:
        found.setdefault(key.section, []).append(key)
    return found

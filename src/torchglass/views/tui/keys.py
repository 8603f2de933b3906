"""Every key of the explorer: the one table that bindings, help, footer and docs are made from."""

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
        ("question_mark", "help", "show this page", "help"),
        ("q", "quit", "quit", "quit"),
        ("ctrl+p", "app.command_palette", "every command, every module, themes"),
        ("x", "export", "write what is shown to a file"),
        ("y", "copy_path", "copy the path of the module"),
        ("e", "edit", "open its source in $EDITOR"),
    ),
    *rows(
        "anywhere",
        "Search",
        ("slash", "search", "search as you type; re: for a regex", "search"),
        ("n", "match(1)", "go to the next match"),
        ("N", "match(-1)", "go to the match before"),
        ("ampersand", "filter", "matches alone, or the whole tree"),
        ("escape", "clear_search", "clear the search"),
    ),
    *rows(
        "search",
        "While typing a search",
        ("enter", "screen.keep_search", "keep the matches", "keep"),
        ("escape", "screen.drop_search", "clear, and go back", "clear"),
        ("tab", "screen.filter", "matches alone, or the whole tree", "filter"),
        ("down", "screen.match(1)", "go to the next match", "next"),
        ("up", "screen.match(-1)", "go to the match before", "previous"),
    ),
    *rows(
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
        ("J", "screen.jump_to_twin", "go where it is shared or tied"),
    ),
    *rows(
        "tree",
        "Fold or unfold",
        ("space", "fold('one')", "the module", "fold"),
        ("enter", "screen.unfold_or_view", "the module; on a leaf, go to the panel"),
        ("z", "fold('branch')", "the module and all below it", "branch"),
        ("Z", "fold('all')", "the whole tree", "all"),
        ("s", "fold('siblings')", "the module and those beside it"),
        ("S", "fold('sibling branches')", "the same, and all below them"),
        ("o", "fold('class')", "all modules of its class", "same class"),
        ("O", "fold('class branches')", "the same, and all below them"),
        ("B", "screen.fold_repeats", "repeated blocks, to “12 × Block”"),
    ),
    *rows("tree", "Sort", (" ".join(DIGITS), "sort({key})", "by the first … ninth column; 0: not")),
    *rows(
        "anywhere",
        "Panels",
        ("tab", "panel(1)", "next panel", "panel"),
        ("shift+tab", "panel(-1)", "panel before"),
        ("less_than_sign", "resize(1)", "more room for the panels"),
        ("greater_than_sign", "resize(-1)", "less room for the panels"),
        ("M f11", "maximize", "the panel, or the tree, on the whole screen"),
    ),
    *rows(
        "anywhere",
        "Show or hide",
        ("t", "column('shapes')", "parameter shapes", "shapes"),
        ("b", "column('size')", "memory sizes", "memory"),
        ("p", "column('parameters')", "parameter counts", "params"),
        ("d", "column('device')", "device and data type", "device"),
        ("f", "column('flow')", "forward: shapes, dtypes, calls", "forward"),
        ("m", "column('memory')", "memory in detail, also of the run"),
        ("r", "column('time')", "runtime"),
        ("F", "column('flops')", "FLOPs"),
        ("g", "column('gradients')", "gradients over steps"),
        ("A", "align", "alignment in columns"),
        ("L", "labels", "the label panel: choose and order"),
    ),
    *rows(
        "labels",
        "Label panel",
        ("up k", "move(-1)", "go up"),
        ("down j", "move(1)", "go down"),
        ("space enter", "choose", "show or hide the component", "toggle"),
        ("J", "shift(1)", "move it down in the labels", "down"),
        ("K", "shift(-1)", "move it up in the labels", "up"),
        ("T", "shift(-99)", "move it to the top"),
        ("B", "shift(99)", "move it to the bottom"),
        ("escape", "screen.labels", "close the panel", "close"),
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


def hints(places: Collection[Place], keys: Iterable[Key] = KEYS) -> list[Key]:
    """The keys for the footer that act in one of these places."""
    return [key for key in keys if key.hint and key.place in places]


def sections(keys: Iterable[Key] = KEYS) -> dict[str, list[Key]]:
    """All keys under the headings of the help."""
    found: dict[str, list[Key]] = {}
    for key in keys:
        found.setdefault(key.section, []).append(key)
    return found

"""Every key of the explorer: one table for bindings, help, footer and docs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from textual.binding import Binding, BindingType
from textual.keys import key_to_character

Place = str
"""Where the focus is: "anywhere", "tree", "search", "labels", "panel" or "panel:…"."""

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
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyEntry:
    """What one or several keys do."""

    keys: tuple[str, ...]
    """As Textual names them; each of them runs the action."""
    action: str
    """"{key}" stands for the key that was pressed."""
    does: str
    """The text of the help."""
    section: str
    """The heading in the help."""
    place: Place
    """Where the focus has to be for it to act."""
    hint: str = ""
    """The word beside it in the footer; "" leaves it out."""
    urgent: bool = False
    """Whether it moves the focus, and has to run before the next key finds its target."""

    @property
    def label(self) -> str:
        """Its keys as they are printed: "↑ k"."""
        if self.keys[0].isdecimal():
            return "1–9 0"
        return " ".join(glyph(key) for key in self.keys)


def glyph(key: str) -> str:
    """A key as it is printed: "question_mark" is "?"."""
    return _GLYPHS.get(key) or key_to_character(key) or key


_FOCUSING = {
    *("search", "panel(1)", "panel(-1)", "screen.unfold_or_view", "screen.leave"),
    *("screen.keep_search", "screen.drop_search", "screen.filter"),
}

_TABLE: Mapping[tuple[Place, str], tuple[tuple[str, ...], ...]] = {
    ("anywhere", "Explorer"): (
        ("question_mark", "help", "Show all keys", "help"),
        ("q", "quit", "Quit", "quit"),
        ("ctrl+p", "app.command_palette", "Find a command or module"),
        ("x", "export", "Export the table"),
        ("D", "diagram", "Write the block diagram as SVG"),
        ("y", "copy_path", "Copy the module path"),
        ("e", "edit", "Open the source in $EDITOR"),
    ),
    ("anywhere", "Search"): (
        ("slash", "search", "Search; re: for a regex", "search"),
        ("n", "match(1)", "Next match or change"),
        ("N", "match(-1)", "Previous match or change"),
        ("ampersand", "filter", "Toggle matches or changes only"),
        ("escape", "clear_search", "Clear the search"),
    ),
    ("search", "While typing a search"): (
        ("enter", "screen.keep_search", "Keep the matches", "keep"),
        ("escape", "screen.drop_search", "Cancel the search", "clear"),
        ("tab", "screen.filter", "Toggle matches only", "filter"),
        ("down", "screen.match(1)", "Next match", "next"),
        ("up", "screen.match(-1)", "Previous match", "previous"),
    ),
    ("tree", "Move"): (
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
        ("J", "screen.jump_to_twin", "Next use of a shared module or tensor"),
    ),
    ("tree", "Fold or unfold"): (
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
    ("tree", "Sort"): (
        ("1 2 3 4 5 6 7 8 9 0", "sort({key})", "Sort by column 1–9; 0 = model order"),
    ),
    ("anywhere", "Panels"): (
        ("tab", "panel(1)", "Next panel", "panel"),
        ("shift+tab", "panel(-1)", "Previous panel"),
        ("less_than_sign", "resize(1)", "Widen the panels"),
        ("greater_than_sign", "resize(-1)", "Narrow the panels"),
        ("M f11", "maximize", "Maximize the panel or tree"),
    ),
    ("anywhere", "Show or hide columns"): (
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
    ("labels", "Label panel"): (
        ("up k", "line(-1)", "Up"),
        ("down j", "line(1)", "Down"),
        ("space enter", "choose", "Toggle the column", "toggle"),
        ("J", "shift(1)", "Move it down", "down"),
        ("K", "shift(-1)", "Move it up", "up"),
        ("T", "shift(-99)", "Move it to the top"),
        ("B", "shift(99)", "Move it to the bottom"),
        ("escape", "screen.labels", "Close the panel", "close"),
    ),
    ("panel", "In a panel"): (
        ("up k", "line(-1)", "Up"),
        ("down j", "line(1)", "Down"),
        ("pageup", "screenful(-1)", "Page up"),
        ("pagedown", "screenful(1)", "Page down"),
        ("home", "end(-1)", "First line"),
        ("end", "end(1)", "Last line"),
        ("shift+left", "pan(-1)", "Scroll left"),
        ("shift+right", "pan(1)", "Scroll right"),
        ("escape left h", "back", "Cancel, close, or go back to the tree", "back"),
    ),
    ("panel:code", "Code"): (
        ("f", "forward", "Go to forward", "forward"),
        ("t", "top", "Go to the class", "class"),
        ("o", "whole", "Toggle the whole file", "file"),
    ),
    ("panel:ancestors", "Code"): (
        ("right_square_bracket", "ancestor(1)", "Go to the base class", "base"),
        ("left_square_bracket", "ancestor(-1)", "Back to the subclass"),
    ),
    ("panel:lines run", "Code"): (("enter", "choose", "Select the op of the line", "op"),),
    ("panel:attributes", "Attributes"): (
        ("right l", "unfold", "Open, or call a property"),
        ("left h", "fold", "Close, or go to the parent"),
        ("enter space", "choose", "Open: tensors and texts here, modules in the tree", "open"),
        ("full_stop", "everything", "Toggle private names and methods", "private"),
        ("r", "reload", "Reload", "reload"),
    ),
    ("panel:picture", "Tensor viewer"): (
        (
            "enter space",
            "view('next_mode')",
            "Next view: values, picture, all slices",
            "picture",
        ),
    ),
    ("panel:colors", "Tensor viewer"): (
        ("r", "view('turn_colors')", "Toggle RGB or single channels", "RGB"),
    ),
    ("panel:slices", "Tensor viewer"): (
        ("right_square_bracket", "view('browse', 1)", "Next slice", "next"),
        ("left_square_bracket", "view('browse', -1)", "Previous slice", "previous"),
        ("comma", "view('next_dimension')", "Browse the next dimension", "dimension"),
        ("t", "view('turn')", "Change the row and column axes", "axes"),
    ),
    ("panel:tensor", "Tensor viewer"): (
        ("s", "slice", "Enter a slice: [0, :, 3:7]", "slice"),
        ("left h", "view('pan', -1)", "Scroll columns left"),
        ("right l", "view('pan', 1)", "Scroll columns right"),
    ),
    ("panel:text", "Text"): (("left h", "back", "Close"),),
    ("panel:calls", "Performance"): (
        ("d space", "differences", "Toggle differences between calls", "differences"),
    ),
    ("panel:findings", "Findings"): (
        ("enter", "choose", "Go to the module", "go there"),
        ("space right l", "tell", "Toggle the evidence", "more"),
    ),
    ("panel:values", "Findings"): (("r", "check", "Check the weights for NaN and Inf", "check"),),
    ("panel:overview", "Overview"): (
        ("enter", "choose", "Go to the module, its series and the step", "go there"),
        ("left h", "step(-1)", "Previous step of the map"),
        ("right l", "step(1)", "Next step of the map"),
        ("shift+left", "step(-10)", "10 cells to the left"),
        ("shift+right", "step(10)", "10 cells to the right"),
        ("space", "statistic", "Next: gradients, activations, updates, dead", "statistic"),
        ("z", "zoom", "Toggle a row for each module", "zoom"),
    ),
    ("panel:reports", "Reports"): (("enter", "choose", "Go to the module", "go there"),),
    ("panel:tensor flow", "Tensor flow"): (
        ("enter right l", "choose", "Open the op", "open"),
        ("left h", "return", "Back to the previous op, or to the list", "back"),
        ("left_square_bracket", "relative(-1)", "Go to the first input op", "parent"),
        ("right_square_bracket", "relative(1)", "Go to the first op that uses it", "child"),
        ("g", "module", "Go to the op's module in the tree", "module"),
    ),
    ("panel:quantities", "Gradient flow"): (
        ("space", "quantity", "Next: gradients, updates, output gradients", "quantity"),
    ),
    ("panel:gradient flow", "Gradient flow"): (
        ("enter", "choose", "Go to the layer", "go there"),
        ("s", "sort", "Toggle largest first", "sort"),
    ),
    ("panel:percentiles", "Series"): (
        ("space", "bands", "Toggle percentiles or range and mean", "bands"),
    ),
}
"""By place and heading of the help: keys, action, help text, and the hint of the footer."""

_ENTRIES = [
    KeyEntry(
        keys=tuple(keys.split()),
        action=action,
        does=does,
        section=section,
        place=place,
        hint=hint[0] if hint else "",
        urgent=action in _FOCUSING,
    )
    for (place, section), rows in _TABLE.items()
    for keys, action, does, *hint in rows
]
KEYS = tuple(entry for entry in _ENTRIES if not entry.place.startswith("panel"))
PANEL_KEYS = tuple(entry for entry in _ENTRIES if entry.place.startswith("panel"))


def bindings(*places: Place, keys: Iterable[KeyEntry] = (*KEYS, *PANEL_KEYS)) -> list[BindingType]:
    """The keys of some places as Textual bindings."""
    return [
        Binding(
            key,
            entry.action.replace("{key}", key),
            entry.does,
            key_display=glyph(key),
            priority=entry.urgent,
        )
        for place in places
        for entry in keys
        if entry.place == place
        for key in entry.keys
    ]


_FOOTER = ("help", "quit", "search", "fold('one')", "panel(1)", "toggle_panel(", "fold('all')")
"""How the first actions of the footer begin; the others follow in the order of the table."""


def footer_order(key: KeyEntry) -> int:
    """The rank of a key in the footer of the tree."""
    found = (at for at, action in enumerate(_FOOTER) if key.action.startswith(action))
    return next(found, len(_FOOTER))


def hints(places: Collection[Place], keys: Iterable[KeyEntry]) -> list[KeyEntry]:
    """The keys in the footer that act in one of these places."""
    return [key for key in keys if key.hint and key.place in places]


_OF_COMPARISON = {"match(1)": "next change", "filter": "changed only"}


def hints_of_comparison(keys: Iterable[KeyEntry]) -> list[KeyEntry]:
    """The keys that go through the changes of a comparison, for the footer."""
    return [
        replace(key, hint=_OF_COMPARISON[key.action])
        for key in keys
        if key.action in _OF_COMPARISON
    ]


def sections(keys: Iterable[KeyEntry]) -> dict[str, list[KeyEntry]]:
    """All keys by heading of the help."""
    found: dict[str, list[KeyEntry]] = {}
    for key in keys:
        found.setdefault(key.section, []).append(key)
    return found

"""The keys of the panels."""

from __future__ import annotations

from textual.binding import BindingType

from torchglass.views.tui.keys import Key, bindings, rows

PANEL_KEYS: tuple[Key, ...] = (
    *rows(
        "panel",
        "In a panel",
        ("up k", "line(-1)", "Up"),
        ("down j", "line(1)", "Down"),
        ("pageup", "screenful(-1)", "Page up"),
        ("pagedown", "screenful(1)", "Page down"),
        ("home", "end(-1)", "First line"),
        ("end", "end(1)", "Last line"),
        ("shift+left", "pan(-1)", "Scroll left"),
        ("shift+right", "pan(1)", "Scroll right"),
        ("escape", "back", "Cancel, close, or go back to the tree", "back"),
    ),
    *rows("panel:details", "Details", ("left h", "back", "Back to the tree")),
    *rows(
        "panel:code",
        "Code",
        ("f", "forward", "Go to forward", "forward"),
        ("t", "top", "Go to the class", "class"),
        ("o", "whole", "Show the whole file, or the class", "file"),
    ),
    *rows(
        "panel:ancestors",
        "Code",
        ("right_square_bracket", "ancestor(1)", "Go to the base class", "base"),
        ("left_square_bracket", "ancestor(-1)", "Back to the class itself"),
    ),
    *rows("panel:lines run", "Code", ("enter", "choose", "Select the op of the line", "op")),
    *rows("panel:code", "Code", ("left h", "back", "Back to the tree")),
    *rows(
        "panel:attributes",
        "Attributes",
        ("right l", "unfold", "Open, or call a property"),
        ("left h", "fold", "Close, or go to the parent"),
        ("enter space", "choose", "Open: tensors and texts here, modules in the tree", "open"),
        ("full_stop", "everything", "Show private names and methods", "private"),
        ("r", "reload", "Reload", "reload"),
    ),
    *rows(
        "panel:picture",
        "Tensor viewer",
        ("enter space", "mode", "Values, picture, or all slices as pictures", "picture"),
    ),
    *rows(
        "panel:colours",
        "Tensor viewer",
        ("r", "colours", "One RGB picture, or channel by channel", "RGB"),
    ),
    *rows(
        "panel:slices",
        "Tensor viewer",
        ("right_square_bracket", "browse(1)", "Next slice", "next"),
        ("left_square_bracket", "browse(-1)", "Previous slice", "previous"),
        ("comma", "dimension", "Browse another dimension", "dimension"),
        ("t", "turn", "Choose the dimensions of rows and columns", "axes"),
    ),
    *rows(
        "panel:tensor",
        "Tensor viewer",
        ("s", "slice", "Enter a slice: [0, :, 3:7]", "slice"),
        ("left h", "columns(-1)", "Scroll columns left"),
        ("right l", "columns(1)", "Scroll columns right"),
    ),
    *rows("panel:text", "Text", ("left h", "back", "Close")),
    *rows(
        "panel:calls",
        "Performance",
        ("d space", "differences", "Show calls, or differences between calls", "differences"),
    ),
    *rows("panel:performance", "Performance", ("left h", "back", "Back to the tree")),
    *rows(
        "panel:findings",
        "Findings",
        ("enter", "choose", "Go to the module", "go there"),
        ("space right l", "tell", "Show or hide the evidence", "more"),
        ("left h", "back", "Back to the tree"),
    ),
    *rows("panel:explanation", "Explanation", ("left h", "back", "Back to the tree")),
    *rows("panel:values", "Findings", ("r", "check", "Check the weights for NaN and Inf", "check")),
    *rows(
        "panel:tensor flow",
        "Tensor flow",
        ("enter right l", "choose", "Open the op", "open"),
        ("left h", "return", "Back to the previous op, or to the list", "back"),
        ("left_square_bracket", "relative(-1)", "Go to the first input op", "parent"),
        ("right_square_bracket", "relative(1)", "Go to the first op that uses it", "child"),
        ("g", "module", "Go to the op's module in the tree", "module"),
    ),
    *rows(
        "panel:quantities",
        "Gradient flow",
        (
            "space",
            "quantity",
            "Gradients, updates, or output gradients",
            "quantity",
        ),
    ),
    *rows(
        "panel:gradient flow",
        "Gradient flow",
        ("enter", "choose", "Go to the layer", "go there"),
        ("s", "sort", "Model order, or largest first", "sort"),
        ("left h", "back", "Back to the tree"),
    ),
    *rows(
        "panel:percentiles",
        "Series",
        ("space", "bands", "Percentiles, or range and mean", "bands"),
    ),
    *rows("panel:series", "Series", ("left h", "back", "Back to the tree")),
)


def panel_bindings(*places: str) -> list[BindingType]:
    """The keys of some places as Textual takes them."""
    return [binding for place in places for binding in bindings(place, PANEL_KEYS)]

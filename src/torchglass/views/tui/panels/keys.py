"""The keys of the panels, for their bindings, the footer and the help alike."""

from __future__ import annotations

from textual.binding import BindingType

from torchglass.views.tui.keys import Key, bindings, rows

PANEL_KEYS: tuple[Key, ...] = (
    *rows(
        "panel",
        "In a panel",
        ("up k", "line(-1)", "go up a line"),
        ("down j", "line(1)", "go down a line"),
        ("pageup", "screenful(-1)", "go up a page"),
        ("pagedown", "screenful(1)", "go down a page"),
        ("home", "end(-1)", "go to the top"),
        ("end", "end(1)", "go to the end"),
        ("shift+left", "pan(-1)", "see what is further left"),
        ("shift+right", "pan(1)", "see what is further right"),
        ("escape", "back", "stop, close, or go back to the tree", "back"),
    ),
    *rows("panel:details", "Details", ("left h", "back", "go back to the tree")),
    *rows(
        "panel:code",
        "Code",
        ("f", "forward", "go to forward", "forward"),
        ("t", "top", "go to where the class begins", "class"),
        ("o", "whole", "the whole file, or the class alone", "file"),
    ),
    *rows(
        "panel:ancestors",
        "Code",
        ("right_square_bracket", "ancestor(1)", "the class it inherits from", "base"),
        ("left_square_bracket", "ancestor(-1)", "back to the class itself"),
    ),
    *rows("panel:lines run", "Code", ("enter", "choose", "pick the op that the line ran", "op")),
    *rows("panel:code", "Code", ("left h", "back", "go back to the tree")),
    *rows(
        "panel:attributes",
        "Attributes",
        ("right l", "unfold", "open, or call a property"),
        ("left h", "fold", "close, or go to what holds it"),
        ("enter space", "choose", "open: tensors and texts here, modules in the tree", "open"),
        ("full_stop", "everything", "show or hide private names and methods", "private"),
        ("r", "reload", "read it anew", "reload"),
    ),
    *rows(
        "panel:picture",
        "Tensor viewer",
        ("enter space", "mode", "numbers, picture, or all slices as pictures", "picture"),
    ),
    *rows(
        "panel:colours",
        "Tensor viewer",
        ("r", "colours", "red, green and blue as one picture, or channel by channel", "RGB"),
    ),
    *rows(
        "panel:slices",
        "Tensor viewer",
        ("right_square_bracket", "browse(1)", "the next slice", "next"),
        ("left_square_bracket", "browse(-1)", "the slice before", "before"),
        ("comma", "dimension", "browse through another dimension", "dimension"),
        ("t", "turn", "see other dimensions as rows and columns", "axes"),
    ),
    *rows(
        "panel:tensor",
        "Tensor viewer",
        ("s", "slice", "type a slice, [0, :, 3:7]; it is kept for the tensor", "slice"),
        ("left h", "columns(-1)", "columns further left"),
        ("right l", "columns(1)", "columns further right"),
    ),
    *rows("panel:text", "Text", ("left h", "back", "close it")),
    *rows(
        "panel:calls",
        "Performance",
        ("d space", "differences", "calls, or how each differs from the one before", "differences"),
    ),
    *rows("panel:performance", "Performance", ("left h", "back", "go back to the tree")),
    *rows(
        "panel:findings",
        "Findings",
        ("enter", "choose", "go to where it is", "go there"),
        ("space right l", "tell", "tell all about it, or less", "more"),
        ("left h", "back", "go back to the tree"),
    ),
    *rows("panel:explanation", "Explanation", ("left h", "back", "go back to the tree")),
    *rows("panel:values", "Findings", ("r", "check", "check the weights for NaN and Inf", "check")),
    *rows(
        "panel:tensor flow",
        "Tensor flow",
        ("enter right l", "choose", "walk to the op, or open it", "walk"),
        ("left h", "return", "back to where it was walked from, or to the list", "return"),
        ("left_square_bracket", "relative(-1)", "walk to the op whose result it used", "parent"),
        ("right_square_bracket", "relative(1)", "walk to the op that used its result", "child"),
        ("g", "module", "go to the op's module in the tree", "module"),
    ),
    *rows(
        "panel:quantities",
        "Gradient flow",
        (
            "space",
            "quantity",
            "gradients, the updates they make, or gradients of outputs",
            "quantity",
        ),
    ),
    *rows(
        "panel:gradient flow",
        "Gradient flow",
        ("enter", "choose", "go to the layer", "go there"),
        ("s", "sort", "in the order of the model, or the largest first", "sort"),
        ("left h", "back", "go back to the tree"),
    ),
    *rows(
        "panel:percentiles",
        "Series",
        ("space", "bands", "percentiles, or the range and the mean", "bands"),
    ),
    *rows("panel:series", "Series", ("left h", "back", "go back to the tree")),
)


def panel_bindings(*places: str) -> list[BindingType]:
    """The keys of some places as Textual takes them."""
    return [binding for place in places for binding in bindings(place, PANEL_KEYS)]

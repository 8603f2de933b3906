"""How the width is shared out among names and columns."""

from __future__ import annotations

import pytest

from tests.unit.views.tui.runs import tiny
from torchglass.records.run import RunRecord
from torchglass.views.tui.explorer_state import ExplorerState, count_model
from torchglass.views.tui.styled_text import Piece
from torchglass.views.tui.tree_columns import BY_ID, ColumnChoice
from torchglass.views.tui.tree_lines import ColumnLayout, lay_out


@pytest.fixture
def state() -> ExplorerState:
    state = ExplorerState(RunRecord(name="run", created_ns=0), tiny())
    state.contents = count_model(state.model)
    return state


def lay(
    state: ExplorerState, names: int, width: int, *ids: str, aligned: bool = True
) -> ColumnLayout:
    columns = [BY_ID[one] for one in ids] if ids else ColumnChoice().columns(state)
    widths = [column.width(state) for column in columns]
    return lay_out(columns, widths, names, width, aligned=aligned)


def text(pieces: list[Piece]) -> str:
    return "".join(text for text, _ in pieces)


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_headers_and_cells_of_every_module_have_the_same_width(
    state: ExplorerState, width: int
) -> None:
    layout = lay(state, 30, width)

    lengths = {len(text(layout.cells(state, [module]))) for module in state.model.modules}

    assert lengths == {len(text(layout.header())), layout.columns_width}


def test_names_get_the_remaining_width_but_no_more_than_needed(state: ExplorerState) -> None:
    assert lay(state, 30, 200).name_width == 30
    assert lay(state, 90, 80).name_width == 36
    assert lay(state, 90, 4).name_width == 12


def test_column_spacing_grows_with_the_available_width(state: ExplorerState) -> None:
    assert lay(state, 30, 200).gap == 2
    assert lay(state, 30, 80).gap == 1


def test_horizontal_scrolling_stops_at_each_column(state: ExplorerState) -> None:
    layout = lay(state, 30, 80)

    assert layout.beside(0, 1) == layout.starts[1]
    assert layout.beside(layout.starts[2], -1) == layout.starts[1]
    assert layout.beside(0, -1) == 0


def test_a_newly_shown_column_scrolls_into_view(state: ExplorerState) -> None:
    layout = lay(state, 20, 60, "class", "params", "params share", "shapes")
    room = 60 - layout.name_width
    shapes = layout.starts[-2]

    assert layout.showing("class", 0, room) == 0
    assert layout.showing("shapes", 0, room) == shapes


def test_a_number_is_omitted_rather_than_truncated(state: ExplorerState) -> None:
    layout = lay(state, 20, 60, "class", "params", "shapes")
    params, shapes = layout.starts[1:3]

    assert layout.uncut(0, params + 3) == params
    assert layout.uncut(params, 3) == 3
    assert layout.uncut(0, shapes + 3) == shapes + 3


def test_an_empty_layout_has_no_width() -> None:
    assert ColumnLayout().columns_width == 0


def test_without_alignment_empty_cells_take_no_space(state: ExplorerState) -> None:
    layout = lay(state, 30, 80, "class", "device", "shapes", aligned=False)
    gelu = state.model.find("blocks.0.mlp.1")
    assert gelu is not None

    assert text(layout.cells(state, [gelu])) == "  GELU"


def test_a_position_maps_to_its_column(state: ExplorerState) -> None:
    layout = lay(state, 30, 80, "class", "params")

    assert layout.column_at(1) is BY_ID["class"]
    assert layout.column_at(layout.starts[1] + 1) is BY_ID["params"]
    assert layout.column_at(500) is None

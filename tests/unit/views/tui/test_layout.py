"""How the width is shared out among names and columns."""

from __future__ import annotations

import pytest

from tests.unit.views.tui.runs import tiny
from torchglass.records.run import Run
from torchglass.views.tui.cells import Piece
from torchglass.views.tui.columns import SHOWN_AT_FIRST
from torchglass.views.tui.layout import Layout, lay_out
from torchglass.views.tui.subject import Subject, measure


@pytest.fixture
def subject() -> Subject:
    subject = Subject(Run(name="run", created_ns=0), tiny())
    subject.measures = measure(subject.model)
    return subject


def text(pieces: list[Piece]) -> str:
    return "".join(text for text, _ in pieces)


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_titles_and_cells_of_every_module_take_the_same_cells(subject: Subject, width: int) -> None:
    layout = lay_out(subject, SHOWN_AT_FIRST, 30, width)

    lengths = {len(text(layout.cells(subject, module))) for module in subject.model.modules}

    assert lengths == {len(text(layout.header())), layout.columns_width}


def test_names_get_what_the_columns_leave_but_no_more_than_they_need(subject: Subject) -> None:
    assert lay_out(subject, SHOWN_AT_FIRST, 30, 200).name_width == 30
    assert lay_out(subject, SHOWN_AT_FIRST, 90, 80).name_width == 36
    assert lay_out(subject, SHOWN_AT_FIRST, 90, 4).name_width == 12


def test_columns_stand_wider_apart_where_there_is_room(subject: Subject) -> None:
    assert lay_out(subject, SHOWN_AT_FIRST, 30, 200).gap == 2
    assert lay_out(subject, SHOWN_AT_FIRST, 30, 80).gap == 1


def test_going_sideways_stops_at_each_column(subject: Subject) -> None:
    layout = lay_out(subject, SHOWN_AT_FIRST, 30, 80)

    assert layout.beside(0, 1) == layout.starts[1]
    assert layout.beside(layout.starts[2], -1) == layout.starts[1]
    assert layout.beside(0, -1) == 0


def test_a_column_that_is_turned_on_comes_into_view(subject: Subject) -> None:
    layout = lay_out(subject, frozenset({"class", "parameters", "shapes"}), 20, 60)
    room = 60 - layout.name_width
    shapes = layout.starts[-2]

    assert layout.showing("class", 0, room) == 0
    assert layout.showing("shapes", 0, room) == shapes


def test_an_empty_layout_takes_nothing() -> None:
    assert Layout().columns_width == 0

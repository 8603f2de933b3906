"""Which components the labels have, and in which order."""

from __future__ import annotations

import pytest

from tests.unit.views.tui.runs import documents, tiny
from torchglass.records.run import RunRecord
from torchglass.views.tui.explorer_state import ExplorerState, count_model
from torchglass.views.tui.tree_columns import BY_ID, COLUMNS, NAME, USUAL, ColumnChoice, Group


@pytest.fixture
def state() -> ExplorerState:
    state = ExplorerState(RunRecord(name="run", created_ns=0), tiny())
    state.contents = count_model(state.model)
    return state


def ids(labels: ColumnChoice, state: ExplorerState) -> list[str]:
    return [column.id for column in labels.columns(state)]


def test_at_first_what_is_not_recorded_has_no_column(state: ExplorerState) -> None:
    assert ids(ColumnChoice(), state) == ["class", "params", "params share", "bytes", "notes"]


def test_a_recorded_forward_brings_its_column(state: ExplorerState) -> None:
    state.take_documents({type(one): one for one in documents()})

    assert "time" in ids(ColumnChoice(), state)


def test_a_group_comes_back_as_it_was_chosen(state: ExplorerState) -> None:
    chosen = ColumnChoice().toggled("params share")

    hidden = chosen.with_group_toggled("parameters", state)
    again = hidden.with_group_toggled("parameters", state)

    assert "params" not in ids(hidden, state)
    assert again.shown == chosen.shown


def test_a_key_shows_the_usual_ones_of_its_group(state: ExplorerState) -> None:
    shown = ColumnChoice().with_group_toggled("device", state)

    assert {"device", "dtype"} <= set(ids(shown, state))


def test_a_key_brings_what_is_there_though_something_else_was_hidden(state: ExplorerState) -> None:
    state.take_documents({type(one): one for one in documents()})

    shown = ColumnChoice().with_group_toggled("flow", state)

    assert {"input", "output", "calls"} <= set(ids(shown, state))


def test_components_are_moved_within_the_ends() -> None:
    labels = ColumnChoice()

    assert labels.moved("args", 0).order[0] == "args"
    assert labels.moved("args", 99).order[-1] == "args"
    assert labels.moved("args", -5).order[0] == "args"
    assert sorted(labels.moved("args", 7).order) == sorted(labels.order)


def test_the_name_stays_first() -> None:
    assert ColumnChoice().moved("name", 5).all[0] is NAME


def test_every_component_of_the_seed_is_there() -> None:
    names = {column.name for column in (NAME, *COLUMNS)}

    assert names >= {
        "Module Name",
        "Module Type",
        "Parameter Shapes",
        "Parameter Count",
        "Memory Usage",
        "Device",
        "Input Shapes",
        "Output Shapes",
        "Data Types",
    }


def test_ids_are_one_for_each() -> None:
    assert len(BY_ID) == len(COLUMNS) + 1
    assert set(USUAL) <= BY_ID.keys()


@pytest.mark.parametrize("group", ["shapes", "size", "parameters", "device", "flow", "time"])
def test_a_key_that_is_pressed_twice_changes_nothing(state: ExplorerState, group: Group) -> None:
    state.take_documents({type(one): one for one in documents()})
    once = ColumnChoice().with_group_toggled(group, state)

    twice = once.with_group_toggled(group, state)

    assert ids(twice, state) == ids(ColumnChoice(), state)

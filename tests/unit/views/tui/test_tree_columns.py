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


def test_by_default_only_available_data_has_columns(state: ExplorerState) -> None:
    assert ids(ColumnChoice(), state) == ["class", "params", "params share", "bytes", "notes"]


def test_a_recorded_forward_adds_its_column(state: ExplorerState) -> None:
    state.take_documents({type(one): one for one in documents()})

    assert "time" in ids(ColumnChoice(), state)


def test_toggling_a_group_twice_restores_the_choice(state: ExplorerState) -> None:
    chosen = ColumnChoice().toggled("params share")

    hidden = chosen.with_group_toggled("parameters", state)
    again = hidden.with_group_toggled("parameters", state)

    assert "params" not in ids(hidden, state)
    assert again.shown == chosen.shown


def test_a_key_shows_the_default_columns_of_its_group(state: ExplorerState) -> None:
    shown = ColumnChoice().with_group_toggled("device", state)

    assert {"device", "dtype"} <= set(ids(shown, state))


def test_a_group_key_shows_all_available_columns_of_the_group(state: ExplorerState) -> None:
    state.take_documents({type(one): one for one in documents()})

    shown = ColumnChoice().with_group_toggled("flow", state)

    assert {"input", "output", "calls"} <= set(ids(shown, state))


def test_columns_cannot_be_moved_past_the_ends() -> None:
    labels = ColumnChoice()

    assert labels.moved("args", 0).order[0] == "args"
    assert labels.moved("args", 99).order[-1] == "args"
    assert labels.moved("args", -5).order[0] == "args"
    assert sorted(labels.moved("args", 7).order) == sorted(labels.order)


def test_the_name_stays_first() -> None:
    assert ColumnChoice().moved("name", 5).all[0] is NAME


def test_every_specified_component_has_a_column() -> None:
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


def test_column_ids_are_unique() -> None:
    assert len(BY_ID) == len(COLUMNS) + 1
    assert set(USUAL) <= BY_ID.keys()


@pytest.mark.parametrize("group", ["shapes", "size", "parameters", "device", "flow", "time"])
def test_pressing_a_group_key_twice_changes_nothing(state: ExplorerState, group: Group) -> None:
    state.take_documents({type(one): one for one in documents()})
    once = ColumnChoice().with_group_toggled(group, state)

    twice = once.with_group_toggled(group, state)

    assert ids(twice, state) == ids(ColumnChoice(), state)

"""What is kept of a user's choices, whatever is in the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.views.tui.runs import tiny
from torchglass.views.tui.preferences import (
    PreferenceFile,
    Preferences,
    PreferenceStore,
    from_json,
    to_json,
)
from torchglass.views.tui.tree_columns import ColumnChoice


def test_choices_are_restored_from_the_file(tmp_path: Path) -> None:
    chosen = Preferences(
        labels=ColumnChoice(shown=frozenset({"name", "class", "flops"}), aligned=False).moved(
            "flops", 0
        ),
        theme="nord",
        share=55,
        panels=("c", "i"),
        repeats_folded=True,
        filtering=False,
    ).with_folds(tiny(), ("", "blocks"))
    file = PreferenceFile(tmp_path / "deep" / "explorer.json")

    file.save(chosen)

    assert file.load() == chosen
    assert list(file.load().folds.values()) == [("", "blocks")]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", '{"share": "wide"}', '{"shown": 7}', '{"order": {}}', '{"folds": 3}'],
)
def test_an_invalid_preferences_file_is_ignored(tmp_path: Path, text: str) -> None:
    path = tmp_path / "explorer.json"
    path.write_text(text)

    assert PreferenceFile(path).load().share == Preferences().share


def test_unknown_columns_are_ignored_and_new_columns_are_added() -> None:
    kept = json.loads(to_json(Preferences()))
    kept["order"] = ["gone", "notes", "class"]
    kept["shown"] = ["gone", "class"]

    labels = from_json(json.dumps(kept)).labels

    assert labels.order[:2] == ("notes", "class")
    assert sorted(labels.order) == sorted(ColumnChoice().order)
    assert "gone" not in labels.shown
    assert "params" in labels.shown


def test_an_unwritable_preferences_folder_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    PreferenceFile(tmp_path / "file" / "explorer.json").save(Preferences())

    assert PreferenceFile(tmp_path / "file" / "explorer.json").load() == Preferences()


def test_the_number_of_remembered_models_is_limited() -> None:
    preferences = Preferences(folds={f"model {number}": ("",) for number in range(200)})

    kept = preferences.with_folds(tiny(), ("",)).folds

    assert len(kept) == 30
    assert "model 199" in kept


def test_preferences_without_a_file_live_in_memory() -> None:
    memory = PreferenceStore()

    memory.save(Preferences(share=70))

    assert memory.load().share == 70

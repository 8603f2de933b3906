"""A search that takes longer than a key may wait, by a clock of which each look is a second."""

from __future__ import annotations

import re
from functools import partial
from itertools import count

import numpy as np
import pytest
from textual.pilot import Pilot

from tests import make
from tests.unit.views.tui.runs import drive, screen_text, still
from torchglass.records.model import Model
from torchglass.views.tui.app import ExplorerApp, settle
from torchglass.views.tui.tree.search import ModuleFinder

TWICE = r"re:(\d)\.\1"
PATH = re.compile(r"(\d)\.\1")


@pytest.fixture(scope="module")
def wide() -> Model:
    """A model whose names a regular expression cannot be asked about in one go."""
    leaves: make.Tree = {str(number): {"class": "t.Leaf"} for number in range(150)}
    groups = {str(number): {"class": "t.Group", "children": leaves} for number in range(150)}
    return make.model({"class": "t.Net", "children": groups})


def matches(model: Model) -> list[int]:
    return [module.id for module in model.modules if PATH.search(module.path)]


def test_what_is_found_grows_up_to_all_of_it(wide: Model) -> None:
    found = [len(step) for step in ModuleFinder(wide).finding(TWICE)]

    assert len(found) > 2
    assert found == sorted(found)
    assert found[-1] == len(matches(wide))


def test_a_long_search_finds_what_each_name_says(wide: Model) -> None:
    assert ModuleFinder(wide).find(TWICE).tolist() == matches(wide)


def test_many_matches_in_each_name_are_each_one_match(wide: Model) -> None:
    everything = np.arange(1, len(wide.modules))

    assert ModuleFinder(wide).find(r"re:^[\d.]+$").tolist() == everything.tolist()
    assert ModuleFinder(wide).find(r"re:\d(?=\.)").tolist() == [
        module.id for module in wide.modules if "." in module.path
    ]


def test_a_letter_typed_during_a_search_begins_another_one(wide: Model) -> None:
    app = ExplorerApp(still(wide))
    searching = app.explorer.search

    async def story(pilot: Pilot[None]) -> None:
        searching.clock = partial(next, count())
        searching.begin()
        searching.find(TWICE)
        assert searching.at_work
        assert searching.count.endswith("so far")

        searching.find("group")
        await settle(app, pilot)
        assert searching.count == "1 of 150"

    drive(app, story)


def test_a_search_goes_on_after_it_was_kept(wide: Model) -> None:
    app = ExplorerApp(still(wide))

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("slash", *TWICE, "enter")
        await settle(app, pilot)

        assert f"of {len(matches(wide)):,}" in screen_text(app)
        assert PATH.search(app.explorer.tree_panel.selected.path)

    drive(app, story)


def test_a_search_that_is_given_up_finds_nothing_later(wide: Model) -> None:
    app = ExplorerApp(still(wide))
    searching, tree = app.explorer.search, app.explorer.tree_panel

    async def story(pilot: Pilot[None]) -> None:
        searching.clock = partial(next, count())
        searching.begin()
        searching.find(TWICE)
        assert searching.at_work
        searching.drop()
        await settle(app, pilot)

        assert (searching.at_work, searching.count) == (False, "")
        assert not tree.tree_rows.filtered
        assert tree.selected.path == ""

    drive(app, story)

"""Finding modules, and a search that takes longer than a key may wait."""

from __future__ import annotations

import re
import time
from functools import partial
from itertools import count

import numpy as np
import pytest
from textual.pilot import Pilot

from tests import make
from tests.textual_pilot import screen_text
from tests.unit.views.tui.runs import drive, still, tiny
from torchglass.records.model import Model, ModuleId
from torchglass.views.tui.app import ExplorerApp, settle
from torchglass.views.tui.tree_rows import Outline
from torchglass.views.tui.tree_search import NONE, MatchOrder, ModuleFinder, SearchError


@pytest.fixture
def model() -> Model:
    return tiny()


def found(model: Model, text: str) -> list[str]:
    return [model[match].path for match in ModuleFinder(model).find(text).tolist()]


def test_a_name_is_found_anywhere_in_the_tree(model: Model) -> None:
    assert found(model, "qkv") == ["blocks.0.attention.qkv", "blocks.1.attention.qkv"]


def test_classes_are_matched_case_insensitively(model: Model) -> None:
    assert found(model, "gelu") == ["blocks.0.mlp.1", "blocks.1.mlp.1"]


def test_a_match_in_the_parents_name_alone_does_not_count(model: Model) -> None:
    assert found(model, "attention") == ["blocks.0.attention", "blocks.1.attention"]


def test_a_query_with_a_dot_searches_whole_paths(model: Model) -> None:
    assert found(model, "0.attention.q") == ["blocks.0.attention.qkv"]


def test_a_path_query_does_not_match_the_descendants(model: Model) -> None:
    assert found(model, "blocks.0") == ["blocks.0"]


def test_a_trailing_dot_finds_direct_children(model: Model) -> None:
    assert found(model, "blocks.") == ["blocks.0", "blocks.1"]
    assert found(model, "s.0.") == ["blocks.0.attention", "blocks.0.mlp"]
    assert found(model, ".norm") == []


def test_shapes_settings_and_names_of_tensors_are_found(model: Model) -> None:
    assert found(model, "192×64") == ["blocks.0.attention.qkv", "blocks.1.attention.qkv"]
    assert found(model, "192x64") == found(model, "192×64")
    assert found(model, "eps=1e-05") == ["norm", "last_norm"]
    assert "head" not in found(model, "bias ")


def test_a_regex_searches_paths_and_classes(model: Model) -> None:
    assert found(model, r"re:^blocks\.\d$") == ["blocks.0", "blocks.1"]
    assert found(model, "re:^Layer.*m$") == ["norm", "last_norm"]
    assert found(model, "re:") == []


def test_a_regex_is_matched_against_each_name_separately(model: Model) -> None:
    alone = ModuleFinder(model)

    everything = [module.path for module in model.modules]
    assert found(model, "re:x*") == everything
    assert found(model, r"re:^[^.]+$") == everything
    assert found(model, r"re:norm[^.]embed") == []
    assert alone.find(r"re:(?s)^embed.+norm").tolist() == []


def test_an_invalid_regex_says_why(model: Model) -> None:
    with pytest.raises(SearchError, match="not a valid regex: unterminated"):
        ModuleFinder(model).find("re:[a-")


def test_a_regex_with_catastrophic_backtracking_is_aborted() -> None:
    model = make.model({"children": {"a" * 60 + "!": {"class": "t.Leaf"}}})
    start = time.process_time()

    with pytest.raises(SearchError, match="takes too long"):
        ModuleFinder(model).find("re:(a|aa)+$")

    # Not a speed to reach: without giving up, it would not end in this century.
    assert time.process_time() - start < 60


@pytest.mark.parametrize("text", ["", "no such thing", "[/red]", "(("])
def test_a_query_without_matches_finds_nothing(model: Model, text: str) -> None:
    assert found(model, text) == []


def test_next_and_previous_match_wrap_around(model: Model) -> None:
    walk = MatchOrder(np.array([2, 5, 9]), Outline(model).order)

    assert walk.next(ModuleId(5), 1) == 9
    assert walk.next(ModuleId(9), 1) == 2
    assert walk.next(ModuleId(5), -1) == 2
    assert walk.next(ModuleId(0), -1) == 9
    assert MatchOrder(NONE, Outline(model).order).next(ModuleId(0), 1) is None


def test_a_match_knows_its_number(model: Model) -> None:
    walk = MatchOrder(np.array([2, 5]), Outline(model).order)

    assert (walk.number(ModuleId(5)), walk.is_match(ModuleId(5))) == (2, True)
    assert (walk.number(ModuleId(4)), walk.is_match(ModuleId(4))) == (2, False)
    assert walk.first(ModuleId(5)) == 5
    assert walk.first(ModuleId(6)) == 2


def test_matches_are_visited_in_row_order(model: Model) -> None:
    names = [module.name for module in model.modules]
    backwards = Outline(model).ordered([-number for number in range(len(names))])
    norms = np.array([names.index("norm"), names.index("last_norm")])

    walk = MatchOrder(norms, backwards)

    assert walk.next(model.root.id, 1) == norms[1]
    assert walk.number(ModuleId(int(norms[0]))) == 2


def test_name_matches_rank_before_class_matches() -> None:
    names = ("conv1", "conv2", "bn2", "last")
    classes = ("torch.nn.Conv2d", "torch.nn.Conv2d", "torch.nn.BatchNorm2d", "torch.nn.Conv2d")
    children = {name: {"class": kind} for name, kind in zip(names, classes, strict=True)}
    model = make.model({"children": {"block": {"children": children}, "conv2": {}}})
    finder = ModuleFinder(model)
    walk = MatchOrder(finder.find("conv2"), Outline(model).order, finder.named("conv2"))

    def path(id: ModuleId | None) -> str:
        assert id is not None
        return model[id].path

    here = walk.first(model.root.id)
    seen = []
    for _ in range(len(walk) + 1):
        assert here is not None
        seen.append(path(here))
        here = walk.next(here, 1)

    assert seen == ["block.conv2", "conv2", "block.conv1", "block.last", "block.conv2"]
    assert walk.named_count == 2
    assert walk.number(ModuleId(2)) == 3
    assert path(walk.next(ModuleId(3), -1)) == "block.last"


def test_a_path_match_ranks_before_a_settings_match() -> None:
    model = make.model({"children": {"a": {"extra": "b.0"}, "b": {"children": {"0": {}}}}})
    finder = ModuleFinder(model)
    walk = MatchOrder(finder.find("b.0"), Outline(model).order, finder.named("b.0"))

    first = walk.first(model.root.id)

    assert first is not None
    assert model[first].path == "b.0"
    assert len(walk) == 2


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


def test_incremental_search_results_grow_to_the_full_result(wide: Model) -> None:
    found = [len(step) for step in ModuleFinder(wide).finding(TWICE)]

    assert len(found) > 2
    assert found == sorted(found)
    assert found[-1] == len(matches(wide))


def test_an_incremental_search_finds_all_matches(wide: Model) -> None:
    assert ModuleFinder(wide).find(TWICE).tolist() == matches(wide)


def test_several_hits_in_one_name_are_one_match(wide: Model) -> None:
    everything = np.arange(1, len(wide.modules))

    assert ModuleFinder(wide).find(r"re:^[\d.]+$").tolist() == everything.tolist()
    assert ModuleFinder(wide).find(r"re:\d(?=\.)").tolist() == [
        module.id for module in wide.modules if "." in module.path
    ]


def test_typing_during_a_search_restarts_it(wide: Model) -> None:
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


def test_a_search_continues_after_enter(wide: Model) -> None:
    app = ExplorerApp(still(wide))

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("slash", *TWICE, "enter")
        await settle(app, pilot)

        assert f"of {len(matches(wide)):,}" in screen_text(app)
        assert PATH.search(app.explorer.tree_panel.selected.path)

    drive(app, story)


def test_a_canceled_search_finds_nothing_later(wide: Model) -> None:
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
        assert tree.tree_rows.filter is None
        assert tree.selected.path == ""

    drive(app, story)

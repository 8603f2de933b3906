"""Someone opens a comparison of two models, checkpoints or runs in the explorer."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import torchglass as tg
from tests.explorer import Explorer, drive, shown


class Block(nn.Module):
    def __init__(self, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8, eps=epsilon)
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> Any:
        return x + self.fc(self.norm(x))


class Net(nn.Module):
    def __init__(self, blocks: int = 2, outputs: int = 4) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(8, outputs)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def net(**options: int) -> Net:
    torch.manual_seed(0)
    return Net(**options)


def with_other_weights(model: Net) -> Net:
    """A copy whose weights moved by 0.1 % in the first layer, and a lot in the last block."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.first.weight.mul_(1.001)
        other.get_parameter("blocks.1.fc.weight").add_(1)
    return other


def grown() -> tuple[Net, nn.Module]:
    """A model, and one with a new layer, without a block and with another head."""
    other = net(blocks=1, outputs=6)
    other.aux = nn.Linear(8, 3)
    return net(), other


def panel(text: str) -> str:
    """What is below the tree, as one line."""
    return " ".join(text.partition("Reports")[2].split())


def test_the_conclusion_is_the_first_line() -> None:
    a = net()
    found = tg.compare(a, with_other_weights(a))

    text = shown(found, size=(80, 24))

    assert text.splitlines()[0].startswith(" 2 of 12 tensors differ. Same structure. · Net (a) and")
    assert "2 of 12 tensors differ. Same structure." in panel(text)


def test_both_trees_are_side_by_side_where_there_is_room() -> None:
    text = shown(tg.compare(*grown()), size=(140, 40))
    lines = text.splitlines()

    head = next(line for line in lines if "head" in line)
    old, _, new = head.partition("  │ │ ")
    assert "Linear(8→4)" in old
    assert "head  Linear(8→6)" in new
    edge = len(old) + 2
    removed = next(line for line in lines if "− removed" in line)
    assert "Block" in removed[:edge]
    assert "Block" not in removed[edge:]
    added = next(line for line in lines if "+ added" in line)
    assert "aux" not in added[:edge]
    assert "aux  Linear(8→3)" in added[edge:]


def test_one_tree_has_columns_of_both_in_a_narrow_terminal() -> None:
    text = shown(tg.compare(*grown()), size=(80, 24))

    assert text.splitlines()[1].split() == ["name", "a", "b", "Δ", "change"]
    head = next(line for line in text.splitlines() if "head" in line)
    assert "Linear(8→4)" in head
    assert "Linear(8→6)" in head
    added = next(line for line in text.splitlines() if "aux" in line)
    assert "+ added" in added


def colors_of_names(explorer: Explorer) -> dict[str, str]:
    """The color of the name of each module on the screen."""
    tree = explorer.app.explorer.tree_panel
    found = {}
    for line, module in enumerate(tree.on_screen(), start=1):
        segments = [one for one in tree.render_line(line) if one.text.strip("│▾▸▌▏ ")]
        found[module.path] = segments[0].style.color.name
    return found


def test_the_colors_tell_how_far_values_moved() -> None:
    a = net()

    async def story(explorer: Explorer) -> None:
        colors = colors_of_names(explorer)
        # Little, much, and not at all have three colors.
        assert len({colors["first"], colors["blocks.1.fc"], colors["head"]}) == 3
        # Above a change it has the same color, so that a folded tree shows where it is.
        assert colors["blocks"] == colors["blocks.1"] == colors["blocks.1.fc"]
        assert colors["blocks.0"] == colors["head"]

    drive(story, tg.compare(a, with_other_weights(a)), size=(120, 40))


def test_keys_go_from_change_to_change_and_show_only_these() -> None:
    a = net()

    async def story(explorer: Explorer) -> None:
        assert "n next change" in explorer.text
        assert "& changed only" in explorer.text
        seen = []
        for key in ("n", "n", "n", "N"):
            await explorer.press(key)
            seen.append(explorer.selected)
        assert seen == ["first", "blocks.1.fc", "first", "blocks.1.fc"]

        await explorer.press("ampersand")
        assert "Changed modules only" in explorer.text
        tree = explorer.app.explorer.tree_panel
        paths = [module.path for module in tree.on_screen()]
        assert paths == ["", "first", "blocks", "blocks.1", "blocks.1.fc"]
        await explorer.press("ampersand")
        assert "All modules" in explorer.text

    drive(story, tg.compare(a, with_other_weights(a)), size=(120, 40))


def test_the_tree_is_sorted_by_the_size_of_the_change() -> None:
    a, b = net(), net()
    with torch.no_grad():
        for name, factor in (("first", 1.1), ("head", 1.5)):
            b.get_parameter(f"{name}.weight").mul_(factor)

    async def story(explorer: Explorer) -> None:
        # Δ is the fourth column.
        await explorer.press("4")
        paths = [module.path for module in explorer.app.explorer.tree_panel.on_screen()]
        assert paths.index("head") < paths.index("first")

    drive(story, tg.compare(a, b), size=(120, 40))


def test_a_changed_module_has_histograms_of_both_values() -> None:
    a = net()

    text = shown(tg.compare(a, with_other_weights(a)), press=("n",), size=(80, 30))

    assert "Changed old → new weight" in panel(text)
    lines = [line.strip() for line in text.splitlines()]
    for word in ("old", "new"):
        bars = next(one for one in lines if one.startswith(word)).split()[1]
        assert set(bars) <= set("▁▂▃▄▅▆▇█")
        assert len(bars) == 24


def test_the_first_divergence_comes_with_both_lines_of_code() -> None:
    a, b = net(), net()
    b.blocks[0] = Block(epsilon=0.5)
    b.load_state_dict(a.state_dict())

    async def story(explorer: Explorer) -> None:
        text = explorer.text
        assert "First divergence: `blocks.0.norm`" in panel(text)
        lines = text.partition("Reports")[2].splitlines()
        at = next(number for number, line in enumerate(lines) if line.strip() == "First divergence")
        assert lines[at + 1].strip().startswith("a  `blocks.0.norm`")
        assert "return x + self.fc(self.norm(x))" in lines[at + 2]
        # Enter goes there.
        await explorer.press("tab", *["down"] * at, "enter")
        assert explorer.selected == "blocks.0.norm"

    drive(story, tg.compare(a, b, torch.ones(2, 4)), size=(120, 50))


def test_equal_models_have_nothing_to_go_to() -> None:
    async def story(explorer: Explorer) -> None:
        assert explorer.text.splitlines()[0].startswith(" All 12 tensors are equal. Same structure")
        await explorer.press("n")
        assert explorer.selected == ""

    drive(story, tg.compare(net(), net()))


def test_a_model_is_explored_against_another_in_the_same_way() -> None:
    a = net()
    b = with_other_weights(a)

    assert (
        shown(b, against=a, size=(140, 40))
        .splitlines()[0]
        .startswith(" 2 of 12 tensors differ. Same structure.")
    )


def test_checkpoints_show_the_shapes_of_their_tensors() -> None:
    before = net().state_dict()
    after = {name: tensor * 1.01 for name, tensor in before.items()}

    text = shown(tg.compare(before, after), size=(140, 40))

    first = next(line for line in text.splitlines() if "first" in line)
    assert first.count("weight 8×4, bias 8") == 2
    assert "0.01" in first


def test_runs_show_their_settings_and_curves(tmp_path: Any) -> None:
    for name, worse in (("a", 0.0), ("b", 0.1)):
        with tg.watch(net(), save=tmp_path / f"{name}.glass", verbose=False) as watcher:
            for step in range(20):
                watcher.log("loss", 1 / (step + 1) + worse * (step > 10))
                watcher.step()

    text = shown(tg.compare(tmp_path / "a.glass", tmp_path / "b.glass"), size=(120, 40))

    assert text.splitlines()[0].startswith(
        " Curves diverge: loss diverges at step 11. Same structure."
    )
    assert "Settings and curves loss diverges at step 11" in panel(text)


@pytest.mark.parametrize("size", [(80, 24), (140, 40)])
def test_the_help_names_the_keys_of_a_comparison(size: tuple[int, int]) -> None:
    async def story(explorer: Explorer) -> None:
        await explorer.press("question_mark", "slash", *"change")
        words = " ".join(explorer.text.split())
        assert "n Next match or change" in words
        assert "N Previous match or" in words
        assert "& Toggle matches or" in words

    drive(story, tg.compare(*grown()), size=size)

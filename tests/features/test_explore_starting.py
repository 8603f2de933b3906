"""Someone starts the explorer on whatever they have: a model, its inputs, a trace, a checkpoint."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import torchglass as tg
from tests.explorer import Explorer, drive, shown, terminal
from tests.models import NamedLikeOptions
from torchglass import errors, explore


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 2)
    )


def healthy() -> nn.Sequential:
    model = net().eval()
    model[0].register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))
    model[0].register_buffer("lowest", torch.tensor(torch.inf))
    model[0].register_parameter(
        "shift", nn.Parameter(torch.tensor([0.0, -torch.inf]), requires_grad=False)
    )
    return model


class Narrow(nn.Module):
    """Its second layer does not take what its first one gives."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(6, 2)

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x))


class Python(nn.Module):
    """Its forward fails before any operation of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)

    def forward(self, x: Any) -> Any:
        return x["image"]


@pytest.mark.parametrize(
    ("model", "inputs", "told"),
    [
        (Narrow(), (torch.ones(3, 4),), ["RuntimeError", "use Linear(8, 2)", "second"]),
        (Narrow(), (), ["TypeError", "Narrow"]),
        (Python(), (torch.ones(3, 4),), ["IndexError", 'x["image"]']),
    ],
    ids=["shapes", "arguments", "python"],
)
def test_a_forward_that_raises_opens_with_the_explanation(
    model: nn.Module, inputs: tuple[Any, ...], told: list[str]
) -> None:
    async def story(explorer: Explorer) -> None:
        assert all(words in explorer.text for words in told)
        assert "✗" in explorer.text

        # The model is there to be explored as ever.
        await explorer.press("a", "exclamation_mark")
        assert told[0] in explorer.text

    options: dict[str, Any] = {} if inputs else {"y": torch.ones(1)}
    drive(story, model, *inputs, size=(180, 40), **options)


def test_the_cursor_starts_at_the_module_that_failed() -> None:
    async def story(explorer: Explorer) -> None:
        assert explorer.selected == "second"
        await explorer.press("up", "w")
        assert "linear_1_1" in explorer.text

    drive(story, Narrow(), torch.ones(3, 4))


def test_a_failing_forward_raises_in_an_event_loop() -> None:
    async def cell() -> None:
        tg.explore(Narrow(), torch.ones(3, 4))

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        asyncio.run(cell())


def test_a_non_finite_weight_is_an_error_at_its_module() -> None:
    model = net()
    with torch.no_grad():
        model.get_parameter("4.weight")[0, 0] = torch.inf

    for inputs in ((), (torch.ones(3, 4),)):
        text = shown(model, *inputs, press=("exclamation_mark",))

        assert "✗ 1 of 16 values of `4.weight` is Inf" in text
        assert "1 error" in text


def test_non_finite_running_statistics_are_an_error() -> None:
    model = net()
    model.get_buffer("1.running_var")[2] = torch.inf

    assert "1 of 8 values of `1.running_var` is Inf" in shown(model, press=("exclamation_mark",))


def test_a_nan_in_the_forward_is_an_error_at_its_origin() -> None:
    class Root(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sqrt()

    model = nn.Sequential(nn.Identity(), Root(), nn.Identity())

    text = shown(model, torch.tensor([-1.0, 4.0]), press=("exclamation_mark",))

    assert "1 error" in text
    assert "sqrt produced 1 NaN" in text
    assert "1 ✗" in text
    assert "2 ✗" not in text


def test_expected_infinities_are_not_a_problem() -> None:
    model = healthy()

    assert "No problems found in this forward or in the weights." in shown(
        model, torch.ones(3, 4), press=("exclamation_mark",)
    )
    assert "No NaN or Inf in the weights." in shown(model, press=("exclamation_mark",))


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_nan_in_a_checkpoint_is_an_error_at_its_module(tmp_path: Path, suffix: str) -> None:
    state = net().state_dict()
    state["4.bias"][1] = torch.nan
    file = tmp_path / f"model{suffix}"
    torch.save(state, file) if suffix == ".pt" else save_file(state, file)

    assert "1 of 2 values of `4.bias` is NaN" in shown(file, press=("exclamation_mark",))


def test_a_training_checkpoint_shows_the_model_and_lists_its_other_contents(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    file = tmp_path / "train.pth"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}, file)

    text = shown(file)

    assert "Also in this file" in text
    assert "optimizer (state of Adam or AdamW" in text
    assert "epoch=3" in text
    assert "▸ optimizer" in text or "▾ optimizer" in text


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = self.right = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.left(x) + self.right(x)


@pytest.mark.parametrize(
    ("panel", "told"), [("w", "linear_1_1"), ("P", "2 calls"), ("i", "Last call")]
)
def test_a_shared_module_shows_the_calls_under_its_first_name(panel: str, told: str) -> None:
    async def story(explorer: Explorer) -> None:
        # Details are open already.
        await explorer.press("down", "down", *((panel,) if panel != "i" else ()))
        assert explorer.selected == "right"
        assert told in explorer.text
        assert "did not run" not in explorer.text
        assert panel == "i" or "Same module as left" in explorer.text

    drive(story, Twice(), torch.ones(3, 4), size=(160, 30))


def recorded_run(folder: Path, **logged: float) -> Path:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with tg.watch(model, save=folder / "run.glass") as watcher:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
            for name, value in logged.items():
                watcher.log(name, value)
    return folder / "run.glass"


def test_a_run_opens_with_its_verdict_and_its_loss(tmp_path: Path) -> None:
    tabs, verdict, *rest = shown(recorded_run(tmp_path, accuracy=0.5, loss=1.25)).splitlines()[1:]

    assert "V Overview" in tabs
    assert "! Warning: The input is 1 everywhere" in verdict
    assert any(line.split()[:1] == ["1.25"] for line in rest)
    assert any("gradient norm" in line for line in rest)


def test_the_series_of_a_run_start_with_its_loss(tmp_path: Path) -> None:
    text = shown(recorded_run(tmp_path, accuracy=0.5, loss=1.25), press=("v",))

    assert "loss  1.25" in text


def test_the_series_of_a_run_without_a_loss_start_with_the_output(tmp_path: Path) -> None:
    text = shown(recorded_run(tmp_path), press=("v",))

    assert "output  mean" in text
    assert "input.0  mean" not in text


def test_a_forward_opens_with_settings_and_output_shapes() -> None:
    heads = shown(net(), torch.ones(3, 4)).splitlines()[1].split()

    assert heads[:6] == ["name", "class", "args", "params", "output", "time"]
    assert "4→8" in shown(net(), torch.ones(3, 4))


def test_a_trace_opens_with_its_operations() -> None:
    text = shown(tg.trace(net(), torch.ones(3, 4)))

    assert "w Tensor flow" in text.splitlines()[1]
    assert "linear_1_1" in text


def test_choices_are_remembered_per_kind_of_target(tmp_path: Path) -> None:
    run = recorded_run(tmp_path, loss=1.25)

    def explored(target: Any, *press: str) -> str:
        return shown(target, press=press, home=tmp_path / "home")

    explored(net(), "p")
    assert "params" not in explored(net()).splitlines()[1]
    assert "v Series" in explored(run)
    # The first press brings the panel to the front, the second closes it: a choice, too.
    explored(run, "v", "v")
    assert "Series" not in explored(run)
    assert "Series" not in explored(net())


def test_a_comparison_always_shows_the_changes(tmp_path: Path) -> None:
    old, new = net(), net()
    with torch.no_grad():
        new.get_parameter("4.weight").add_(1)

    # The fourth column after the name.
    hidden = shown(new, against=old, press=("L", *["down"] * 4, "space"), home=tmp_path)
    later = shown(new, against=old, home=tmp_path)

    assert "change" not in hidden.splitlines()[1]
    assert "change" in later.splitlines()[1]
    assert "≠ weight Δ" in later


def test_checkpoint_groups_are_not_treated_as_one_class(tmp_path: Path) -> None:
    file = tmp_path / "net.pt"
    torch.save(net().state_dict(), file)

    text = shown(file, press=("down",), size=(120, 40))

    assert "net.pt" in text
    assert "▏" not in text
    assert "group ×" not in text


def test_the_title_of_the_active_panel_is_always_visible() -> None:
    async def story(explorer: Explorer) -> None:
        titles = {"c": "Code", "a": "Attributes", "P": "Performance", "w": "Tensor flow"}
        for key, title in titles.items():
            await explorer.press(key)
            assert f"{key} {title}" in explorer.text
        await explorer.press("i")
        strip = explorer.text.splitlines()[1]
        assert "i Details" in strip
        assert "›" in strip.rpartition("│")[2]

    drive(story, net(), torch.ones(3, 4))


def test_an_unchecked_trace_is_not_reported_as_healthy() -> None:
    trace = tg.trace(net(), torch.ones(3, 4))

    assert "Not checked. tg.guard(model)" in shown(trace, press=("exclamation_mark",))


def test_a_recorded_call_shows_its_tensors_and_statistic_names() -> None:
    async def story(explorer: Explorer) -> None:
        await explorer.settle()
        await explorer.press("j", "a", "tab")
        assert "input.0" in explorer.text
        assert "3×8 float32" in explorer.text

        await explorer.press("end", "right")
        await explorer.press("down", "right")
        for name in ("in_shape", "in_min", "in_std", "out_mean", "out_requires_grad", "runtime"):
            assert name in explorer.text
        assert explorer.text.count("input.0") == 2

    with terminal(story, size=(160, 60)) as opened:
        tg.explore_torch_module_with_stats(net(), torch.ones(3, 4))

    assert len(opened) == 1


def test_exploring_a_model_with_inputs_shows_recorded_tensors() -> None:
    text = shown(net(), torch.ones(3, 4), press=("f", "F"))

    assert "3×4" in text
    assert "3×8" in text
    assert "192" in text


def test_exploring_with_inputs_does_not_change_the_model() -> None:
    model = net()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random = torch.get_rng_state()

    shown(model, torch.ones(3, 4))

    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_an_unexplained_error_is_raised_unchanged() -> None:
    class Pipeline:
        def __init__(self) -> None:
            self.net = net()

        def __call__(self, x: Any) -> Any:
            return self.net(x)

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        shown(Pipeline(), torch.ones(3, 5))


def test_forward_arguments_may_share_names_with_options() -> None:
    x = torch.ones(2)

    text = shown(NamedLikeOptions(), x, target=x, backward=x, loss=x, press=("F",))

    assert "FLOPs" in text.splitlines()[1]


def test_an_option_that_is_also_a_forward_argument_is_ambiguous() -> None:
    with pytest.raises(
        errors.TargetError, match="'against' is both an option of explore and an argument"
    ):
        explore(NamedLikeOptions(), torch.ones(2), target=1, against=torch.ones(2))


def test_inputs_without_a_model_are_refused() -> None:
    with pytest.raises(errors.TargetError, match="the model comes first"):
        explore(x=torch.ones(2))


def test_previously_recorded_statistics_are_shown() -> None:
    model = net()
    with tg.record_torch_module_forward_stats(model):
        model(torch.ones(3, 4))

    assert "3×8" in shown(model, press=("f",))


def test_a_pipeline_that_is_not_a_module_is_a_tree_of_its_models() -> None:
    class Pipeline:
        def __init__(self) -> None:
            self.encoder = net()
            self.heads = {"cat": nn.Linear(2, 2)}

    text = shown(Pipeline())

    assert "encoder" in text
    assert "cat" in text


def test_results_of_other_functions_can_be_explored() -> None:
    model, inputs = net(), torch.ones(3, 4)

    assert "3×8" in shown(tg.trace(model, inputs), press=("f",))
    assert "BatchNorm1d" in shown(tg.summary(model))
    assert "time" in shown(tg.profile(model, inputs, warmup=0, repeats=1))


@pytest.mark.parametrize("wrap", [dict, lambda state: {"epoch": 3, "model": state}])
def test_a_dict_of_tensors_is_explored_like_a_checkpoint_file(wrap: Any) -> None:
    state = wrap(net().state_dict())

    text = shown(state, press=("a",))

    assert "running_mean" in shown(state, press=("t",))
    assert "All 9 tensors are equal" in shown(state, against=state).splitlines()[0]
    assert "0" in text
    assert "Attributes" in text


def test_old_and_new_histograms_are_drawn_for_a_changed_tensor() -> None:
    torch.manual_seed(0)
    old = {"layer.weight": torch.randn(64, 64)}
    new = {"layer.weight": old["layer.weight"] + 2.0}

    text = shown(new, against=old, press=("n",))

    drawn = [re.search(rf"{word}  ([▁▂▃▄▅▆▇█]+)", text) for word in ("old", "new")]
    assert all(drawn)
    peaks = [one[1].index("█") for one in drawn if one]
    assert peaks[0] < peaks[1]


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_two_checkpoints_are_compared_by_shape_and_values(tmp_path: Path, suffix: str) -> None:
    old, new = net().state_dict(), net().state_dict()
    new["0.weight"] = old["0.weight"] * 1.5
    new["4.weight"] = torch.zeros(3, 8)
    del new["1.running_mean"]
    new["probe.weight"] = torch.ones(1)
    for name, tensors in {"old": old, "new": new}.items():
        path = tmp_path / f"{name}{suffix}"
        save_file(tensors, path) if suffix == ".safetensors" else torch.save(tensors, path)

    text = shown(tmp_path / f"new{suffix}", against=tmp_path / f"old{suffix}")

    assert "weight Δ 0.5" in text
    assert "weight 2×8 → 3×8" in text
    assert "−running_mean" in text
    assert "+ added" in text


def test_a_model_does_not_differ_from_itself() -> None:
    model = net()

    assert "All 9 tensors are equal. Same structure" in shown(model, against=model)


def test_a_run_is_compared_without_its_values(tmp_path: Path) -> None:
    with tg.watch(net(), save=tmp_path / "run.glass"):
        pass

    text = shown(tmp_path / "run.glass", against=net())
    assert text.splitlines()[0].startswith(" Same structure.")
    assert "values were not compared" in text


def test_a_checkpoint_cannot_be_run(tmp_path: Path) -> None:
    save_file(net().state_dict(), tmp_path / "net.safetensors")

    with pytest.raises(errors.TargetError, match="only a live model can run"):
        shown(tmp_path / "net.safetensors", torch.ones(3, 4))


@pytest.mark.parametrize(
    ("press", "picked"), [(("enter",), "Latest"), (("down", "enter"), "Earlier"), (("escape",), "")]
)
def test_a_target_of_the_folder_can_be_picked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, press: tuple[str, ...], picked: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("Earlier", "Latest"):
        model = type(name, (nn.ReLU,), {})()
        tg.watch(model, save=tmp_path / f"run-{name}.glass", verbose=False).close()
    seen: list[str] = []

    async def story(explorer: Explorer) -> None:
        await explorer.pilot.pause()
        if not seen:
            seen.append(explorer.text)
            await explorer.pilot.press(*press)
        else:
            await explorer.settle()
            seen.append(explorer.text)

    with terminal(story):
        tg.explore()

    assert seen[0].startswith(f" 2 runs in {tmp_path}")
    assert re.search(r"run-Latest .* finished", seen[0])
    assert seen[0].index("run-Latest") < seen[0].index("run-Earlier")
    assert [picked in text for text in seen[1:]] == [True] * bool(picked)


def test_runs_in_a_folder_can_be_sorted_filtered_selected_and_opened(tmp_path: Path) -> None:
    for lr, loss in ((0.1, 0.3), (0.01, 0.2), (0.001, 0.4)):
        path = tmp_path / f"lr{lr}.glass"
        with tg.watch(net(), save=path, config={"lr": lr}, verbose=False) as watcher:
            watcher.log("loss", loss)
            watcher.step()
    (tmp_path / "bad.glass").write_bytes(b"half a file")
    seen: list[str] = []

    def order() -> list[str]:
        return re.findall(r"lr0\.\d+", seen[-1].partition("quit")[0])

    async def story(explorer: Explorer) -> None:
        await explorer.pilot.pause()
        if seen:
            return
        seen.append(explorer.text)
        assert order() == ["lr0.001", "lr0.01", "lr0.1"]
        assert "1 file cannot be read" in seen[-1]
        await explorer.pilot.press("6")
        seen.append(explorer.text)
        assert order() == ["lr0.01", "lr0.1", "lr0.001"]
        await explorer.pilot.press("slash", *"lr <", "enter")
        seen.append(explorer.text)
        assert "is not a filter" in seen[-1]
        await explorer.pilot.press(*" 0.05", "enter", "space")
        await explorer.app.workers.wait_for_complete()
        await explorer.pilot.pause()
        seen.append(explorer.text)
        assert order() == ["lr0.01", "lr0.001", "lr0.01"]
        assert "0.2 → 0.2" in seen[-1]
        await explorer.pilot.press("enter")

    with terminal(story):
        tg.explore(tmp_path)

    assert len(seen) == 4


@pytest.mark.slow
def test_a_new_run_appears_in_the_table_of_its_folder(tmp_path: Path) -> None:
    for name in ("first", "second"):
        tg.watch(net(), save=tmp_path / f"{name}.glass", verbose=False).close()
    seen: list[str] = []

    async def story(explorer: Explorer) -> None:
        while not explorer.text.startswith(f" 2 runs in {tmp_path}"):
            await explorer.pilot.pause()
        with tg.watch(net(), save=tmp_path / "third.glass", verbose=False) as watcher:
            watcher.log("loss", 0.25)
            watcher.step()
            while not re.search(r"third .* running .* 0\.25", explorer.text):
                await explorer.pilot.pause()
            seen.append(explorer.text)
        while not re.search(r"third .* finished", explorer.text):
            await explorer.pilot.pause()
        await explorer.pilot.press("q")

    with terminal(story):
        tg.explore(tmp_path)

    assert seen[0].startswith(f" 3 runs in {tmp_path}: 1 running")


def test_without_a_terminal_explore_suggests_alternatives() -> None:
    with pytest.raises(errors.ViewError, match="needs a terminal"):
        explore(net())


def test_without_a_terminal_the_error_lists_the_targets_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in "abcdefg":
        (tmp_path / f"{name}.pt").write_bytes(b"")

    with pytest.raises(errors.ViewError, match=r"Use `torchglass summary .\.pt`\. Found: .*, …"):
        explore()


def test_in_an_event_loop_the_page_opens_and_a_message_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)

    async def cell() -> Any:
        return explore(net())

    server = asyncio.run(cell())
    server.close()

    assert opened
    assert "so the web page opens instead" in capsys.readouterr().err


def test_a_config_applies_to_one_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    config = tg.ExplorerConfig(show_memory=False, color_scheme="light", max_depth=0)

    preferences = config.memory().load()

    assert "bytes" not in preferences.labels.shown
    assert "bytes" in tg.ExplorerConfig().memory().load().labels.shown
    assert (preferences.theme, preferences.depth) == ("glass-light", 0)


def test_choices_are_restored_in_the_next_session(tmp_path: Path) -> None:
    model = net()
    shown(
        model,
        press=("p", "A", "greater_than_sign", "space", "L", *["down"] * 4, "J"),
        home=tmp_path,
        size=(120, 40),
    )

    async def look(explorer: Explorer) -> None:
        tree = explorer.app.explorer.tree_panel
        assert [column.title for column in tree.columns] == ["class", "memory"]
        assert not tree.labels.aligned
        assert tree.labels.order[3:5] == ("class", "change")
        assert len(tree.tree_rows) == 1
        assert explorer.app.explorer.area.share == 35

    drive(look, model, home=tmp_path)

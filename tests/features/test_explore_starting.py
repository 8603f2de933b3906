"""Someone starts the explorer on whatever they have: a model, its inputs, a trace, a checkpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from IPython.testing.globalipapp import start_ipython
from safetensors.torch import save_file
from textual.pilot import Pilot
from torch import nn

import torchglass as tg
from tests.unit.views.tui.runs import drive, screen_text
from torchglass.api.exhibits import exhibit
from torchglass.api.exploring import explore
from torchglass.errors import TargetError, ViewError
from torchglass.integrations.ipython import install
from torchglass.records.flow import Reader
from torchglass.records.measures import Measures
from torchglass.records.statistics import Statistics
from torchglass.records.trace import Trace
from torchglass.targets.folders import find_targets
from torchglass.views.tui.app import Exhibit, ExplorerApp
from torchglass.views.tui.picture import settle
from torchglass.views.tui.preferences import PreferenceFile, Preferences
from torchglass.views.tui.windows.picker import Picker


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 2)
    )


def shown(target: Any, *inputs: Any, press: tuple[str, ...] = (), **options: Any) -> str:
    app = ExplorerApp(exhibit(target, inputs, **options))
    text: list[str] = []

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press(*press)
        await settle(app, pilot)
        text.append(screen_text(app))

    drive(app, story, size=(180, 30))
    return text[0]


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
        (Narrow(), (torch.ones(3, 4),), ["RuntimeError", "make the layer Linear(8, 2)", "second"]),
        (Narrow(), (), ["TypeError", "Narrow"]),
        (Python(), (torch.ones(3, 4),), ["IndexError", 'x["image"]']),
    ],
    ids=["shapes", "arguments", "python"],
)
def test_a_forward_that_raises_opens_with_the_explanation(
    model: nn.Module, inputs: tuple[Any, ...], told: list[str]
) -> None:
    app = ExplorerApp(exhibit(model, inputs, {} if inputs else {"y": torch.ones(1)}))

    async def story(pilot: Pilot[None]) -> None:
        text = screen_text(app)
        assert all(words in text for words in told)
        assert "✗" in text

        # The model is there to be explored as ever.
        await pilot.press("a", "exclamation_mark")
        await settle(app, pilot)
        assert told[0] in screen_text(app)

    drive(app, story, size=(180, 40))


def test_the_cursor_begins_at_the_module_that_failed() -> None:
    app = ExplorerApp(exhibit(Narrow(), (torch.ones(3, 4),)))

    async def story(pilot: Pilot[None]) -> None:
        assert app.explorer.tree_panel.selected.path == "second"
        await pilot.press("up", "w")
        await settle(app, pilot)
        assert "linear_1_1" in screen_text(app)

    drive(app, story)


def test_in_an_event_loop_a_forward_that_raises_still_raises() -> None:
    async def cell() -> None:
        tg.explore(Narrow(), torch.ones(3, 4))

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        asyncio.run(cell())


def test_a_weight_that_is_not_finite_is_an_error_at_its_module() -> None:
    model = net()
    with torch.no_grad():
        model.get_parameter("4.weight")[0, 0] = torch.inf

    for inputs in ((), (torch.ones(3, 4),)):
        text = shown(model, *inputs, press=("exclamation_mark",))

        assert "✗ 1 of 16 values of `4.weight` is Inf" in text
        assert "1 error" in text


def test_running_statistics_that_are_not_finite_are_an_error() -> None:
    model = net()
    model.get_buffer("1.running_var")[2] = torch.inf

    assert "1 of 8 values of `1.running_var` is Inf" in shown(model, press=("exclamation_mark",))


def test_a_nan_that_the_forward_makes_is_an_error_where_it_is_made() -> None:
    class Root(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sqrt()

    model = nn.Sequential(nn.Identity(), Root(), nn.Identity())

    text = shown(model, torch.tensor([-1.0, 4.0]), press=("exclamation_mark",))

    assert "1 error" in text
    assert "sqrt made 1 NaN" in text
    assert "1 ✗" in text
    assert "2 ✗" not in text


def test_infinities_where_they_belong_are_no_problem() -> None:
    model = healthy()

    assert "No problems found in this forward or in the weights." in shown(
        model, torch.ones(3, 4), press=("exclamation_mark",)
    )
    assert "No NaN or Inf in the weights." in shown(model, press=("exclamation_mark",))


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_checkpoint_with_a_nan_in_it_has_an_error_there(tmp_path: Path, suffix: str) -> None:
    state = net().state_dict()
    state["4.bias"][1] = torch.nan
    file = tmp_path / f"model{suffix}"
    torch.save(state, file) if suffix == ".pt" else save_file(state, file)

    assert "1 of 2 values of `4.bias` is NaN" in shown(file, press=("exclamation_mark",))


def test_a_training_checkpoint_shows_the_model_and_lists_what_is_beside_it(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    file = tmp_path / "train.pth"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}, file)

    text = shown(file)

    assert "also in this file" in text
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
    ("panel", "told"), [("w", "linear_1_1"), ("P", "ran 2 times"), ("i", "last call")]
)
def test_a_shared_module_shows_the_calls_under_its_first_name(panel: str, told: str) -> None:
    # Details are open already.
    keys = ("down", "down", *((panel,) if panel != "i" else ()))
    app = ExplorerApp(exhibit(Twice(), (torch.ones(3, 4),)))

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press(*keys)
        await settle(app, pilot)
        text = screen_text(app)
        assert app.explorer.tree_panel.selected.path == "right"
        assert told in text
        assert "did not run" not in text
        assert panel == "i" or "The same module as left" in text

    drive(app, story, size=(160, 30))


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


def test_a_run_opens_with_its_loss(tmp_path: Path) -> None:
    text = shown(recorded_run(tmp_path, accuracy=0.5, loss=1.25))

    assert "v Series" in text
    assert "loss  1.25" in text
    assert "gradient std" in text


def test_a_run_without_a_loss_opens_with_what_leaves_the_model(tmp_path: Path) -> None:
    text = shown(recorded_run(tmp_path))

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


def test_what_the_user_chose_for_one_kind_stays_with_it(tmp_path: Path) -> None:
    memory = PreferenceFile(tmp_path / "explorer.json")
    run = recorded_run(tmp_path, loss=1.25)

    def explored(target: Any, *press: str) -> str:
        app = ExplorerApp(exhibit(target), memory=memory)
        seen: list[str] = []

        async def story(pilot: Pilot[None]) -> None:
            await pilot.press(*press)
            await settle(app, pilot)
            seen.append(screen_text(app))

        drive(app, story, size=(180, 30))
        return seen[0]

    explored(net(), "p")
    assert "params" not in explored(net()).splitlines()[1]
    assert "v Series" in explored(run)
    # Closing the plot is a choice, too.
    explored(run, "v")
    assert "Series" not in explored(run)
    assert "Series" not in explored(net())


def test_a_comparison_always_shows_what_changed(tmp_path: Path) -> None:
    memory = PreferenceFile(tmp_path / "explorer.json")
    old, new = net(), net()
    with torch.no_grad():
        new.get_parameter("4.weight").add_(1)

    def explored(*press: str) -> str:
        app = ExplorerApp(exhibit(new, against=old), memory=memory)
        seen: list[str] = []

        async def story(pilot: Pilot[None]) -> None:
            await pilot.press(*press)
            await settle(app, pilot)
            seen.append(screen_text(app))

        drive(app, story, size=(180, 30))
        return seen[0]

    # The first component after the name.
    hidden = explored("L", "down", "space")
    later = explored()

    assert "change" not in hidden.splitlines()[1]
    assert "change" in later.splitlines()[1]
    assert "≠ weight Δ" in later


def test_groups_of_a_checkpoint_are_not_of_one_class(tmp_path: Path) -> None:
    file = tmp_path / "net.pt"
    torch.save(net().state_dict(), file)
    app = ExplorerApp(exhibit(file))

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("down")
        await settle(app, pilot)
        text = screen_text(app)
        assert "▏" not in text
        assert "group ×" not in text

    drive(app, story)


def test_the_title_of_the_panel_in_front_is_always_seen() -> None:
    app = ExplorerApp(exhibit(net(), (torch.ones(3, 4),)))

    async def story(pilot: Pilot[None]) -> None:
        titles = {"c": "Code", "a": "Attributes", "P": "Performance", "w": "Tensor flow"}
        for key, title in titles.items():
            await pilot.press(key)
            await settle(app, pilot)
            assert f"{key} {title}" in screen_text(app)
        await pilot.press("i")
        await settle(app, pilot)
        strip = screen_text(app).splitlines()[1]
        assert "i Details" in strip
        assert "›" in strip.rpartition("│")[2]

    drive(app, story)


def test_what_was_not_looked_at_is_not_called_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tg.trace(net(), torch.ones(3, 4))
    assert "Not checked. tg.guard(model)" in shown(trace, press=("exclamation_mark",))

    monkeypatch.setattr("torchglass.views.tui.live_bench._CHECKED_BYTES", 8)
    model = net()
    model.get_parameter("4.bias").data[0] = torch.nan
    assert "Not checked. Press r" in shown(model, press=("exclamation_mark",))
    text = shown(model, press=("exclamation_mark", "tab", "r"))
    assert "1 of 2 values of `4.bias` is NaN" in text
    assert "4 ✗" in text


def test_rps_call_shows_tensors_and_the_names_of_its_statistics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = net()
    exhibits: list[Any] = []
    monkeypatch.setattr("torchglass.api.exploring.has_terminal", lambda: True)
    monkeypatch.setattr(
        "torchglass.views.tui.app.run_explorer", lambda make, **_: exhibits.append(make())
    )

    tg.explore_torch_module_with_stats(model, torch.ones(3, 4))

    app = ExplorerApp(exhibits[0])

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("j", "a", "tab")
        await settle(app, pilot)
        text = screen_text(app)
        assert "input.0" in text
        assert "3×8 float32" in text

        await pilot.press("end", "right")
        await settle(app, pilot)
        await pilot.press("down", "right")
        await settle(app, pilot)
        text = screen_text(app)
        for name in ("in_shape", "in_min", "in_std", "out_mean", "out_requires_grad", "runtime"):
            assert name in text
        assert text.count("input.0") == 2

    drive(app, story, size=(160, 60))


def test_a_model_with_inputs_shows_what_went_through_it() -> None:
    text = shown(net(), torch.ones(3, 4), press=("f", "F"))

    assert "3×4" in text
    assert "3×8" in text
    assert "192" in text


def test_a_forward_leaves_three_records_and_the_model_as_it_was() -> None:
    model = net()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random = torch.get_rng_state()

    reader = exhibit(model, (torch.ones(3, 4),)).reader

    assert reader.document(Statistics) is not None
    assert reader.document(Trace) is not None
    assert reader.document(Measures) is not None
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_an_error_that_cannot_be_explained_is_the_users_own() -> None:
    class Pipeline:
        def __init__(self) -> None:
            self.net = net()

        def __call__(self, x: Any) -> Any:
            return self.net(x)

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        exhibit(Pipeline(), (torch.ones(3, 5),))


class Worded(nn.Module):
    """A forward whose arguments are called as options of the verbs are."""

    def forward(
        self, x: Any, *, target: Any = 0, backward: Any = 0, loss: Any = 0, against: Any = 0
    ) -> Any:
        return x + target + backward + loss + against


def test_arguments_of_a_forward_may_have_the_names_of_options() -> None:
    x = torch.ones(2)

    reader = exhibit(Worded(), (x,), {"target": x, "backward": x, "loss": x, "against": x}).reader
    measured = reader.document(Measures)

    assert measured is not None
    assert measured.rows[0].total_forward_flops is not None


def test_an_option_that_the_forward_takes_too_is_asked_about() -> None:
    with pytest.raises(TargetError, match="'against' is an option of explore, and an argument"):
        explore(Worded(), torch.ones(2), target=1, against=torch.ones(2))


def test_inputs_without_a_model_are_refused() -> None:
    with pytest.raises(TargetError, match="the model comes first"):
        explore(x=torch.ones(2))


def test_statistics_that_were_recorded_before_are_there() -> None:
    model = net()
    with tg.record_torch_module_forward_stats(model):
        model(torch.ones(3, 4))

    assert "3×8" in shown(model, press=("f",))


def test_a_pipeline_that_is_no_module_is_a_tree_of_its_models() -> None:
    class Pipeline:
        def __init__(self) -> None:
            self.encoder = net()
            self.heads = {"cat": nn.Linear(2, 2)}

    text = shown(Pipeline())

    assert "encoder" in text
    assert "cat" in text


def test_what_other_verbs_gave_back_can_be_explored() -> None:
    model, inputs = net(), torch.ones(3, 4)

    assert "3×8" in shown(tg.trace(model, inputs), press=("f",))
    assert "BatchNorm1d" in shown(tg.summary(model))
    assert "time" in shown(tg.profile(model, inputs, warmup=0, repeats=1))


@pytest.mark.parametrize("wrap", [dict, lambda state: {"epoch": 3, "model": state}])
def test_a_dict_of_tensors_is_explored_as_the_file_it_came_from(wrap: Any) -> None:
    state = wrap(net().state_dict())

    text = shown(state, press=("a",))

    assert "running_mean" in shown(state, press=("t",))
    assert "no difference" in shown(state, against=state)
    assert "0" in text
    assert "Attributes" in text


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

    assert "no difference" in shown(model, against=model)


def test_a_run_is_compared_without_its_values(tmp_path: Path) -> None:
    with tg.watch(net(), save=tmp_path / "run.glass"):
        pass

    assert "no difference" in shown(tmp_path / "run.glass", against=net())


def test_a_checkpoint_cannot_be_run(tmp_path: Path) -> None:
    save_file(net().state_dict(), tmp_path / "net.safetensors")

    with pytest.raises(TargetError, match="only a live model can be run"):
        exhibit(tmp_path / "net.safetensors", (torch.ones(3, 4),))


def test_runs_and_checkpoints_of_a_folder_are_found(tmp_path: Path) -> None:
    save_file(net().state_dict(), tmp_path / "weights.safetensors")
    (tmp_path / "runs").mkdir()
    with tg.watch(net(), save=tmp_path / "runs" / "today.glass"):
        pass
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "x.pt").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("")

    assert {path.name for path in find_targets(tmp_path)} == {"weights.safetensors", "today.glass"}


@pytest.mark.parametrize(("press", "picked"), [(("down", "enter"), 1), (("escape",), None)])
def test_one_of_them_is_picked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, press: tuple[str, ...], picked: int | None
) -> None:
    monkeypatch.chdir(tmp_path)
    files = [tmp_path / "a.glass", tmp_path / "gone.pt"]
    files[0].write_bytes(b"12")
    app = Picker(files)

    async def story() -> None:
        async with app.run_test() as pilot:
            await pilot.pause()
            assert "a.glass        2 B  just now" in "\n".join(
                strip.text for strip in app.screen._compositor.render_strips()
            )
            await pilot.press(*press)
            await pilot.pause()

    asyncio.run(story())

    assert app.return_value == (None if picked is None else files[picked])


def test_without_a_terminal_it_says_what_else_there_is() -> None:
    with pytest.raises(ViewError, match="needs a terminal"):
        explore(net())


def test_without_a_terminal_nothing_can_be_picked_but_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in "abcdefg":
        (tmp_path / f"{name}.pt").write_bytes(b"")

    with pytest.raises(ViewError, match=r"`torchglass summary .\.pt` prints one; there are .*, …"):
        explore()


def test_in_an_event_loop_the_page_is_opened_and_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)

    async def cell() -> Any:
        return explore(net())

    server = asyncio.run(cell())
    server.close()

    assert opened
    assert "the page was opened instead" in capsys.readouterr().err


@pytest.fixture(scope="module")
def shell() -> Iterator[Any]:
    shell = start_ipython()  # type: ignore[no-untyped-call]
    yield shell
    shell.reset()


@pytest.mark.parametrize(
    ("line", "explored"),
    [
        ("model", ("MODEL",)),
        ("model, x", ("MODEL", "X")),
        ("runs/today.glass", ("runs/today.glass",)),
        ("net.py:Net", ("net.py:Net",)),
        ("", ("LAST",)),
    ],
)
def test_the_magic_of_ipython(shell: Any, line: str, explored: tuple[str, ...]) -> None:
    seen: list[tuple[Any, ...]] = []
    install(shell, lambda *given: seen.append(given))
    shell.user_ns.update({"model": "MODEL", "x": "X", "_": "LAST"})

    for magic in ("explore", "EMA"):
        shell.run_line_magic(magic, line)

    assert seen == [explored, explored]


def test_rps_ema_explores_the_model_that_was_recorded_last(shell: Any) -> None:
    seen: list[tuple[Any, ...]] = []
    install(shell, lambda *given: seen.append(given))
    shell.user_ns.update({"net": net, "tg": tg, "torch": torch, "_": ""})

    shell.run_cell("first, second, third = net(), net(), net()")
    shell.run_cell("EMA")
    shell.run_cell(
        "with tg.record_torch_module_forward_stats(second):\n    output = second(torch.ones(3, 4))"
    )
    shell.run_cell("EMA")
    shell.run_cell("output")
    shell.run_cell("EMA")

    names = shell.user_ns
    assert seen == [(names["third"],), (names["second"],), (names["second"],)]


def test_a_config_says_what_is_shown_for_this_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    config = tg.ExplorerConfig(show_memory=False, color_scheme="light", max_depth=0)

    preferences = config.memory().load()

    assert "bytes" not in preferences.labels.shown
    assert (preferences.theme, preferences.depth) == ("glass-light", 0)
    assert Preferences().labels.shown != preferences.labels.shown


def test_choices_are_there_again_in_the_next_session(tmp_path: Path) -> None:
    memory = PreferenceFile(tmp_path / "explorer.json")
    reader: Reader = exhibit(net()).reader

    async def choose(pilot: Pilot[None]) -> None:
        await pilot.press("p", "A", "greater_than_sign", "space", "L", "down", "J")

    drive(ExplorerApp(Exhibit(reader=reader), memory=memory), choose)
    again = ExplorerApp(reader, memory=memory)

    async def look(pilot: Pilot[None]) -> None:
        tree = again.explorer.tree_panel
        assert [column.title for column in tree.columns] == ["class", "memory"]
        assert not tree.labels.aligned
        assert tree.labels.order[:2] == ("class", "change")
        assert tree.row_count == 1
        assert again.explorer.share == 35

    drive(again, look)

"""Inspector Gadgets' users keep their code and their file, and get values that are right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jsonschema
import pytest
import torch
from torch import nn

from benchmarks.models import ResNet18
from tests.command_line import main
from tests.inspections import SCHEMA_FILE, read_inspection
from torchglass import InspectorGadgets, errors, inspect

SETUP = """
from torchglass import InspectorGadgets
"""

STANDALONE = """
model = torchvision.models.resnet18(pretrained=True).train()
dummy_input = torch.randn(1, 3, 224, 224)
# Initialize Inspector Gadgets with your model and the file the results should be saved to
inspector = InspectorGadgets(model, save_file='examples/insight')
# Has to be called before running the model
inspector.start()
output = model(dummy_input)
# (Recommended) Get correct memory usage and latency for backward in the last layer
inspector.backward_mode()
loss = torch.mean(output)
loss.backward()
# Removes all hooks and releases every link to the model
inspector.finish()
"""

CONTEXT_MANAGER = """
model = torchvision.models.resnet18(pretrained=True).train()
dummy_input = torch.randn(1, 3, 224, 224)

with InspectorGadgets(model, save_file='examples/insight') as inspector:
    output = model(dummy_input)
    inspector.backward_mode()
    loss = torch.mean(output)
    loss.backward()
"""

KEYS = {
    "type": str,
    "input_shapes": list,
    "output_shapes": list,
    "grad_in_shape": list,
    "grad_out_shape": list,
    "num_parameters": int,
    "num_learnable_parameters": int,
    "param_memory_usage": float,
    "gradient_memory_usage": float,
    "input_memory_usage": list,
    "output_memory_usage": list,
    "effective_additional_memory_fwd": float,
    "effective_additional_memory_bwd": float,
    "forward_nan": bool,
    "grad_in_nan": bool,
    "grad_out_nan": bool,
    "total_memory": float,
    "forward_latency": float,
    "backward_latency": float,
}
"""The keys of the document, in its order."""


def infos(tree: dict[str, Any]) -> list[dict[str, Any]]:
    found = [tree["info"]]
    for child in tree["children"].values():
        found += infos(child)
    return found


@pytest.mark.parametrize("snippet", [STANDALONE, CONTEXT_MANAGER], ids=["standalone", "context"])
def test_the_snippet_runs_as_printed_and_every_module_has_all_its_values(
    snippet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    class ResNet(ResNet18):
        """torchvision's name of it, for the file."""

    models = SimpleNamespace(resnet18=lambda pretrained: ResNet())

    exec(SETUP + snippet, {"torch": torch, "torchvision": SimpleNamespace(models=models)})

    written = json.loads(Path("examples/insight_ResNet.json").read_text())
    jsonschema.validate(written, json.loads(SCHEMA_FILE.read_text()))
    every = infos(written["ResNet"])
    assert len(every) == len(list(ResNet().modules()))
    for info in every:
        assert list(info)[: len(KEYS)] == list(KEYS)
        for key, kind in KEYS.items():
            assert isinstance(info[key], kind), key
        assert info["output_shapes"]
        assert info["grad_out_shape"] == info["output_shapes"]
        assert info["forward_latency"] > 0
        assert info["backward_latency"] > 0 or info["type"] == "Identity"
    first = written["ResNet"]["children"]["conv1"]["info"]
    assert first["input_shapes"] == [[1, 3, 224, 224]]
    assert first["output_memory_usage"] == [64 * 112 * 112 * 4 / 1e6]
    assert first["num_parameters"] == 64 * 3 * 7 * 7


def run(
    model: nn.Module, *inputs: Any, loss: Callable[[Any], Any] = torch.mean, **kwargs: Any
) -> Any:
    """A model inspected in a loop of the user's."""
    with InspectorGadgets(model) as inspector:
        loss(model(*inputs, **kwargs)).backward()
    (result,) = inspector.results.values()
    return result


class Residual(nn.Module):
    """Modules between paths around them, the last one in place."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.fc = nn.Linear(4, 4)
        self.bad = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        x = x + self.fc(self.norm(x))
        return x + self.bad(x) * x


def test_gradients_match_torch_hooks() -> None:
    torch.manual_seed(0)
    model = Residual()
    with torch.no_grad():
        model.bad.weight[0, 0] = torch.inf
    x = torch.randn(3, 4, requires_grad=True)
    seen: dict[str, tuple[Any, Any]] = {}
    hooks = [
        module.register_full_backward_hook(
            lambda _, inputs, outputs, path=path: seen.update({path: (inputs, outputs)})
        )
        for path, module in model.named_modules()
    ]
    model(x).mean().backward()
    for hook in hooks:
        hook.remove()

    result = run(model, x)

    for path, (inputs, outputs) in seen.items():
        (call,) = result[path].calls
        for measured, gradients in (
            (call.input_gradients, inputs),
            (call.output_gradients, outputs),
        ):
            assert [one.spec.shape for one in measured] == [tuple(g.shape) for g in gradients]
            for one, gradient in zip(measured, gradients, strict=True):
                assert one.stats is not None
                assert one.stats.nan == gradient.isnan().sum()
                assert one.stats.inf == gradient.isinf().sum()
        info = result[path].info
        assert info["grad_in_nan"] == (not inputs[0].isfinite().all())
        assert info["grad_out_nan"] == (not outputs[0].isfinite().all())
    assert result["bad"].info["forward_nan"]
    assert not result["fc"].info["forward_nan"]


def test_nan_and_inf_are_counted_separately() -> None:
    class Spoiled(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x / torch.tensor([0.0, 0.0, 1.0])

    x = torch.tensor([[0.0, 2.0, 3.0], [0.0, 4.0, 5.0]], requires_grad=True)

    info = run(nn.Sequential(Spoiled()), x)["0"].info

    assert (info["forward_nan"], info["forward_nan_count"], info["forward_inf_count"]) == (
        True,
        2,
        2,
    )
    assert (info["grad_in_nan"], info["grad_in_nan_count"], info["grad_in_inf_count"]) == (
        True,
        0,
        4,
    )
    assert (info["grad_out_nan"], info["grad_out_nan_count"]) == (False, 0)


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


def test_tensors_in_tuples_and_keyword_arguments_are_recorded_with_their_sizes() -> None:
    class Mixed(nn.Module):
        def forward(self, x: torch.Tensor, *, mask: torch.Tensor, scale: float) -> Any:
            return Pair(x * mask, [x.to(torch.bfloat16) * scale])  # type: ignore[arg-type]

    x = torch.randn(2, 3, requires_grad=True)
    mask = torch.ones(2, 3, dtype=torch.bool)

    result = run(
        Mixed(), x, mask=mask, scale=2.0, loss=lambda out: out.left.sum() + out.right[0].sum()
    )

    info = result[""].info
    (call,) = result[""].calls
    assert [one.place for one in call.inputs] == ["0", "mask"]
    assert [one.place for one in call.outputs] == ["left", "right.0"]
    assert info["input_memory_usage"] == [24 / 1e6, 6 / 1e6]
    assert info["output_memory_usage"] == [24 / 1e6, 12 / 1e6]
    assert info["grad_in_shape"] == [[2, 3]]
    assert info["grad_out_shape"] == [[2, 3], [2, 3]]


def test_modules_with_tuples_are_inspected_forward_and_backward() -> None:
    x = torch.randn(5, 2, 4)
    model = nn.LSTM(4, 3)

    result = run(model, x, loss=lambda out: out[0].sum() + out[1][0].sum())

    assert result[""].info["output_shapes"] == [[5, 2, 3], [1, 2, 3], [1, 2, 3]]
    # Nothing comes back for the cell state, which the loss does not use.
    assert result[""].info["grad_out_shape"] == [[5, 2, 3], [1, 2, 3]]


def test_gradient_memory_matches_real_gradients() -> None:
    model: Any = nn.Sequential(nn.Embedding(100, 4, sparse=True), nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight.requires_grad_(False)
    used = torch.tensor([1, 2, 3])

    with InspectorGadgets(model) as inspector:
        model[1](model[0](used)).sum().backward()
        sparse = model[0].weight.grad
        expected = sparse._values().nbytes + sparse._indices().nbytes
        # A training loop throws gradients away; what they took was seen when they came.
        model.zero_grad()

    result = inspector.results["Sequential"]
    assert result["0"].info["gradient_memory_usage"] == expected / 1e6
    assert result["1"].info["gradient_memory_usage"] == 16 / 1e6
    assert result["2"].info["gradient_memory_usage"] == 0
    assert result[""].info["gradient_memory_usage"] == (expected + 16) / 1e6
    assert result["1"].info["num_learnable_parameters"] == 4
    assert result["1"].info["num_parameters"] == 20
    assert result["1"].info["total_memory"] == (80 + 16 + 48) / 1e6


def test_forward_memory_matches_torch_profiler() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Flatten(),
        nn.Linear(8 * 16 * 16, 10), nn.Softmax(1),
    )  # fmt: skip
    x = torch.randn(4, 3, 16, 16)
    model(x)
    with torch.profiler.profile(profile_memory=True) as profiler:
        output = model(x)
    events = profiler.profiler.kineto_results.events()
    expected = sum(event.nbytes() for event in events if event.name() == "[memory]")
    del output

    result = run(model, x)

    assert result[""].info["effective_additional_memory_fwd"] == expected / 1e6
    added = [result[str(index)].info["effective_additional_memory_fwd"] for index in range(6)]
    # What went into the last one is no longer there when the model is done.
    assert sum(added) == pytest.approx((expected + 4 * 10 * 4) / 1e6)
    assert added[2] == added[3] == 0


def test_a_backward_frees_forward_memory_and_keeps_gradients() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    x = torch.randn(32, 64)

    with InspectorGadgets(model) as inspector:
        output = model(x)
        output.sum().backward()

    info = inspector.results["Sequential"][""].info
    gradients = sum(p.nbytes for p in model.parameters())
    after = info["effective_additional_memory_fwd"] + info["effective_additional_memory_bwd"]
    # The gradient that came to the model was made by the loss, and goes when it has been used.
    assert output.nbytes <= round(after * 1e6) - gradients + output.nbytes <= 2 * output.nbytes


class Sleeps(nn.Module):
    """Sleeps, and runs what is inside."""

    def __init__(self, seconds: float, *inner: nn.Module) -> None:
        super().__init__()
        self.seconds = seconds
        self.inner = nn.Sequential(*inner)

    def forward(self, x: torch.Tensor) -> Any:
        time.sleep(self.seconds)
        return Nap.apply(self.inner(x), self.seconds)  # type: ignore[no-untyped-call]


class Nap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        time.sleep(ctx.seconds)
        return gradients[0], None


def test_the_memory_of_a_parent_is_not_the_sum_of_its_children() -> None:
    model = Sleeps(0.02, Sleeps(0.01), nn.ReLU(inplace=True))
    large = torch.randn(1000, 1000, requires_grad=True)

    with InspectorGadgets(model) as inspector:
        output = model(large)
        time.sleep(0.05)
        inspector.backward_mode()
        output.sum().backward()

    result = inspector.results["Sleeps"]
    for stage in ("forward", "backward"):
        parent, child = (result[path].info for path in ("", "inner.0"))
        assert child[f"{stage}_latency"] >= 10
        assert parent[f"{stage}_self_latency"] >= 20
        assert parent[f"{stage}_latency"] >= 30
        assert parent[f"{stage}_latency"] > child[f"{stage}_latency"]
        every = sum(one.info[f"{stage}_self_latency"] or 0 for one in result.values())
        assert every == pytest.approx(parent[f"{stage}_latency"])


def test_each_call_of_a_shared_module_is_recorded_and_its_alias_says_so() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.second = self.first

        def forward(self, x: torch.Tensor) -> Any:
            return self.second(self.first(x)[:1])

    result = run(Shared(), torch.randn(3, 4))

    info = result["first"].info
    assert [call["outputs"][0]["spec"]["shape"] for call in info["calls"]] == [[3, 4], [1, 4]]
    assert all(call["backward"]["total_ns"] > 0 for call in info["calls"])
    both = sum(call["forward"]["total_ns"] for call in info["calls"])
    assert info["forward_latency"] == both / 1e6
    assert result["second"].info == {**info, "same_as": "first"}
    assert info["num_calls"] == 2


def test_a_recursive_module_is_not_counted_twice() -> None:
    class Recursive(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, left: int = 2) -> Any:
            return self.fc(self(x, left - 1) if left else x)

    result = run(Recursive(), torch.randn(3, 4))

    whole = result[""]
    nested = [call.nested for call in whole.calls]
    assert sorted(nested) == [False, True, True]
    (outermost,) = (call for call in whole.calls if not call.nested)
    assert outermost.forward is not None
    assert whole.info["forward_latency"] == outermost.forward.total_ns / 1e6
    every = sum(one.info["forward_self_latency"] for one in result.values())
    assert every == pytest.approx(whole.info["forward_latency"])


def test_several_models_get_separate_files(tmp_path: Path) -> None:
    generator, critic, other = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 1)), nn.Linear(4, 2)

    with InspectorGadgets([generator, critic, other], save_file=tmp_path / "gan.json") as inspector:
        critic(generator(torch.randn(2, 4))).sum().backward()

    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "gan_Linear.json",
        "gan_Linear_2.json",
        "gan_Sequential.json",
    ]
    assert list(inspector.results) == ["Linear", "Sequential", "Linear_2"]
    assert inspector.results["Linear"][""].info["backward_latency"] > 0
    idle = read_inspection(tmp_path / "gan_Linear_2.json")
    assert idle[""].info["forward_latency"] is None
    assert idle.record.notes == ("the model was not called during the inspection",)


def test_the_root_is_found_by_its_class_name_as_in_the_file() -> None:
    model = nn.Sequential(nn.Linear(4, 2))

    with InspectorGadgets(model) as inspector:
        model(torch.ones(3, 4))

    result = inspector.results["Sequential"]
    assert result["Sequential"].info == result[""].info
    assert list(result) == ["", "0"]
    assert inspector.results[""] is result
    with pytest.raises(KeyError, match="no module 'Linear'"):
        result["Linear"]


def test_the_table_and_the_file_count_in_the_same_megabytes() -> None:
    model = nn.Linear(1000, 1000)

    with InspectorGadgets(model) as inspector:
        output = model(torch.ones(2000, 1000))
        output.sum().backward()

    added = inspector.results["Linear"][""].info["effective_additional_memory_fwd"]
    assert f"{added:.1f} MB" in str(inspector.results["Linear"])
    assert added == pytest.approx(8.0)


@pytest.mark.parametrize("name", ["lr0.1", "lr0.01", "v1.2.json", "net.v2", ".hidden", "a.JSON"])
def test_a_file_name_with_dots_is_kept(name: str, tmp_path: Path) -> None:
    with InspectorGadgets(nn.ReLU(), save_file=tmp_path / name):
        pass

    start = name.removesuffix(".json").removesuffix(".JSON")
    assert [file.name for file in tmp_path.iterdir()] == [f"{start}_ReLU.json"]


@pytest.mark.parametrize(("depth", "paths"), [(0, 1), (1, 3), (None, 5), (-1, 5)])
def test_watch_depth_limits_the_inspected_levels(depth: int | None, paths: int) -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 2))

    with InspectorGadgets(model, watch_depth=depth) as inspector:
        model(torch.randn(3, 4)).sum().backward()

    result = inspector.results["Sequential"]
    assert len(result) == paths
    assert result[""].info["num_parameters"] == 30
    assert result[""].info["gradient_memory_usage"] == 120 / 1e6
    every = sum(one.info["backward_self_latency"] for one in result.values())
    assert every == pytest.approx(result[""].info["backward_latency"])


def test_without_a_backward_there_are_no_backward_values() -> None:
    model = nn.Sequential(nn.Linear(4, 4))

    with InspectorGadgets(model) as inspector:
        model(torch.randn(3, 4))

    info = inspector.results["Sequential"]["0"].info
    assert info["grad_in_shape"] == info["grad_out_shape"] == []
    assert info["backward_latency"] is info["effective_additional_memory_bwd"] is None
    assert info["gradient_memory_usage"] == 0
    assert "there was no backward" in str(inspector.results["Sequential"])


def test_forward_or_backward_can_be_inspected_alone() -> None:
    model = nn.Linear(4, 4)
    x = torch.randn(3, 4, requires_grad=True)

    with InspectorGadgets(model, watch_forward=False) as back:
        model(x).sum().backward()
    with InspectorGadgets(model, watch_backward=False) as forth:
        model(x).sum().backward()

    back_info, forth_info = (one.results["Linear"][""].info for one in (back, forth))
    assert back_info["forward_latency"] is None
    assert back_info["input_shapes"] == []
    assert back_info["grad_in_shape"] == [[3, 4]]
    assert back_info["backward_latency"] > 0
    assert forth_info["forward_latency"] > 0
    assert forth_info["grad_in_shape"] == []
    assert forth_info["backward_latency"] is None


def test_starting_and_finishing_twice_is_harmless(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    inspector = InspectorGadgets(model, save_file=tmp_path / "a" / "insight")
    with pytest.raises(errors.CaptureError, match="start"):
        inspector.finish()

    inspector.start()
    inspector.start()
    inspector.forward_mode()
    model(torch.randn(3, 4)).sum().backward()
    assert inspector.results["Linear"][""].info["num_calls"] == 1
    inspector.finish()
    inspector.finish()
    model(torch.randn(3, 4))

    assert inspector.results["Linear"][""].info["num_calls"] == 1
    assert (tmp_path / "a" / "insight_Linear.json").exists()
    with pytest.raises(errors.CaptureError, match="start"):
        inspector.backward_mode()
    with inspector:
        model(torch.randn(3, 4))
        model(torch.randn(3, 4))
    assert inspector.results["Linear"][""].info["num_calls"] == 2


def test_a_finished_inspector_releases_the_model() -> None:
    import weakref

    model = nn.Linear(4, 4)
    link = weakref.ref(model)
    with InspectorGadgets(model) as inspector:
        model(torch.randn(3, 4)).sum().backward()

    del model

    assert link() is None
    with pytest.raises(errors.CaptureError, match="deleted"):
        inspector.start()


def test_after_an_exception_in_the_forward_the_data_so_far_is_written(tmp_path: Path) -> None:
    class Breaks(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            raise KeyError("mine")

    model = nn.Sequential(nn.Linear(4, 4), Breaks())

    with (
        pytest.raises(KeyError, match="mine"),
        InspectorGadgets(model, save_file=tmp_path / "insight"),
    ):
        model(torch.randn(3, 4))

    result = read_inspection(tmp_path / "insight_Sequential.json")
    assert result["0"].info["output_shapes"] == [[3, 4]]
    assert [result[path].calls[0].error for path in ("", "1")] == ["KeyError", "KeyError"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the inspection was not written")
def test_a_failing_script_shows_only_its_own_error() -> None:
    script = (
        "import torch; from torchglass import InspectorGadgets\n"
        "model = torch.nn.Linear(2, 2)\n"
        "inspector = InspectorGadgets(model)\n"
        "inspector.start()\n"
        "model(torch.ones(1, 3))\n"
    )

    ended = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True
    )

    assert ended.stderr.splitlines()[-1].startswith("RuntimeError: mat1 and mat2")
    assert "Exception ignored" not in ended.stderr


def test_an_unwritable_file_does_not_hide_the_users_exception(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    save_file = tmp_path / "file" / "insight"

    with pytest.raises(KeyError, match="mine"), InspectorGadgets(nn.ReLU(), save_file=save_file):
        raise KeyError("mine")

    with pytest.raises(OSError, match="file"), InspectorGadgets(nn.ReLU(), save_file=save_file):
        pass


def test_only_models_are_inspected() -> None:
    with pytest.raises(errors.TargetError, match="int"):
        InspectorGadgets([nn.ReLU(), 3])  # type: ignore[list-item]
    with pytest.raises(errors.TargetError, match="an empty list"):
        InspectorGadgets([])
    with pytest.raises(errors.CaptureError, match="an nn"):
        inspect(print)
    with pytest.raises(errors.LookupFailedError, match=r"fc1.*fc"):
        run(Residual(), torch.randn(2, 4))["fc1"]


def test_an_inspection_file_round_trips_and_other_files_are_refused(tmp_path: Path) -> None:
    result = run(Residual(), torch.full((2, 4), torch.nan))
    file = result.save(tmp_path / "folder" / "insight.json")

    assert read_inspection(file).record == result.record
    jsonschema.validate(json.loads(file.read_text()), json.loads(SCHEMA_FILE.read_text()))
    file.write_text('{"Net": {"info": {}, "children": {}}}')
    with pytest.raises(errors.StoreError, match="not an inspection"):
        read_inspection(file)


def test_the_number_of_kept_steps_is_limited_and_the_latest_is_shown() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    with InspectorGadgets(model) as inspector:
        for size in range(1, 121):
            model(torch.randn(size, 4)).sum().backward()

    result = inspector.results["Sequential"]
    info = result["0"].info
    assert info["num_calls"] == 120
    assert len(info["calls"]) == 100
    assert info["input_shapes"] == [[120, 4]]
    last = result["0"].calls[-1]
    assert last.forward is not None
    assert info["forward_latency"] == last.forward.total_ns / 1e6
    assert result.record.passes == 120


def test_two_forwards_before_a_backward_are_kept_separate() -> None:
    model = nn.Linear(4, 4)

    with InspectorGadgets(model) as inspector:
        first, second = model(torch.randn(2, 4)), model(torch.randn(3, 4))
        (first.sum() + second.sum()).backward()

    calls = inspector.results["Linear"][""].calls
    shapes = [call.output_gradients[0].spec.shape for call in calls]
    assert shapes == [(2, 4), (3, 4)]
    assert all(call.backward and call.backward.total_ns > 0 for call in calls)


def test_inspect_saves_the_file_and_does_not_change_the_model(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout())
    state = {key: value.clone() for key, value in model.state_dict().items()}
    before = torch.get_rng_state()
    told: list[tuple[int, int]] = []

    result = inspect(
        model,
        torch.randn(8, 4, generator=torch.Generator()),
        backward=True,
        save=tmp_path / "net.json",
        progress=lambda done, total: told.append((done, total)),
    )

    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert told[-1] == (8, 8)
    assert result[""].info["gradient_memory_usage"] == 28 * 4 / 1e6
    assert result["1"].info["backward_latency"] > 0
    assert read_inspection(tmp_path / "net.json").record == result.record
    assert "Backward" in str(result)


def test_a_model_without_gradients_notes_that_there_was_no_backward() -> None:
    result = inspect(nn.ReLU(), torch.ones(2), backward=True)

    assert result[""].info["backward_latency"] is None
    assert "requires a gradient" in str(result)


def shell(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torchglass", "inspect", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "200"},
    )


def test_the_inspect_command_prints_a_table_and_writes_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self):\n"
        "        super().__init__(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))\n"
    )

    table = shell(
        "net.py:Net", "--input", "3x4", "--backward", "--out", "net.json", folder=tmp_path
    )
    piped = main(["inspect", "net.py:Net", "--input", "3x4", "--out", "-"])

    assert (table.returncode, piped) == (0, 0), table.stderr
    assert "Linear" in table.stdout
    assert "Backward" in table.stdout
    assert table.stderr == "torchglass: wrote net.json\n"
    written = json.loads((tmp_path / "net.json").read_text())
    jsonschema.validate(written, json.loads(SCHEMA_FILE.read_text()))
    assert written["Net"]["children"]["0"]["info"]["grad_out_shape"] == [[3, 8]]
    printed = json.loads(capsys.readouterr().out)
    assert printed["Net"]["info"]["backward_latency"] is None

"""TorchLens' calls, as its users write them."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchglass as tl
from tests.zoo_trace import Recurrent


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Dropout(), nn.Linear(4, 2))


def test_layers_that_were_not_requested_are_not_listed(model: nn.Module) -> None:
    history = tl.log_forward_pass(
        model, torch.ones(3, 4), layers_to_save=["relu", -2], keep_unsaved_layers=False
    )

    assert history.layer_labels == ["relu_1_2", "linear_2_4"]
    assert len(history) == 2
    assert history[-1].label == "linear_2_4"


def test_activation_postfunc_transforms_saved_tensors(model: nn.Module) -> None:
    history = tl.log_forward_pass(
        model,
        torch.ones(3, 4),
        activation_postfunc=lambda tensor: tensor.mean(0),
        output_device="cpu",
        detach_saved_tensors=True,
    )

    relu = history["relu_1_2"]
    assert relu.shape == (3, 4)
    assert relu.tensor_contents is not None
    assert relu.tensor_contents.shape == (4,)
    assert not relu.tensor_contents.requires_grad


def test_random_seed_makes_passes_reproducible_and_keeps_the_global_state(model: nn.Module) -> None:
    x = torch.ones(3, 4)
    state = torch.get_rng_state()

    first, second = (tl.log_forward_pass(model, x, random_seed=7) for _ in range(2))

    assert torch.equal(first.output, second.output)
    assert torch.equal(torch.get_rng_state(), state)
    assert "Random seed: 7" in str(first)


def test_gradients_are_filled_in_by_the_users_backward(model: nn.Module) -> None:
    history = tl.log_forward_pass(model, torch.ones(3, 4), save_gradients=True)

    history.output.sum().backward()

    assert history["linear_2"].gradient is not None
    assert torch.equal(history["linear_2"].gradient, torch.ones(3, 2))


def test_arguments_can_be_a_list_or_keywords() -> None:
    class Sum(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a + b

    one = torch.ones(2)

    listed = tl.log_forward_pass(Sum(), [one, one * 2])
    named = tl.log_forward_pass(Sum(), None, {"a": one, "b": one * 2})

    assert listed.output.tolist() == named.output.tolist() == [3, 3]
    assert named["input.b"].tensor_contents is not None


@pytest.mark.parametrize("vis_opt", ["rolled", "unrolled"])
def test_the_drawing_is_saved_at_the_given_path(vis_opt: Any, tmp_path: Path) -> None:
    tl.show_model_graph(
        Recurrent(),
        torch.randn(3, 5),
        vis_opt=vis_opt,
        save_only=True,
        vis_outpath=str(tmp_path / "graph.gv"),
        vis_fileformat="svg",
        vis_direction="leftright",
        vis_node_overrides={"tooltip": lambda history, node: f"of {history.record.model}"},
    )

    picture = (tmp_path / "graph.svg").read_text(encoding="utf-8")
    assert ("(×4)" in picture) == (vis_opt == "rolled")
    assert "of Recurrent" in picture


@pytest.mark.parametrize(
    ("path", "file"),
    [("lr0.1", "lr0.1.svg"), ("lr0.01", "lr0.01.svg"), ("v1.svg", "v1.svg"), ("a.pdf", "a.svg")],
)
def test_a_drawing_keeps_dots_in_its_file_name(path: str, file: str, tmp_path: Path) -> None:
    tl.show_model_graph(
        nn.ReLU(),
        torch.ones(2),
        save_only=True,
        vis_outpath=str(tmp_path / path),
        vis_fileformat="svg",
    )

    assert [written.name for written in tmp_path.iterdir()] == [file]


def test_invalid_drawing_options_list_the_valid_ones(model: nn.Module) -> None:
    x = torch.ones(3, 4)

    with pytest.raises(tl.TorchglassError, match="'none', 'rolled' or 'unrolled'"):
        tl.log_forward_pass(model, x, vis_opt="pretty")  # type: ignore[arg-type]
    with pytest.raises(tl.TorchglassError, match="bottomup, topdown, leftright"):
        tl.log_forward_pass(model, x, vis_opt="rolled", vis_direction="sideways")


def test_distances_and_arguments_are_always_recorded(model: nn.Module) -> None:
    asked = tl.log_forward_pass(
        model, torch.ones(3, 4), mark_input_output_distances=True, save_function_args=True
    )
    plain = tl.log_forward_pass(model, torch.ones(3, 4))

    for history in (asked, plain):
        assert history["relu"].distances_from_input == (2, 2)
        assert history["relu"].distances_from_output is not None
        assert dict(history["relu"].settings)["inplace"] == "False"


def test_metadata_and_validation_need_no_saved_tensors(model: nn.Module) -> None:
    x = torch.ones(3, 4)

    metadata = tl.get_model_metadata(model, x)

    assert isinstance(metadata, tl.ModelHistory)
    assert metadata["relu"].tensor_contents is None
    assert metadata["relu"].shape == (3, 4)
    assert metadata["relu"].distances_from_input == (2, 2)
    assert tl.validate_saved_activations(model, x, random_seed=1)


class Looped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.loop, self.fc2 = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = self.loop(x).relu()
        y: torch.Tensor = self.fc2(x)
        return y


def test_layers_that_were_not_saved_are_omitted_everywhere(tmp_path: Path) -> None:
    model, x = Looped(), torch.ones(3, 4)
    history = tl.log_forward_pass(
        model,
        x,
        layers_to_save=["fc2", 0, -1, "linear_1_1:2"],
        keep_unsaved_layers=False,
    )
    labels = ["input_1_0", "linear_1_1:2", "linear_2_3", "output_1_4"]
    history.save(tmp_path / "history")

    for each in (history, pickle.loads(pickle.dumps(history)), tl.load(tmp_path / "history.glass")):
        assert len(each) == len(list(each)) == len(each.to_dicts()) == 4
        assert each.layer_labels == labels
        assert [each[place].label for place in range(4)] == labels
        assert [each[place].label for place in range(-4, 0)] == labels
        assert [row["index"] for row in each.to_dicts()] == [0, 1, 2, 3]
        printed = str(each).partition("Layers")[2].splitlines()
        assert [line.split()[:2] for line in printed[1:]] == [
            [f"{place}:", label] for place, label in enumerate(labels)
        ]
        assert "7 without a saved tensor left out" in printed[0]
        assert each._repr_html_().count("<tr>") == 5
        for place, op in enumerate(each):
            assert {place, place - 4, op.label} <= set(op.lookup_keys)
            assert all(each[key] is op for key in op.lookup_keys)
        assert [op.label for op in each.layer("linear_1_1")] == ["linear_1_1:2"]


def test_looking_up_an_omitted_layer_says_why() -> None:
    history = tl.log_forward_pass(
        Looped(), torch.ones(3, 4), layers_to_save=["fc2"], keep_unsaved_layers=False
    )

    with pytest.raises(tl.TorchglassError, match="no layer 1: the trace has 1 whose tensors are"):
        history[1]
    with pytest.raises(tl.TorchglassError, match=r"relu_1_2:3 was not saved.*saved: linear_2_3"):
        history["relu_1_2:3"]
    assert "relu_1_2:3" not in history  # type: ignore[comparison-overlap]
    assert "fc2" in history  # type: ignore[comparison-overlap]
    # The relations of an op are those of the whole pass.
    assert history["fc2"].parents[0].label == "relu_1_2:4"


def test_the_recorded_random_seed_reproduces_the_pass() -> None:
    model, x = nn.Dropout(0.5), torch.ones(64)
    states = random.getstate(), torch.get_rng_state()

    history = tl.log_forward_pass(model, x)
    again = tl.log_forward_pass(model, x, random_seed=history.random_seed)

    assert f"\tRandom seed: {history.random_seed}\n" in str(history)
    assert torch.equal(history.output, again.output)
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])
    assert tl.log_forward_pass(model, x).random_seed != history.random_seed

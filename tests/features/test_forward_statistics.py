"""What goes through each module: recorded in a block, looked at as rp's users know it."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import torchglass as tg
from tests.explorer import terminal
from tests.terminals import python_in_terminal

MODEL = """
import torch
import torchglass as rp

model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 64, kernel_size=3, padding=1),
    torch.nn.ReLU(),
    torch.nn.MaxPool2d(2),
    torch.nn.Conv2d(64, 128, kernel_size=3, padding=1),
    torch.nn.ReLU(),
    torch.nn.Flatten(),
    torch.nn.Linear(128*16*16, 10)
)
input_tensor = torch.randn(1, 3, 32, 32)
"""

PROGRAMMATIC = """
# Example: Accessing stats programmatically
with rp.record_torch_module_forward_stats(model):
    output = model(input_tensor)

# Get stats for a specific layer
conv_layer = model[0]  # First layer
latest_stats = conv_layer.forward_stats[-1]
print(f"Input shape: {latest_stats.in_shape}, Output shape: {latest_stats.out_shape}")
print(f"Value range: {latest_stats.in_min:.3f} to {latest_stats.in_max:.3f}")
"""

TWO_METHODS = """
# Method 1: Using context manager
with rp.record_torch_module_forward_stats(model):
    output = model(input_tensor)

# Method 2: Using the explore function directly
rp.explore_torch_module_with_stats(model, input_tensor)
"""

KEYS = ["shape", "dtype", "device", "min", "max", "mean", "std", "requires_grad", "has_grad"]


def test_the_snippet_that_reads_statistics_runs_as_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names: dict[str, Any] = {}

    exec(MODEL + PROGRAMMATIC, names)

    shapes, values = capsys.readouterr().out.splitlines()
    x = names["input_tensor"]
    assert shapes == "Input shape: (1, 3, 32, 32), Output shape: (1, 64, 32, 32)"
    assert values == f"Value range: {x.min():.3f} to {x.max():.3f}"


@pytest.mark.slow
def test_the_snippet_that_explores_with_statistics_runs_as_printed() -> None:
    screen, code = python_in_terminal(MODEL + TWO_METHODS, (["Sequential", "Conv2d"], b"q"))

    assert "Linear" in screen
    assert code == 0


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))


def test_every_documented_name_is_an_attribute_and_a_key() -> None:
    model = network()
    x = torch.randn(5, 3, requires_grad=True)

    with tg.record_torch_module_forward_stats(model):
        output = model(x)

    stats = model.forward_stats[-1]
    for side, tensor in (("in", x.detach()), ("out", output.detach())):
        assert stats[f"{side}_shape"] == tuple(tensor.shape)
        assert stats[f"{side}_min"] == tensor.min().item()
        assert stats[f"{side}_max"] == tensor.max().item()
        assert stats[f"{side}_mean"] == pytest.approx(tensor.mean().item())
        assert stats[f"{side}_std"] == pytest.approx(tensor.std().item())
        assert stats[f"{side}_memory_bytes"] == tensor.nbytes
        assert (stats[f"{side}_dtype"], stats[f"{side}_device"]) == ("float32", "cpu")
        assert (stats[f"{side}_requires_grad"], stats[f"{side}_has_grad"]) == (True, False)
        assert all(getattr(stats, f"{side}_{key}") == stats[f"{side}_{key}"] for key in KEYS)
    assert 0 < stats.runtime == stats["runtime"] < 60


def test_the_recorded_input_of_an_in_place_module_is_not_its_output() -> None:
    model = network()

    with tg.record_torch_module_forward_stats(model):
        model(torch.randn(100, 3))

    stats = model[1].forward_stats[-1]
    assert stats.in_min < 0
    assert stats.out_min == 0


def test_forward_stats_fills_during_the_block_and_restarts_in_the_next() -> None:
    model = network()

    with tg.record_torch_module_forward_stats(model):
        model(torch.zeros(1, 3))
        assert len(model[0].forward_stats) == 1
        model(torch.ones(1, 3))
    assert [stats.in_max for stats in model[0].forward_stats] == [0.0, 1.0]

    with tg.record_torch_module_forward_stats(model):
        pass
    assert model[0].forward_stats == []


def test_forward_stats_keeps_at_most_the_requested_number() -> None:
    model = network()

    with tg.record_torch_module_forward_stats(model, keep=2):
        for number in range(5):
            model(torch.full((1, 3), float(number)))

    assert [stats.in_max for stats in model[0].forward_stats] == [3.0, 4.0]


def test_statistics_are_found_by_path() -> None:
    model: Any = nn.Sequential(network(), nn.Identity())

    with tg.record_torch_module_forward_stats(model):
        model[0](torch.ones(2, 3))

    found = tg.get_forward_stats(model)
    assert list(found) == ["0", "0.0", "0.1", "0.2"]
    assert found["0.2"][-1].out_shape == (2, 2)
    assert tg.get_forward_stats(network()) == {}


def test_a_model_with_statistics_can_be_copied_pickled_and_saved() -> None:
    model = network()
    keys = list(model.state_dict())

    with tg.record_torch_module_forward_stats(model):
        model(torch.ones(2, 3))

    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other[0].forward_stats == model[0].forward_stats
    assert list(model.state_dict()) == keys


def test_only_the_recorded_part_of_a_pipeline_is_recorded() -> None:
    class Pipeline:
        def __init__(self) -> None:
            self.text = nn.Linear(3, 3)
            self.unet = network()

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(3):
                x = self.unet(self.text(x))[:, :1].expand(-1, 3)
            return x

    pipeline = Pipeline()

    with tg.record_torch_module_forward_stats(pipeline.unet):
        pipeline(torch.ones(1, 3))

    assert len(pipeline.unet[0].forward_stats) == 3
    assert not hasattr(pipeline.text, "forward_stats")
    with tg.record(pipeline) as recording:
        pipeline(torch.ones(1, 3))
    assert {path: module.totals.calls for path, module in recording.items()} == {
        "text": 3,
        "unet": 3,
        "unet.0": 3,
        "unet.1": 3,
        "unet.2": 3,
    }


def test_a_recording_lists_each_pass_and_leaves_nothing_on_the_model() -> None:
    model = network()

    with tg.record(model, keep=10) as recording:
        for size in (1, 2, 3):
            model(torch.ones(size, 3))

    assert recording.forward_count == 3
    assert [recording.forwards[number]["2"][0].out_shape for number in (1, 2, 3)] == [
        (1, 2),
        (2, 2),
        (3, 2),
    ]
    assert not hasattr(model, "forward_stats")


def test_tensors_are_kept_on_request_within_a_budget() -> None:
    model = network()
    x = torch.ones(2, 3)

    with tg.record(model, tensors=True) as recording:
        output = model(x)
    with tg.record(model, tensors=40) as small:
        model(x)

    assert torch.equal(recording.tensors["", 1, "out"], output)
    assert torch.equal(recording.tensors["0", 1, "in.0"], x)
    assert recording.tensors["1", 1, "in.0"].min() < 0 <= recording.tensors["1", 1, "out"].min()
    assert sum({id(t): t.nbytes for t in small.tensors.values()}.values()) <= 40
    assert small.tensors_left_out > 0


def test_exploring_with_statistics_changes_neither_buffers_nor_random_state() -> None:
    model: Any = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout())
    before = torch.get_rng_state()

    with terminal() as opened:
        tg.explore_torch_module_with_stats(model, torch.randn(4, 3, generator=torch.Generator()))

    assert len(opened) == 1
    assert model[1].forward_stats[-1].out_shape == (4, 3)
    assert model[1].num_batches_tracked == 0
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
def test_exploring_a_lazy_model_with_statistics_initializes_it() -> None:
    model: Any = nn.Sequential(nn.LazyLinear(2))

    with terminal():
        tg.explore_torch_module_with_stats(model, torch.ones(1, 5))

    assert model(torch.ones(1, 5)).shape == (1, 2)
    assert model[0].forward_stats[-1].in_shape == (1, 5)

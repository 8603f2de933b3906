"""The snippets of rp's two documents run as printed, once their import line names torchglass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import torchglass as rp
from tests.terminals import python_in_terminal

GETTING_STARTED = """
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

# Basic exploration without runtime stats
rp.explore_torch_module(model)
"""

CUSTOM_MODEL = """
import torch
from torchglass import explore_model

class CustomNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, 64, 3, padding=1)
        self.conv2 = torch.nn.Conv2d(64, 128, 3, padding=1)
        self.fc = torch.nn.Linear(128 * 56 * 56, 1000)

    def forward(self, x):
        x = torch.relu(self.conv1(x))
        x = torch.relu(self.conv2(x))
        x = x.view(x.size(0), -1)
        return self.fc(x)

# Explore custom model
model = CustomNet()
explore_model(model)
"""


@pytest.mark.parametrize(
    ("snippet", "shown"),
    [
        (GETTING_STARTED, ["Sequential", "Conv2d", "Linear"]),
        pytest.param(CUSTOM_MODEL, ["CustomNet", "conv2"], marks=pytest.mark.slow),
    ],
    ids=["getting started", "custom model"],
)
def test_a_snippet_opens_the_explorer_until_q(snippet: str, shown: list[str]) -> None:
    # The document's second model has 1.6 GB of weights, which nobody looks at here.
    without_memory = "import torch; torch.set_default_device('meta')"

    screen, code = python_in_terminal(f"{without_memory}\n{snippet}", (shown, b"q"))

    assert all(word in screen for word in shown)
    assert code == 0


WITH_STATISTICS = """
import torch
import torchglass as rp

model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, kernel_size=3, padding=1), torch.nn.ReLU())

# With runtime stats (after running a forward pass)
input_tensor = torch.randn(1, 3, 32, 32)
with rp.record_torch_module_forward_stats(model):
    output = model(input_tensor)

# Now explore with runtime stats available
rp.explore_torch_module(model)
"""

STATISTICS_AT_ONCE = """
import torch
import torchglass as rp

model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, kernel_size=3, padding=1), torch.nn.ReLU())
input_tensor = torch.randn(1, 3, 32, 32)

# Method 2: Using the explore function directly
rp.explore_torch_module_with_stats(model, input_tensor)
"""


@pytest.mark.parametrize(
    "snippet", [WITH_STATISTICS, pytest.param(STATISTICS_AT_ONCE, marks=pytest.mark.slow)]
)
def test_f_shows_the_shapes_of_a_recorded_forward(snippet: str) -> None:
    screen, code = python_in_terminal(snippet, (["Conv2d"], b"f"), (["1×64×32×32"], b"q"))

    assert "1×3×32×32" in screen
    assert code == 0


ACCESSING = """
import torchglass as rp

# Example: Accessing stats programmatically
with rp.record_torch_module_forward_stats(model):
    output = model(input_tensor)

# Get stats for a specific layer
conv_layer = model[0]  # First layer
latest_stats = conv_layer.forward_stats[-1]
print(f"Input shape: {latest_stats.in_shape}, Output shape: {latest_stats.out_shape}")
print(f"Value range: {latest_stats.in_min:.3f} to {latest_stats.in_max:.3f}")
"""


def test_statistics_are_accessed_as_specified(capsys: pytest.CaptureFixture[str]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 2))

    exec(ACCESSING, {"model": model, "input_tensor": torch.zeros(3, 4)})

    assert capsys.readouterr().out == (
        "Input shape: (3, 4), Output shape: (3, 2)\nValue range: 0.000 to 0.000\n"
    )


DIFFUSION = """
from diffusers import StableDiffusionPipeline
import torch
import torchglass as rp

# Setup
device = rp.select_torch_device()
pipe = StableDiffusionPipeline.from_pretrained(
    "CompVis/stable-diffusion-v1-4",
    revision="fp16",
    torch_dtype=torch.float16
).to(device)

# Record statistics during a forward pass
with rp.record_torch_module_forward_stats(pipe.unet):
    pipe('A photograph of a cat', num_inference_steps=3)

# Explore the UNet with recorded statistics
rp.explore_torch_module(pipe.unet)
"""

PIPELINE = """
import torch

class StableDiffusionPipeline:
    def __init__(self, dtype):
        self.dtype = dtype
        self.unet = torch.nn.Sequential(torch.nn.Linear(8, 8, dtype=dtype), torch.nn.SiLU())

    @classmethod
    def from_pretrained(cls, name, revision, torch_dtype):
        return cls(torch_dtype)

    def to(self, device):
        self.unet.to(device)
        return self

    def __call__(self, prompt, num_inference_steps):
        latents = torch.ones(1, 8, dtype=self.dtype)
        for _ in range(num_inference_steps):
            latents = self.unet(latents)
        return latents
"""


@pytest.mark.slow
def test_a_part_of_a_pipeline_is_explored_after_the_pipeline_ran(tmp_path: Path) -> None:
    # The document's pipeline is gigabytes from another host: this one has its face.
    (tmp_path / "diffusers.py").write_text(PIPELINE, encoding="utf-8")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{DIFFUSION}"

    screen, code_back = python_in_terminal(code, (["SiLU"], b"f"), (["calls", "float16"], b"q"))

    assert "3" in screen.partition("calls")[2]
    assert code_back == 0


def seed_format_shape(shape: Any) -> str:
    return "×".join(str(dim) for dim in shape) if shape else ""


def seed_format_param_count(count: int) -> str:
    if count < 1000:
        return f"{count}"
    elif count < 1_000_000:
        return f"{count / 1000:.1f}K"
    elif count < 1_000_000_000:
        return f"{count / 1_000_000:.1f}M"
    else:
        return f"{count / 1_000_000_000:.1f}B"


def seed_format_time(seconds: float) -> str:
    if seconds < 1e-6:
        ns = seconds * 1e9
        return f"{ns:.1f}ns"
    elif seconds < 1e-3:
        us = seconds * 1e6
        return f"{us:.2f}μs"
    elif seconds < 1.0:
        ms = seconds * 1e3
        return f"{ms:.2f}ms"
    elif seconds < 60.0:
        return f"{seconds:.4f}s" if seconds < 10.0 else f"{seconds:.2f}s"
    else:
        minutes = seconds / 60.0
        return f"{minutes:.1f}min" if minutes < 60.0 else f"{minutes / 60.0:.1f}h"


@given(st.lists(st.integers(0, 10_000)).map(tuple))
def test_shapes_are_formatted_as_specified(shape: tuple[int, ...]) -> None:
    assert rp.format_shape(shape) == seed_format_shape(shape)


@given(st.integers(0, 10**13))
def test_counts_are_formatted_as_specified(count: int) -> None:
    assert rp.format_param_count(count) == seed_format_param_count(count)


@given(st.floats(0, 1e7))
def test_times_are_formatted_as_specified(seconds: float) -> None:
    assert rp.format_time(seconds) == seed_format_time(seconds)


def seed_analyze_memory_usage(model: torch.nn.Module) -> dict[str, int]:
    memory_stats = {}

    for name, param in model.named_parameters():
        element_size = param.element_size()  # bytes per element
        num_elements = param.numel()
        total_bytes = element_size * num_elements
        memory_stats[name] = total_bytes

    return memory_stats


def seed_get_parameter_statistics(model: torch.nn.Module) -> dict[str, int]:
    return {
        "total_params": sum(p.numel() for p in model.parameters()),
        "trainable_params": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "non_trainable_params": sum(p.numel() for p in model.parameters() if not p.requires_grad),
        "memory_usage": sum(p.numel() * p.element_size() for p in model.parameters()),
    }


@pytest.fixture(params=["encoder", "mixed", "empty"])
def model(request: pytest.FixtureRequest) -> torch.nn.Module:
    """A deep model, one of several dtypes that is frozen in part, and one without parameters."""
    if request.param == "encoder":
        return torch.nn.TransformerEncoderLayer(16, 2, 32)
    if request.param == "empty":
        return torch.nn.Sequential(torch.nn.ReLU())
    mixed = torch.nn.Sequential(torch.nn.Linear(3, 4).half(), torch.nn.BatchNorm1d(4).double())
    mixed[0].requires_grad_(False)
    return mixed


def test_memory_matches_the_code_of_the_specification(model: torch.nn.Module) -> None:
    assert rp.analyze_memory_usage(model) == seed_analyze_memory_usage(model)


def test_statistics_match_the_code_of_the_specification(model: torch.nn.Module) -> None:
    assert rp.get_parameter_statistics(model) == seed_get_parameter_statistics(model)


@pytest.mark.parametrize("format", ["text", "json", "html"])
def test_a_summary_is_exported_in_each_format(model: torch.nn.Module, format: Any) -> None:
    assert type(model).__name__ in rp.export_model_summary(model, format=format)

"""The snippets of rp's second document that use names of its tools run as printed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchglass as rp
from tests.terminals import python_in_terminal
from torchglass import (
    ModuleInfo,
    analyze_model_async,
    analyze_module,
    generate_architecture_diagram,
    lazy_parameter_analysis,
)


class Small(nn.Module):
    """Two layers that share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.blocks[0].weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(self.first(x))
        return x


TIMING = """
import torch
import torchglass as rp

model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU())
with rp.record_torch_module_forward_stats(model):
    model(torch.ones(64, 512))

# If torch_hooks is available, show timing statistics
try:
    from torchglass import display_timing_in_explorer, get_forward_stats
    timing_data = get_forward_stats(model)
    display_timing_in_explorer(timing_data)
except ImportError:
    # Explorer still works without timing data
    pass
"""

LOADING = """
import torch
import torchglass as rp
from torchglass import explore_model

# Works with RP's model loading functions
model_path = rp.input_select_file(extension_filter='pth')
model = torch.load(model_path)
explore_model(model)
"""

ASYNC = """
import asyncio
from textual import work
from textual.worker import WorkerCancelled
from torchglass import analyze_module

@work(exclusive=True)
async def analyze_model_async(model):
    \"\"\"Non-blocking model analysis for large models\"\"\"
    try:
        # Process in chunks to maintain UI responsiveness
        for i, (name, module) in enumerate(model.named_modules()):
            if i % 100 == 0:  # Yield control periodically
                await asyncio.sleep(0.01)

            analyze_module(name, module)
    except WorkerCancelled:
        # Handle cancellation gracefully
        pass
"""

LAZY = """
from torchglass import analyze_module_detailed, get_module_by_path

def lazy_parameter_analysis(model):
    \"\"\"Analyze parameters on-demand to save memory\"\"\"
    def get_module_info(module_path):
        # Only analyze when requested
        module = get_module_by_path(model, module_path)
        return analyze_module_detailed(module)

    return get_module_info
"""

DIAGRAM = """
import torchglass as rp
from torchglass import extract_model_graph

# Generate model diagrams using RP's plotting
def generate_architecture_diagram(model):
    graph_data = extract_model_graph(model)
    return rp.plot_network_graph(graph_data)
"""

EXPORT = """
import torchglass as rp
from torchglass import generate_model_summary

# Save analysis results using RP's file functions
summary = generate_model_summary(model)
rp.save_text_file(summary, 'model_analysis.txt')
"""

FORMATS = """
from torchglass import generate_html_summary, generate_json_summary, generate_text_summary

def export_model_summary(model, format='text'):
    \"\"\"Export analysis results\"\"\"
    if format == 'text':
        return generate_text_summary(model)
    elif format == 'json':
        return generate_json_summary(model)
    elif format == 'html':
        return generate_html_summary(model)
"""


def defined(snippet: str, **given: Any) -> dict[str, Any]:
    """The names that a snippet leaves behind."""
    names = dict(given)
    exec(snippet, names)
    return names


@pytest.mark.slow
def test_recorded_times_are_displayed_in_the_explorer() -> None:
    screen, code = python_in_terminal(TIMING, (["Linear", "time", "μs"], b"q"))

    assert "ReLU" in screen
    assert code == 0, screen[-1500:]


def test_a_file_is_picked_loaded_and_explored(tmp_path: Path) -> None:
    torch.save(Small().state_dict(), tmp_path / "small.pth")
    (tmp_path / "notes.txt").write_text("not offered")

    screen, code = python_in_terminal(
        LOADING, (["small.pth"], b"\r"), (["blocks", "first"], b"q"), folder=tmp_path
    )

    assert "notes.txt" not in screen
    assert code == 0, screen[-1500:]


def test_async_analysis_returns_every_module() -> None:
    run: Callable[..., Any] = defined(ASYNC)["analyze_model_async"].__wrapped__

    assert asyncio.run(run(Small())) is None
    found = asyncio.run(analyze_model_async(Small()))

    assert list(found) == [name for name, _ in Small().named_modules()]
    assert found["first"] == ModuleInfo(
        name="first",
        module_type="Linear",
        parameter_count=20,
        shapes={"weight": (4, 4), "bias": (4,)},
        memory_usage=80,
    )


def test_a_module_is_analyzed_on_first_access() -> None:
    model = Small()
    with rp.record_torch_module_forward_stats(model):
        model(torch.ones(1, 4))

    info = defined(LAZY)["lazy_parameter_analysis"](model)("blocks")

    # The document's own function is not told the path, and names the class.
    assert replace(info, name="blocks") == lazy_parameter_analysis(model)("blocks")
    assert info.parameter_count == 3 * 20
    assert next(iter(info.shapes)) == "0.weight"
    assert analyze_module("first", model.first).timing_stats is not None
    with pytest.raises(KeyError, match=r"no module 'block'; did you mean blocks"):
        lazy_parameter_analysis(model)("block")


def test_an_architecture_is_drawn() -> None:
    picture = defined(DIAGRAM)["generate_architecture_diagram"](Small())

    assert picture == generate_architecture_diagram(Small())
    assert "<svg" in picture
    assert "Linear(4→4)" in picture


def test_a_summary_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    defined(EXPORT, model=Small())

    assert (tmp_path / "model_analysis.txt").read_text(encoding="utf-8") == str(rp.summary(Small()))


@pytest.mark.parametrize("format", ["text", "json", "html"])
def test_each_export_format_has_its_own_name(format: Any) -> None:
    exported = defined(FORMATS)["export_model_summary"](Small(), format)

    assert exported == rp.export_model_summary(Small(), format)

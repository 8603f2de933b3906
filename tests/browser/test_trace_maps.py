"""The page of a trace: feature maps, attention maps, receptive fields and the block diagram."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import expect
from torch import nn

import torchglass as tg
from tests.browser.conftest import OpenPage, Serve


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, stride=2)
        self.pool = nn.MaxPool2d(2)
        self.q, self.k = nn.Linear(3, 4), nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.pool(self.conv(x)).flatten(2).transpose(1, 2)
        q, k = (one(y).unflatten(-1, (2, 2)).transpose(1, 2) for one in (self.q, self.k))
        return nn.functional.scaled_dot_product_attention(q, k, k, is_causal=True)


@pytest.fixture(scope="module")
def trace() -> Any:
    torch.manual_seed(0)
    return tg.trace(Net().eval(), torch.rand(1, 1, 17, 17), save="all")


def test_a_trace_has_its_maps_and_those_of_attention_in_a_saved_page(
    trace: Any, open_page: OpenPage, tmp_path: Path
) -> None:
    path = tg.view(trace, save=tmp_path / "trace.html")
    page = open_page(path.as_uri() + "#view=activations", offline=True)

    maps = page.get_by_label("Activations").get_by_test_id("map")
    conv = maps.filter(has=page.get_by_role("button", name="conv", exact=True))
    expect(conv).to_contain_text("1×3×8×8 · 3 channels")
    expect(conv).not_to_contain_text("step")
    attention = maps.filter(has_text="attention weights (recomputed)")
    expect(attention).to_contain_text("1×2×16×16 · 2 heads · 0 … 1")
    # Three channels in four tiles: the last one is empty, not black.
    alpha = """one => {
        const {width, height} = one;
        const data = one.getContext("2d").getImageData(0, 0, width, height).data;
        return [data[3], data[data.length - 1]];
    }"""
    assert conv.locator("canvas").evaluate(alpha) == [255, 0]
    # What comes after the query is masked: black.
    assert attention.locator("canvas").evaluate(
        "one => [...one.getContext('2d').getImageData(15, 0, 1, 1).data.slice(0, 3)]"
    ) == [0, 0, 0]


def test_the_selected_module_tells_its_receptive_field(
    trace: Any, open_page: OpenPage, serving: Serve
) -> None:
    page = open_page(serving(trace).url + "#view=graph&module=pool")

    field = trace["pool"].receptive_field()
    assert field.size == (1, 1, 5, 5)
    expect(page.get_by_test_id("details")).to_contain_text(field.line())


def test_the_block_diagram_is_a_tab_of_a_model_that_was_run(
    open_page: OpenPage, tmp_path: Path
) -> None:
    model = Net().eval()
    path = tg.view(model, torch.rand(1, 1, 17, 17), save=tmp_path / "net.html")
    page = open_page(path.as_uri(), offline=True)
    expect(page.get_by_role("button", name="Graph", exact=True)).to_have_attribute(
        "aria-current", "page"
    )

    page.get_by_role("button", name="Diagram").click()

    picture = page.get_by_role("img", name="Block diagram of Net")
    picture.wait_for()
    page.wait_for_function("() => document.querySelector('.diagram img').naturalWidth > 100")
    expect(page.get_by_role("link", name="Download SVG")).to_have_attribute("download", "Net.svg")

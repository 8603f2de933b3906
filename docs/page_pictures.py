"""Photographs of the page, taken in a headless Chromium as a person would see it."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from playwright.sync_api import Browser, sync_playwright

import torchglass as tg
from tests.architectures import LanguageModel
from tests.browser import chromium

_DESKTOP = {"width": 1280, "height": 760}
_PHONE = {"width": 390, "height": 760}
_BLOCK = "in=blocks.1%3A1&module=blocks.1"

SHOTS: dict[str, tuple[str, dict[str, Any]]] = {
    "page": (f"{_BLOCK}&columns=blocks.1.attention%3A1", {"viewport": _DESKTOP}),
    "page-lines": (
        f"{_BLOCK}&columns=blocks.1.attention%3A1&mode=lines&color=gradients",
        {"viewport": _DESKTOP, "color_scheme": "dark"},
    ),
    "page-gradients": ("view=gradients", {"viewport": _DESKTOP}),
    "page-phone": ("view=graph", {"viewport": _PHONE, "has_touch": True}),
}
"""For each picture what the page shows, as its address says it, and in which window."""

OVERVIEWS: dict[str, dict[str, Any]] = {
    "healthy": {"viewport": {"width": 1280, "height": 830}},
    "nan": {"viewport": {"width": 1280, "height": 980}},
    "vanishing": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "stopped": {"viewport": {"width": 390, "height": 1400}, "has_touch": True},
}
"""The windows in which the overviews of `sick_trainings` are pictured, by their names."""


def photographs(page: Path, folder: Path) -> Iterator[Path]:
    """Pictures of a saved page."""
    with _browser() as browser:
        for name, (place, window) in SHOTS.items():
            yield _photograph(browser, f"{page.as_uri()}#{place}", folder / f"{name}.png", window)


def overviews(runs: Iterable[Path], folder: Path) -> Iterator[Path]:
    """A picture of the overview that each run opens on."""
    with _browser() as browser:
        for run in runs:
            page = tg.view(run, save=run.with_suffix(".html"))
            image = folder / f"page-{run.stem}.png"
            yield _photograph(browser, page.as_uri(), image, OVERVIEWS[run.stem])


def comparisons(folder: Path) -> Iterator[Path]:
    """A language model beside a copy of which some weights were changed."""
    torch.manual_seed(0)
    before = LanguageModel(4).eval()
    after = copy.deepcopy(before)
    with torch.no_grad():
        for name, weight in after.named_parameters():
            if ".2." in name and weight.dim() > 1:
                weight.mul_(1.2)
            elif ".3." in name:
                weight.add_(0.01 * torch.randn_like(weight))
    with _browser() as browser, tempfile.TemporaryDirectory() as name:
        page = Path(name) / "comparison.html"
        tg.compare(before, after, torch.randint(100, (2, 16))).to_html(page)
        window = {"viewport": {"width": 1280, "height": 860}}
        yield _photograph(browser, page.as_uri(), folder / "page-comparison.png", window)


def quantizations(folder: Path) -> Iterator[Path]:
    """What each layer of a language model loses in low precision."""
    torch.manual_seed(0)
    report = tg.quantization(LanguageModel(2).eval(), torch.randint(100, (2, 16)), quality=30)
    with _browser() as browser, tempfile.TemporaryDirectory() as name:
        page = tg.view(report, save=Path(name) / "quantization.html")
        window = {"viewport": {"width": 1400, "height": 760}}
        yield _photograph(browser, page.as_uri(), folder / "page-quantization.png", window)


@contextmanager
def _browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium.find(), args=list(chromium.FLAGS)
        )
        yield browser
        browser.close()


def _photograph(browser: Browser, address: str, image: Path, window: dict[str, Any]) -> Path:
    with browser.new_context(**window) as context:
        tab = context.new_page()
        tab.goto(address)
        tab.locator("[data-testid=box], .training canvas, .tree-line").first.wait_for()
        tab.wait_for_load_state("networkidle")
        is_overview = "#" not in address and not tab.locator(".tree-line").count()
        if "columns=" in address or is_overview:
            tab.locator("[aria-label*='over steps']").first.wait_for()
        tab.screenshot(path=image)
    return image

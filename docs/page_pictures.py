"""Photographs of the page, taken in a headless Chromium as a person would see it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

import torchglass as tg
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
        tab.locator("[data-testid=box], .training canvas").first.wait_for()
        tab.wait_for_load_state("networkidle")
        if "columns=" in address or "#" not in address:
            tab.locator("[aria-label*='over steps']").first.wait_for()
        tab.screenshot(path=image)
    return image

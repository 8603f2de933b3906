"""Photographs of the page, taken in a headless Chromium as a person would see it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from tests.browser import chromium

_DESKTOP = {"width": 1280, "height": 760}
_PHONE = {"width": 390, "height": 760}
_BLOCK = "in=blocks.1%3A1&module=blocks.1"

SHOTS: dict[str, tuple[str, dict[str, Any]]] = {
    "page": (f"{_BLOCK}&columns=blocks.1.attention%3A1", {"viewport": _DESKTOP}),
    "page-lines": (
        f"{_BLOCK}&columns=blocks.1.attention%3A1&mode=lines&colour=gradients",
        {"viewport": _DESKTOP, "color_scheme": "dark"},
    ),
    "page-gradients": ("view=gradients", {"viewport": _DESKTOP}),
    "page-phone": ("", {"viewport": _PHONE, "has_touch": True}),
}
"""For each picture what the page shows, as its address says it, and in which window."""


def photographs(page: Path, folder: Path) -> Iterator[Path]:
    """Pictures of a saved page."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium.find(), args=list(chromium.FLAGS)
        )
        for name, (place, window) in SHOTS.items():
            yield _photograph(browser, f"{page.as_uri()}#{place}", folder / f"{name}.png", window)
        browser.close()


def _photograph(browser: Browser, address: str, image: Path, window: dict[str, Any]) -> Path:
    with browser.new_context(**window) as context:
        tab = context.new_page()
        tab.goto(address)
        tab.locator("[data-testid=box], .training canvas").first.wait_for()
        tab.wait_for_load_state("networkidle")
        if "columns=" in address:
            tab.locator("[aria-label*='over steps']").first.wait_for()
        tab.screenshot(path=image)
    return image

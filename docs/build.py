"""Makes the pictures in docs/images: `make docs`."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from playwright.sync_api import sync_playwright
from rich.console import Console

import torchglass as tg
from benchmarks.models import GPT2
from tests.browser import chromium
from tests.zoo_trace import AlexNet, Recurrent
from torchglass.demo.training import train
from torchglass.results.run import open_run
from torchglass.results.trace import Trace
from torchglass.views.tui.picture import draw_explorer
from torchglass.views.web.offline import write_page

IMAGES = Path(__file__).parent / "images"


def main() -> None:
    """Make every picture anew, and say which."""
    IMAGES.mkdir(exist_ok=True)
    torch.manual_seed(0)
    for path in (*_of_a_training(), *_of_traces()):
        sys.stderr.write(f"wrote {path.relative_to(Path.cwd())}\n")


def _of_a_training() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sorter.glass"
        train(file, 300, Console(stderr=True))
        with open_run(file) as run:
            explorer = IMAGES / "explorer.svg"
            explorer.write_text(draw_explorer(run.reader, columns=140, lines=30), encoding="utf-8")
            yield explorer
            page = Path(folder) / "sorter.html"
            write_page(run.reader, page)
            yield _photograph(page, IMAGES / "page.png")


def _photograph(page: Path, image: Path) -> Path:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium.find(), args=list(chromium.FLAGS)
        )
        tab = browser.new_page(viewport={"width": 1280, "height": 760})
        tab.goto(page.as_uri())
        tab.wait_for_load_state("networkidle")
        tab.screenshot(path=image)
        browser.close()
    return image


def _of_traces() -> Iterator[Path]:
    alexnet = tg.trace(AlexNet(), torch.rand(1, 3, 224, 224), save=None)
    yield _draw(alexnet, "alexnet")
    recurrent = tg.trace(Recurrent(), torch.randn(4, 5), save=None)
    yield _draw(recurrent, "recurrent", mode="rolled")
    yield _draw(recurrent, "recurrent-unrolled", direction="right")
    gpt = tg.trace(GPT2(12, 96, 4, 1000, 64), torch.zeros(1, 16, dtype=torch.long), save=None)
    yield _draw(gpt, "gpt")


def _draw(trace: Trace, name: str, **options: Any) -> Path:
    path = IMAGES / f"{name}.svg"
    trace.draw(path, **options)
    return path


if __name__ == "__main__":
    main()

"""Renews the pictures, tables, outputs and notebooks of the documentation: `make docs`."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import torchglass as tg
from benchmarks.models import GPT2
from docs import examples, finding_kinds, json_fields, notebooks
from docs.explorer_keys import PAGE, renewed
from docs.page_pictures import comparisons, overviews, photographs, quantizations
from docs.sick_trainings import trainings
from tests.architectures import LanguageModel, ResNet, UNet
from tests.zoo_trace import AlexNet, Recurrent
from torchglass.api.explore import make_source
from torchglass.demo import train
from torchglass.results.run import open_run
from torchglass.results.trace import Trace
from torchglass.views.tui.app import ExplorerSource, draw_explorer
from torchglass.views.tui.styled_text import LIGHT
from torchglass.views.web.saved_page import write_page

IMAGES = Path(__file__).parent / "images"


def main() -> None:
    """Renew everything that is generated, and say what."""
    IMAGES.mkdir(exist_ok=True)
    torch.manual_seed(0)
    for path in (*_of_a_training(), *_of_traces(), *_of_the_explorer()):
        sys.stderr.write(f"wrote {path.relative_to(Path.cwd())}\n")
    examples.renew()
    notebooks.renew()


def _of_a_training() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sorter.glass"
        train(file, 300, Console(stderr=True))
        with open_run(file) as run:
            explorer = IMAGES / "explorer.svg"
            explorer.write_text(
                draw_explorer(run.reader, columns=140, lines=30, press=["v"]), encoding="utf-8"
            )
            yield explorer
            page = Path(folder) / "sorter.html"
            write_page(run.reader, page)
            yield from photographs(page, IMAGES)
        yield from overviews(trainings(Path(folder)), IMAGES)
    yield from comparisons(IMAGES)
    yield from quantizations(IMAGES)


def _of_traces() -> Iterator[Path]:
    alexnet = tg.trace(AlexNet(), torch.rand(1, 3, 224, 224), save=None)
    yield _draw(alexnet, "alexnet")
    recurrent = tg.trace(Recurrent(), torch.randn(4, 5), save=None)
    yield _draw(recurrent, "recurrent", mode="rolled")
    yield _draw(recurrent, "recurrent-unrolled", direction="right")
    gpt = tg.trace(GPT2(12, 96, 4, 1000, 64), torch.zeros(1, 16, dtype=torch.long), save=None)
    yield _draw(gpt, "gpt")
    words = torch.zeros(1, 64, dtype=torch.long)
    for name, model, x in (
        ("gpt", LanguageModel(12), words),
        ("mixture", LanguageModel(6, experts=8), words),
        ("resnet", ResNet(), torch.rand(1, 3, 224, 224)),
        ("unet", UNet(), torch.rand(1, 3, 128, 128)),
    ):
        path = IMAGES / f"diagram-{name}.svg"
        tg.diagram(model.eval(), x).save(path)
        yield path


def _of_the_explorer() -> Iterator[Path]:
    """The explorer after a forward, in both themes, and a comparison; and its keys on the page."""
    generated = [(PAGE, renewed)]
    generated += [(one.PAGE, one.renewed) for one in (finding_kinds, json_fields)]
    for page, renew in generated:
        page.write_text(renew(page.read_text(encoding="utf-8")), encoding="utf-8")
        yield page
    model, words = GPT2(12, 96, 4, 1000, 64), torch.zeros(1, 16, dtype=torch.long)
    shown = make_source(model, (words,))
    walk = ["f", "F", "B", "down", "down", "down", "down", "z", "down", "down"]
    yield _picture("explorer-forward", shown, press=[*walk, "P"])
    yield _picture("explorer-code", shown, press=[*walk, "c"], theme=LIGHT.name)
    yield _picture(
        "explorer-comparison", make_source(tg.compare(*_two_versions())), press=["n"] * 3, lines=40
    )
    small = GPT2(2, 96, 4, 1000, 64)
    yield _picture(
        "explorer-quantization",
        make_source(tg.quantization(small, words, dtypes=["int8", "int4"], quality=35)),
        press=["down", "down", "down", "down", "z", "down", "down", "down"],
    )


def _two_versions() -> tuple[GPT2, GPT2]:
    """A model, and one with a block less, more words and other weights."""
    torch.manual_seed(0)
    before, after = GPT2(3, 96, 4, 1000, 64), GPT2(2, 96, 4, 1200, 64)
    known, shapes = before.state_dict(), after.state_dict()
    same = {name: one for name, one in known.items() if _shape_in(shapes, name) == one.shape}
    after.load_state_dict(same, strict=False)
    with torch.no_grad():
        for at, (name, weight) in enumerate(sorted(after.named_parameters())):
            if name in same and at % 3 == 0 and weight.dim() > 1:
                weight.add_(torch.randn_like(weight) * weight.std() * 10.0 ** -(at % 4 + 1))
    return before, after


def _shape_in(tensors: dict[str, torch.Tensor], name: str) -> torch.Size | None:
    return tensors[name].shape if name in tensors else None


def _picture(name: str, shown: ExplorerSource, *, lines: int = 28, **options: Any) -> Path:
    path = IMAGES / f"{name}.svg"
    path.write_text(draw_explorer(shown, columns=150, lines=lines, **options), encoding="utf-8")
    return path


def _draw(trace: Trace, name: str, **options: Any) -> Path:
    path = IMAGES / f"{name}.svg"
    trace.draw(path, **options)
    return path


if __name__ == "__main__":
    main()

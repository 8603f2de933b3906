"""What the demo saw, as text."""

from __future__ import annotations

import torch
from rich.console import Console

from torchglass.api import models
from torchglass.demo.sorter import LENGTH, Sorter
from torchglass.results.run import SavedRun, SavedSeries
from torchglass.views.formats import sparkline
from torchglass.views.tui.cells import squeeze

WIDTH = 40
"""Of the small curves, in characters."""

SHOWN = 5
"""How many gradients and weights."""


_FLOW = ("input", "output", "eval:")
"""How the names of series begin that are no parameters."""


def print_report(model: Sorter, run: SavedRun, console: Console) -> None:
    """The model, how its training went, where the largest gradients were, and what it can do."""
    example = torch.tensor([[3, 1, 4, 1, 5, 9][:LENGTH]])
    console.out(f"\n{models.summary(model, example)}")
    logged, gradients, weights = _sorted_out(run)
    _print_curves("The training", logged, "value", console)
    _print_curves("The largest gradients (standard deviation)", gradients, "std", console)
    _print_curves("The largest weights (standard deviation)", weights, "std", console)
    said = model.sort(example)
    console.print(f"\nIt sorts {_digits(example)} as {_digits(said)}.")


def _sorted_out(run: SavedRun) -> tuple[list[SavedSeries], list[SavedSeries], list[SavedSeries]]:
    """What was logged, and the largest gradients and weights."""
    series = list(run.series.values())
    logged = [each for each in series if each.record.kind == "scalar"]
    measured = [
        each
        for each in series
        if each.record.kind != "scalar" and len(each) and not each.record.name.startswith(_FLOW)
    ]
    measured.sort(key=lambda each: -each.column("std")[-1])
    gradients = [each for each in measured if each.label.endswith(".grad")]
    weights = [each for each in measured if not each.label.endswith(".grad")]
    return logged, gradients[:SHOWN], weights[:SHOWN]


def _print_curves(title: str, series: list[SavedSeries], field: str, console: Console) -> None:
    if not series:
        return
    console.print(f"\n[bold]{title}[/]")
    label_width = max(len(each.label) for each in series)
    for each in series:
        values = each.column(field)
        curve = sparkline(squeeze(values, WIDTH), WIDTH)
        console.out(f"  {each.label:<{label_width}}  {values[0]:>9.4g}  {curve}  {values[-1]:.4g}")


def _digits(row: torch.Tensor) -> str:
    return " ".join(str(digit) for digit in row[0].tolist())

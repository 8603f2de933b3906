"""`torchglass demo`: a small transformer learns to sort digits while it is watched."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from torch import nn
from torch.nn import functional

from torchglass.api import summary, watch
from torchglass.capture.watch.watcher import Watcher
from torchglass.results.run import SavedRun, open_run
from torchglass.targets.names import RUN_SUFFIX

FOLDER = Path("torchglass-demo")
DIGITS = 10
LENGTH = 6
"""Digits per sequence."""


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        split = self.query_key_value(x).unflatten(-1, (3, self.heads, -1))
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        result: torch.Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return result


class Block(nn.Module):
    """A pre-norm transformer block on (batch, length, width)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.network_norm = nn.LayerNorm(width)
        self.network = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        result: torch.Tensor = x + self.network(self.network_norm(x))
        return result


class Sorter(nn.Module):
    """Reads digits and continues with the same digits in order; the head is the embedding."""

    def __init__(self, width: int = 48, heads: int = 4, depth: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(DIGITS, width)
        self.position = nn.Embedding(2 * LENGTH - 1, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, DIGITS, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.1)
        nn.init.normal_(self.position.weight, std=0.1)
        self.head.weight = self.embedding.weight

    def forward(self, digits: torch.Tensor) -> torch.Tensor:
        """Logits of the next digit: (batch, length) to (batch, length, 10)."""
        places = torch.arange(digits.shape[1], device=digits.device)
        x = self.embedding(digits) + self.position(places)
        for block in self.blocks:
            x = block(x)
        scores: torch.Tensor = self.head(self.norm(x))
        return scores

    @torch.no_grad()
    def sort(self, digits: torch.Tensor) -> torch.Tensor:
        """The sorted digits, by greedy decoding."""
        said = digits
        for _ in range(LENGTH):
            said = torch.cat([said, self(said)[:, -1:].argmax(-1)], dim=1)
        return said[:, LENGTH:]


def make_batch(size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Random digits followed by their sorted order, and the targets of the last positions."""
    digits = torch.randint(DIGITS, (size, LENGTH), generator=generator)
    ordered = digits.sort(dim=1).values
    return torch.cat([digits, ordered[:, :-1]], dim=1), ordered


BATCH = 48
RATE = 5e-3
LINES = 6
"""Lines of progress without a terminal."""

ShowProgress = Callable[[int, float, float], None]


def train(file: Path, steps: int, console: Console, *, broken: bool = False) -> Sorter:
    """Train a new model and record it into a file. Ctrl-C ends the training early.

    With `broken` the training has a usual mistake: gradients are never cleared.
    """
    with torch.random.fork_rng(devices=()), _one_thread():
        torch.manual_seed(0)
        model = Sorter()
        with (
            watch.watch(model, save=file, verbose=False) as watcher,
            _progress(steps, console) as show_progress,
        ):
            try:
                _train(model, watcher, steps, show_progress, broken=broken)
            except KeyboardInterrupt:
                console.print("Stopped. This is what was recorded so far:")
    return model


def _train(
    model: Sorter, watcher: Watcher, steps: int, show: ShowProgress, *, broken: bool
) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    random = torch.Generator().manual_seed(0)
    for step in range(steps):
        digits, ordered = make_batch(BATCH, random)
        scores = model(digits)[:, LENGTH - 1 :]
        loss = functional.cross_entropy(scores.flatten(0, 1), ordered.flatten())
        if not broken:
            optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        accuracy = (scores.argmax(-1) == ordered).float().mean()
        watcher.log("loss", loss)
        watcher.log("accuracy", accuracy)
        watcher.log("learning_rate", schedule.get_last_lr()[0])
        show(step + 1, loss.item(), accuracy.item())


@contextlib.contextmanager
def _progress(steps: int, console: Console) -> Iterator[ShowProgress]:
    """A progress bar on a terminal, a few lines elsewhere."""
    if not console.is_terminal:
        yield lambda step, loss, accuracy: _print_line(console, steps, step, loss, accuracy)
        return
    columns = (
        TextColumn("Training a transformer to sort digits"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[shown]}"),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=steps, shown="")
        yield lambda step, loss, accuracy: progress.update(
            task, completed=step, shown=f"loss {loss:.3f}   {accuracy:.0%} correct"
        )


def _print_line(console: Console, steps: int, step: int, loss: float, accuracy: float) -> None:
    if step == 1:
        console.print("Training a transformer to sort digits")
    if step in (1, steps) or step % max(1, steps // LINES) == 0:
        console.print(f"  step {step:>4} of {steps}   loss {loss:.3f}   {accuracy:4.0%} correct")


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Ops this small are slower on several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def print_report(model: Sorter, run: SavedRun, console: Console) -> None:
    """The model, its run, and an example of what it learned."""
    example = torch.tensor([[3, 1, 4, 1, 5, 9][:LENGTH]])
    console.out(f"\n{summary.summary(model, example)}")
    console.out(f"\n{run}")
    said = model.sort(example)
    console.print(f"\nIt sorts {_digits(example)} as {_digits(said)}.")


def _digits(row: torch.Tensor) -> str:
    return " ".join(str(digit) for digit in row[0].tolist())


def run(
    directory: Path | None = None,
    *,
    show: bool | None = None,
    steps: int = 300,
    broken: bool = False,
) -> None:
    """Train, record into a new run file in the directory, save its page, and show it.

    With `show` the terminal explorer opens, otherwise a report is printed. None: the explorer if
    there is a terminal.
    """
    from torchglass.views.web.saved_page import write_page

    console = Console(highlight=False, soft_wrap=True)
    file = (directory or FOLDER) / f"{datetime.now():%Y%m%d-%H%M%S}{RUN_SUFFIX}"
    model = train(file, steps, console, broken=broken)
    page = file.with_suffix(".html")
    with open_run(file) as recorded:
        write_page(recorded.reader, page)
        if show if show is not None else console.is_terminal and sys.stdin.isatty():
            from torchglass.views.tui.app import ExplorerSource, run_explorer

            run_explorer(ExplorerSource(reader=recorded.reader, kind="run"))
        else:
            print_report(model, recorded, console)
    _print_ways_on(console, file, page)


def _print_ways_on(console: Console, file: Path, page: Path) -> None:
    command, python = _called("torchglass"), _called(Path(sys.executable).name)
    console.out(
        f"""
Run   {file}
Page  {page} (one file, needs no server)

Next
  {command} diagnose {file}
  {command} explore {file}
  {command} view {file}
  {python} -c 'import torchglass as tg; print(tg.open("{file}"))'"""
    )


def _called(program: str) -> str:
    """How to call a program beside our Python: by its name if the shell finds it."""
    beside = Path(sys.executable).with_name(program)
    if not beside.exists() or shutil.which(program) == str(beside):
        return program
    return os.path.relpath(beside)

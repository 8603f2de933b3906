"""The training of the demo's model, watched as any training is: by one line around it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from torch.nn import functional

from torchglass.api import training
from torchglass.capture.watch import Watcher
from torchglass.demo.sorter import LENGTH, Sorter, make_batch

BATCH = 48
RATE = 5e-3
LINES = 6
"""How often progress is told where there is no terminal to draw it on."""

Tell = Callable[[int, float, float], None]


def train(file: Path, steps: int, console: Console) -> Sorter:
    """Train a new model until it is done or the user has seen enough, recorded into a file."""
    with torch.random.fork_rng(devices=()), _one_thread():
        torch.manual_seed(0)
        model = Sorter()
        with (
            training.watch(model, save=file, verbose=False) as watcher,
            _telling(steps, console) as tell,
        ):
            try:
                _train(model, watcher, steps, tell)
            except KeyboardInterrupt:
                console.print("Stopped. This is what was seen until now:")
    return model


def _train(model: Sorter, watcher: Watcher, steps: int, tell: Tell) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    random = torch.Generator().manual_seed(0)
    for step in range(steps):
        digits, ordered = make_batch(BATCH, random)
        scores = model(digits)[:, LENGTH - 1 :]
        loss = functional.cross_entropy(scores.flatten(0, 1), ordered.flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        accuracy = (scores.argmax(-1) == ordered).float().mean()
        watcher.log("loss", loss)
        watcher.log("accuracy", accuracy)
        watcher.log("learning_rate", schedule.get_last_lr()[0])
        tell(step + 1, loss.item(), accuracy.item())


@contextlib.contextmanager
def _telling(steps: int, console: Console) -> Iterator[Tell]:
    """How far it is: a bar on a terminal, a few lines elsewhere."""
    if not console.is_terminal:
        yield lambda step, loss, accuracy: _print_line(console, steps, step, loss, accuracy)
        return
    columns = (
        TextColumn("Training a transformer to sort digits"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[told]}"),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=steps, told="")
        yield lambda step, loss, accuracy: progress.update(
            task, completed=step, told=f"loss {loss:.3f}   {accuracy:.0%} right"
        )


def _print_line(console: Console, steps: int, step: int, loss: float, accuracy: float) -> None:
    if step == 1:
        console.print("Training a transformer to sort digits")
    if step in (1, steps) or step % max(1, steps // LINES) == 0:
        console.print(f"  step {step:>4} of {steps}   loss {loss:.3f}   {accuracy:4.0%} right")


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Operations this small take longer when threads have to agree on them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)

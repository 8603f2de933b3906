"""An error in any function of ours neither stops nor changes the user's training."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchglass as tg
from tests.hard.faults import Place, PlantedError, flat, left_behind, places_of, plant, spread
from torchglass import TorchglassWarning

ALL = ("io", "io_grad", "params", "params_grad", "stats", "updates", "activations", "optimizer")
FEW_PLACES, MANY_PLACES = 6, 120
at_some_places = pytest.mark.parametrize(
    "most", [FEW_PLACES, pytest.param(MANY_PLACES, marks=pytest.mark.slow)]
)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.last = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        x = torch.relu_(self.norm(self.first(x)))
        x = tg.attach(x, self, "hidden")
        return {"out": self.last(nn.functional.dropout(x, 0.5))}


class Training:
    """Some steps of a model, the same each time, under a block of ours."""

    def __init__(self, under: Callable[[nn.Module], Any], steps: int = 2) -> None:
        self._under = under
        self._steps = steps
        self.model = Net()
        self.has_begun = False

    def __call__(self) -> list[Any]:
        torch.manual_seed(0)
        self.model = model = Net()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        losses = []
        block = self._under(model)
        with block as watcher:
            self.has_begun = True
            for step in range(self._steps):
                if step == 1:
                    model.eval()
                    model(torch.rand(2, 3))
                    model.train()
                loss = model(torch.rand(5, 3))["out"].square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if hasattr(watcher, "log"):
                    watcher.log("loss", loss)
                if hasattr(watcher, "forward_mode"):
                    watcher.forward_mode()
                losses.append(loss.item())
        weights = [parameter.detach() for parameter in model.parameters()]
        return [*flat(losses), *flat(weights), *flat(torch.rand(3))]


def sweep(
    most: int, under: Callable[[nn.Module], Any], wanted: Callable[[Place], bool] | None = None
) -> None:
    """Plant an error in each function of ours that runs, and list the places that do harm."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TorchglassWarning)
        training = Training(under)
        expected = training()
        clean = left_behind(training.model)
        places = [place for place in places_of(training) if wanted is None or wanted(place)]
        assert len(places) > 20
        # A watcher looks for optimizers among all objects; those that are there already are none.
        gc.collect()
        gc.freeze()
        harm = []
        for place in spread(places, most):
            training = Training(under)
            try:
                result, has_failed = plant(place, training)
                if has_failed and result != expected:
                    harm.append(f"{place}: other results")
            except PlantedError:
                # A verb may refuse to begin, as it does when its arguments are wrong.
                if training.has_begun:
                    harm.append(f"{place}: stops the training")
            after = left_behind(training.model)
            if after != clean:
                changed = [key for key in clean if after[key] != clean[key]]
                harm.append(f"{place}: leaves {', '.join(changed)}")
    gc.unfreeze()
    assert not harm, "\n" + "\n".join(harm)


@at_some_places
def test_no_internal_error_reaches_recorded_training(most: int) -> None:
    sweep(most, lambda model: tg.record(model, tensors=True))


@pytest.mark.parametrize("level", ["torch", "aten"])
@at_some_places
def test_no_internal_error_reaches_traced_training(level: Any, most: int) -> None:
    sweep(most, lambda model: tg.tracing(model, level=level, gradients=level == "torch"))


@pytest.mark.parametrize("cheap", [False, True])
@at_some_places
def test_no_internal_error_reaches_guarded_training(cheap: bool, most: int) -> None:
    sweep(most, lambda model: tg.guard(model, cheap=cheap))


@at_some_places
def test_no_internal_error_reaches_inspected_training(most: int) -> None:
    sweep(most, lambda model: tg.InspectorGadgets(model))


@at_some_places
def test_no_internal_error_reaches_watched_training(most: int) -> None:
    sweep(most, lambda model: tg.watch(model, log=ALL, run_dir=":memory:", verbose=False))


@pytest.mark.slow
@at_some_places
def test_no_internal_error_reaches_training_watched_at_some_steps(most: int) -> None:
    sweep(most, lambda model: tg.watch(model, log_freq=2, run_dir=":memory:", verbose=False))


@pytest.mark.slow
@at_some_places
def test_no_writer_error_reaches_training(tmp_path: Path, most: int) -> None:
    sweep(
        most,
        lambda model: tg.watch(model, run_dir=tmp_path, verbose=False),
        lambda place: "/store/" in place.code.co_filename,
    )

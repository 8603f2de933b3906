"""The hard models on a device: watched or guarded they do the same, and wait as seldom."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import torchglass as tg
from tests.device.counter import DeviceCounter
from tests.device.verbs import ALL_KINDS
from tests.hard import forwards
from tests.hard.steps import KNOWN_WARNINGS, tensors

pytestmark = KNOWN_WARNINGS

STEPS = 3
TWO_BACKWARDS = (
    *("force_of_energy", "gradient_without_graph", "gradient_of_gradient"),
    "checkpointed_reentrant",
)
"""They run a backward of their own, and the guard reads each of them."""
CANNOT_RUN = {"sparse", "lstm", "gru", "data parallel"}
"""The simulated device has no sparse kernels, no fused cells, and no properties to balance by."""
Around = Callable[[Any], AbstractContextManager[Any]]


class Left(NamedTuple):
    """What a training leaves behind, and how often each step waited for the device."""

    values: list[torch.Tensor]
    waits: list[int]


@contextlib.contextmanager
def on_the_device() -> Iterator[None]:
    """All new tensors are on the device."""
    torch.set_default_device("cuda:0")
    try:
        yield
    finally:
        torch.set_default_device(None)


def train(name: str, around: Around | None = None) -> Left:
    with on_the_device():
        torch.manual_seed(0)
        model = forwards.make(name)
        x = torch.randn(4, 4, requires_grad=name != "state")
        if name.startswith("lazy"):
            model(x)
        torch.manual_seed(1)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        left, waits = [], []
        # What the garbage collector frees in a step would be read late, in one of them by chance.
        gc.collect()
        with around(model) if around else nullcontext():
            for _ in range(STEPS):
                with DeviceCounter() as seen:
                    left += step(model, x, optimizer)
                waits.append(seen.waits + seen.others.total())
        of_input = [] if x.grad is None else [x.grad]
        left += [*of_input, *model.parameters(), *model.buffers(), torch.rand(3)]
        return Left([tensor.detach().cpu() for tensor in left], waits)


def step(model: Any, x: torch.Tensor, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    made = tensors(model(x))
    loss = sum((tensor.abs().mean() for tensor in made if tensor.requires_grad), torch.zeros(()))
    optimizer.zero_grad()
    if loss.requires_grad:
        torch.autograd.backward(loss)
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    optimizer.step()
    return [*(tensor.detach().clone() for tensor in made), *gradients, loss.detach()]


@cache
def plain(name: str) -> Left | str:
    """The training without us, or why this device cannot run it."""
    try:
        return train(name)
    except Exception as error:  # noqa: BLE001 - whatever the device lacks
        return str(error)[:90]


def test_all_other_hard_models_run_on_the_device() -> None:
    cannot = {name: found for name in forwards.NAMES if isinstance(found := plain(name), str)}

    assert set(cannot) == CANNOT_RUN, cannot


def watched(log_freq: int, folder: Path) -> Around:
    def around(model: Any) -> AbstractContextManager[Any]:
        path = folder / "run.glass"
        return tg.watch(model, log=ALL_KINDS, log_freq=log_freq, save=path, verbose=False)

    return around


@pytest.mark.parametrize("name", [name for name in forwards.NAMES if name not in CANNOT_RUN])
@pytest.mark.parametrize(
    ("verb", "most"),
    [("watch", 1), ("watch, unlogged", 0), ("record", 1), ("guard", 2), ("guard, cheap", 1)],
)
def test_a_training_is_the_same_and_waits_as_seldom(
    name: str, verb: str, most: int, tmp_path: Path
) -> None:
    expected = plain(name)
    assert not isinstance(expected, str), expected
    verbs: dict[str, Around] = {
        "watch": watched(1, tmp_path),
        "watch, unlogged": watched(1000, tmp_path),
        "record": tg.record,
        "guard": lambda model: tg.guard(model, on="record"),
        "guard, cheap": lambda model: tg.guard(model, on="record", cheap=True),
    }

    found = train(name, verbs[verb])

    assert len(found.values) == len(expected.values)
    for one, other in zip(found.values, expected.values, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    more = [ours - own for ours, own in zip(found.waits, expected.waits, strict=True)]
    budget = most + (verb == "guard" and name in TWO_BACKWARDS)
    # The first step is always logged.
    assert max(more[1:]) <= budget, more

"""A warning of ours points to the line of the user's that it is about."""

from __future__ import annotations

import inspect
import threading
import warnings

import pytest
import torch
from torch import nn

import torchglass as tg
from torchglass.errors import TorchglassWarning, warn


class Log(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.log()


LINE = inspect.getsourcelines(Log.forward)[1] + 1


@pytest.mark.parametrize("cheap", [False, True])
def test_the_warning_of_a_guard_points_to_user_code(cheap: bool) -> None:
    model = nn.Sequential(Log())

    with (
        pytest.warns(TorchglassWarning, match="log produced 2 NaN") as told,
        tg.guard(model, on="warn", cheap=cheap),
    ):
        model(-torch.ones(2))

    assert told[0].filename == __file__
    assert cheap or told[0].lineno == LINE


def test_a_warning_at_the_end_of_a_block_points_to_that_block() -> None:
    class Drifting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.weight.add_(1)
            return x * self.weight

    with pytest.warns(TorchglassWarning, match="the forward changes parameters") as told:
        tg.profile(Drifting(), torch.ones(1), warmup=0, repeats=1)

    assert told[0].filename == __file__


def test_a_warning_from_a_thread_without_user_code_is_shown() -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        thread = threading.Thread(target=warn, args=("it is full",))
        thread.start()
        thread.join()

    assert [str(warning.message) for warning in told] == ["it is full"]

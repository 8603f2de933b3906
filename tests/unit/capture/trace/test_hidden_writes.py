"""Memory that is written or freed where nobody would look: saved values stay what they were."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.nn import functional

import torchglass as tg

X = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
LARGE = torch.randn(300, 300, generator=torch.Generator().manual_seed(0))

Function = Callable[[torch.Tensor], Any]


class Calls(nn.Module):
    """A model that is one function."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def traced(function: Function, x: torch.Tensor = X) -> tg.Trace:
    return tg.trace(Calls(function), x)


def saved(trace: tg.Trace, name: str) -> torch.Tensor:
    tensor = trace[name].tensor
    assert tensor is not None
    return tensor


@pytest.mark.parametrize(
    "function",
    [
        torch.func.grad(lambda a: (a + 1).mul_(2).sum()),
        torch.vmap(lambda a: (a + 1).relu_()),
        torch.vmap(torch.func.grad(lambda a: (a + 1).mul_(2).sum())),
    ],
    ids=["grad", "vmap", "grad in vmap"],
)
def test_a_write_inside_a_transform_does_not_change_saved_values(function: Function) -> None:
    added = saved(traced(function), "add_1")

    assert torch.equal(added, X + 1)
    assert not is_functorch_wrapped_tensor(added)


# Torch's own code is deprecated by torch.
@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")
def test_torchs_own_writes_inside_a_transform_do_not_change_saved_values() -> None:
    trace = traced(torch.func.hessian(lambda a: a.square().sum()), X[0])

    assert not saved(trace, "diagonal_2").any()


def test_a_result_is_not_recomputed_from_an_untracked_write() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        z = y + 1
        with torch._C.DisableTorchFunction():
            y.zero_()
        return z.mul_(2)

    assert torch.equal(saved(traced(forward, LARGE), "add_1"), LARGE * 2 + 1)


def test_a_result_that_depends_on_the_default_dtype_is_not_recomputed() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        torch.set_default_dtype(torch.float64)
        try:
            y = x + 0.1
        finally:
            torch.set_default_dtype(torch.float32)
        return y.mul_(3)

    numbers = torch.arange(100_000)

    added = saved(traced(forward, numbers), "add_1")

    assert added.dtype is torch.float64
    assert torch.equal(added, numbers * 2 + torch.tensor(0.1, dtype=torch.float64))


@pytest.mark.parametrize("embed", [functional.embedding, functional.embedding_bag])
def test_an_embedding_with_a_max_norm_writes_its_weight(embed: Callable[..., Any]) -> None:
    index = torch.tensor([[1]])
    trace = traced(lambda x: embed(index, x * 2, max_norm=0.1))

    assert torch.equal(saved(trace, "mul_1"), X * 2)
    assert trace.validate()


def _frees_what_it_made(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    z = y.sum()
    y.untyped_storage().resize_(0)
    return z


def test_a_result_whose_memory_was_freed_is_not_saved(tmp_path: Path) -> None:
    trace = traced(_frees_what_it_made)
    trace.save(tmp_path / "pass.glass")

    assert trace["mul_1"].tensor is None
    assert "mul_1" in str(trace["mul_1"])
    assert trace.validate()
    assert tg.load(tmp_path / "pass.glass")["mul_1"].tensor is None
    assert torch.equal(saved(pickle.loads(pickle.dumps(trace)), "sum_1"), (X * 2).sum())


def test_an_op_on_freed_memory_is_not_replayed() -> None:
    weight = torch.ones(4, 4)

    def forward(x: torch.Tensor) -> torch.Tensor:
        made = x @ weight
        weight.untyped_storage().resize_(0)
        return made

    (skipped,) = traced(forward).validate().skipped

    assert "freed" in skipped.reason

"""Users give formulas for ops that nobody else knows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import flop_registry, register_flop_formula

from tests.models import Written
from torchglass.api.measure import flops, register_flops, unregister_flops
from torchglass.errors import CaptureError, TorchglassWarning


@torch.library.custom_op("glasstest::mix", mutates_args=())
def mix(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x @ weight


class Opaque(torch.autograd.Function):
    """A product that torch sees nothing of."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return torch.from_numpy(np.matmul(x.detach().numpy(), weight.detach().numpy()))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        return gradients[0] @ weight.T, x.T @ gradients[0]


class Doubled(Opaque):
    """The same with a context of its own kind, and a product inside that torch sees."""

    @staticmethod
    def forward(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return x @ weight

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)


def product(x: tuple[int, ...], weight: tuple[int, ...], *, out_shape: tuple[int, ...]) -> int:
    assert out_shape == (x[0], weight[1])
    return 2 * x[0] * x[1] * weight[1]


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    for op in (mix, Opaque, Doubled, torch.ops.aten.mm, torch.ops.aten.mm.default):
        unregister_flops(op)
    flop_registry.pop(torch.ops.glasstest.mix, None)


X, WEIGHT = torch.randn(3, 4), torch.randn(4, 5)


def test_an_op_without_a_formula_makes_a_lower_bound_and_shows_its_time() -> None:
    counted = flops(Written(lambda self, x: mix(x, WEIGHT), {}), X)

    assert [(op.op, op.calls) for op in counted.uncounted] == [("glasstest.mix", 1)]
    assert counted.is_lower_bound
    assert counted.uncounted_share is not None
    assert 0 < counted.uncounted_share < 1
    assert "Lower bound" in str(counted)
    assert "glasstest.mix ×1" in str(counted)


@pytest.mark.parametrize(
    "op", [mix, torch.ops.glasstest.mix, torch.ops.glasstest.mix.default, "glasstest::mix"]
)
def test_an_op_can_be_registered_by_any_of_its_names(op: Any) -> None:
    assert register_flops(op)(product) is product

    counted = flops(Written(lambda self, x: mix(x, WEIGHT), {}), X)

    assert counted.total_flops == 120
    assert not counted.is_lower_bound
    unregister_flops(op)
    assert flops(mix, X, WEIGHT).is_lower_bound


def test_a_formula_registered_with_torch_is_used() -> None:
    @register_flop_formula(torch.ops.glasstest.mix)
    def _(x: Any, weight: Any, out_shape: Any = None) -> int:
        return 7

    assert flops(mix, X, WEIGHT).total_flops == 7


def test_a_user_formula_overrides_the_built_in_one() -> None:
    register_flops(torch.ops.aten.mm)(lambda *args, out_shape: 1)

    assert flops(torch.mm, X, WEIGHT).total_flops == 1


@pytest.mark.parametrize("function", [Opaque, Doubled])
def test_an_autograd_function_counts_as_a_whole(function: Any) -> None:
    register_flops(function)(product)
    own = dict(vars(function))
    weight = nn.Parameter(WEIGHT.clone())

    counted = flops(
        Written(lambda self, x: function.apply(x, self.w), {"w": weight}), X, backward=True
    )

    assert counted.forward_flops == 120
    assert counted.backward_flops == 240
    assert counted.ops[-1].op != function.__name__
    assert {op.op: op.calls for op in counted.ops}[function.__name__] == 1
    assert dict(vars(function)) == own


def test_the_backward_of_an_autograd_function_has_its_own_formula() -> None:
    register_flops(Opaque)(product)

    @register_flops(Opaque, backward=True)
    def _(gradient: Any, *, out_shape: Any) -> int:
        assert gradient == (3, 5)
        assert out_shape == [(3, 4), (4, 5)]
        return 1000

    weight = nn.Parameter(WEIGHT.clone())
    counted = flops(
        Written(lambda self, x: Opaque.apply(x, self.w), {"w": weight}),  # type: ignore[no-untyped-call]
        X,
        backward=True,
    )

    assert (counted.forward_flops, counted.backward_flops) == (120, 1000)
    assert "backward" in vars(Opaque)


def test_a_failing_formula_is_a_warning() -> None:
    register_flops(mix)(lambda x, *, out_shape: 1)

    with pytest.warns(
        TorchglassWarning, match=r"glasstest\.mix is not counted: its formula raised"
    ):
        counted = flops(mix, X, WEIGHT)

    assert [op.op for op in counted.uncounted] == ["glasstest.mix"]


def test_a_formula_for_a_non_op_is_refused() -> None:
    with pytest.raises(CaptureError, match="is not an op"):
        register_flops(torch.nn.Linear)
    with pytest.raises(CaptureError, match="only for the backward of an autograd Function"):
        register_flops(mix, backward=True)

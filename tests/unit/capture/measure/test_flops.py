"""A step is counted without a trace in the user's world, whatever it does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.models import Written
from torchglass.api.measure import flops
from torchglass.errors import CaptureError


def test_gradients_buffers_and_parameters_are_restored() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model[0].weight.grad = gradient = torch.ones(4, 4)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    flops(model, torch.randn(3, 4), backward=True)

    assert model[0].weight.grad is gradient
    assert torch.equal(gradient, torch.ones(4, 4))
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("fake", [False, True])
def test_an_exception_in_a_counted_forward_is_unchanged_and_leaves_nothing_behind(
    fake: bool,
) -> None:
    layer = nn.Linear(4, 4)
    model = Written(lambda self, x: self.fc(x) @ torch.ones(7, 7), {"fc": layer})

    with pytest.raises(RuntimeError, match=r"4.*7"):
        flops(model, torch.randn(3, 4), fake=fake)

    assert type(layer.weight) is nn.Parameter
    assert type(layer.weight.data) is torch.Tensor


def test_a_target_that_is_not_callable_is_refused() -> None:
    with pytest.raises(CaptureError, match="not callable"):
        flops(3, torch.ones(1))


def test_a_fake_forward_has_no_times() -> None:
    with pytest.raises(CaptureError, match="cannot be timed"):
        flops(nn.Linear(4, 4), torch.ones(3, 4), fake=True, timed=True)


def test_a_model_without_gradients_is_counted_forward_only_with_a_note() -> None:
    counted = flops(lambda x: x @ x, torch.randn(3, 3), backward=True)

    assert counted.backward_flops == 0
    assert not counted.work.backward
    assert any("no" in note and "gradient" in note for note in counted.work.notes)


def test_fake_tensors_take_no_memory_and_stay_out_of_the_model() -> None:
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(8192, 8192, bias=False) for _ in range(50)))

    counted = flops(model, torch.empty(4096, 8192, device="meta"), backward=True)

    assert counted.forward_flops == 50 * 2 * 4096 * 8192**2
    assert counted.backward_flops == 2 * counted.forward_flops - 2 * 4096 * 8192**2
    assert all(parameter.is_meta and parameter.grad is None for parameter in model.parameters())


def test_a_pipeline_is_counted_with_its_own_ops() -> None:
    class Pipeline:
        def __init__(self) -> None:
            self.encoder = nn.Linear(4, 8)
            self.decoder = nn.Linear(8, 4)

        def __call__(self, x: torch.Tensor) -> Any:
            return self.decoder(self.encoder(x)) @ torch.ones(4, 4)

    counted = flops(Pipeline(), torch.randn(3, 4))

    assert counted.root.forward.self_flops == 2 * 3 * 16
    assert counted["encoder"].total_flops == 2 * 3 * 32
    assert counted.total_flops == 2 * 3 * (16 + 64)


def test_a_module_created_while_counting_is_below_its_creator() -> None:
    model = Written(lambda self, x: nn.Linear(4, 4)(x), {})

    counted = flops(model, torch.randn(3, 4))

    assert list(counted.rows) == ["", "<Linear>"]


def test_the_flops_of_a_loss_module_belong_to_no_module_of_the_model() -> None:
    model, other = nn.Linear(4, 4), nn.Linear(4, 2)

    counted = flops(model, torch.randn(3, 4), backward=True, loss=lambda y: other(y).sum())

    assert counted.unattributed.forward.total_flops == 2 * 3 * 8
    assert list(counted.rows) == [""]


def test_a_loss_that_calls_a_module_of_the_model_is_charged_to_it() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    counted = flops(model, torch.randn(3, 4), backward=True, loss=lambda y: model[1](y).sum())

    assert counted["1"].calls == 2
    assert counted["1"].forward.total_flops == 2 * 2 * 3 * 16
    assert counted.root.forward.total_flops == 3 * 2 * 3 * 16


def test_a_recursive_module_is_counted_once_in_its_total() -> None:
    def forward(self: Any, x: torch.Tensor, depth: int = 3) -> Any:
        return x if depth == 0 else self(self.fc(x), depth - 1)

    counted = flops(Written(forward, {"fc": nn.Linear(4, 4)}), torch.randn(3, 4))

    assert counted.total_flops == counted["fc"].total_flops == 3 * 2 * 3 * 16
    assert counted.root.calls == 4


def test_ops_and_modules_are_timed_on_request() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU())

    counted = flops(model, torch.randn(32, 64), backward=True, timed=True)

    assert counted.flops_per_second is not None
    assert counted.time_ns(counted["0"]) is not None
    assert all(op.time_ns is not None for op in counted.ops)
    assert counted.ops[0].flops_per_second is not None
    free = counted.share(counted.free)
    assert free is not None
    assert 0 < free < 1
    assert counted.uncounted_share == 0
    assert "FLOP/s" in str(counted)
    assert "Speed" in str(counted)


def test_without_a_clock_there_are_no_times() -> None:
    counted = flops(nn.Linear(4, 4), torch.randn(3, 4))

    assert counted.flops_per_second is None
    assert counted.uncounted_share is None
    assert "FLOP/s" not in str(counted)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_scripted_modules_show_their_submodules() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    scripted = torch.jit.trace(model, torch.randn(3, 4))  # type: ignore[no-untyped-call]

    assert flops(scripted, torch.randn(3, 4)).total_flops == 2 * 3 * (32 + 16)

"""The guard of a model on a device names the op, and asks the device twice a step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchglass as tg
from tests.device.counter import DeviceCounter
from tests.device.test_watch import capturing
from tests.device.verbs import batch, mlp, train_step
from torchglass.results.failures import Guard


class Bad(nn.Module):
    """Takes the root of a negative number, or divides by zero in the backward."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        if self.kind == "forward":
            x = (x - 100).sqrt()
        elif self.kind == "backward":
            x = (x - x.detach()).abs().sqrt() + x
        elif self.kind == "mask":
            mask = torch.ones_like(x, dtype=torch.bool).tril()
            x = x.masked_fill(~mask, -torch.inf).softmax(-1)
        return x


def guarded_step(kind: str, *, cheap: bool = False) -> Guard:
    model, (x, _) = Bad(kind).to("cuda:0"), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with tg.guard(model, on="record", cheap=cheap) as found:
        loss = model(x).sum()
        if kind == "loss":
            loss = (loss - loss - 1).log()
        loss.backward()
        optimizer.step()
    return found


@pytest.mark.parametrize("cheap", [False, True])
@pytest.mark.parametrize(("kind", "phase"), [("forward", "forward"), ("backward", "backward")])
def test_the_op_that_produced_the_first_nan_is_named(kind: str, phase: str, cheap: bool) -> None:
    first = guarded_step(kind, cheap=cheap).first

    assert first is not None
    assert (first.op, first.phase) == ("sqrt", phase)
    assert first.source is not None
    assert first.source.function == "forward"
    assert first.tensors


def test_an_op_outside_of_the_model_is_named() -> None:
    first = guarded_step("loss").first

    assert first is not None
    assert first.op == "log"
    assert first.source is not None
    assert first.source.function == "guarded_step"


def test_the_guard_raises_in_the_forward() -> None:
    model = Bad("forward").to("cuda:0")
    with tg.guard(model), pytest.raises(tg.NonFiniteError, match="sqrt"):
        model(batch()[0])


def test_a_mask_is_not_a_finding_and_its_batch_is_rerun_once() -> None:
    model, (x, _) = Bad("mask").to("cuda:0"), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    launches = []
    with tg.guard(model, on="record") as found:
        for _ in range(4):
            with DeviceCounter() as seen:
                model(x).square().sum().backward()
                optimizer.step()
            launches.append(seen.launches)
    assert not found.findings
    assert launches[-1] == launches[-2]


def test_a_parameter_broken_by_an_update_is_named() -> None:
    model, (x, y) = mlp(count=2), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=float("inf"))
    with tg.guard(model, on="record") as found:
        train_step(model, optimizer, x, y)
    assert found.first is not None
    assert found.first.op == "SGD.step"


def test_outputs_and_gradients_are_bit_identical() -> None:
    results = []
    for is_guarded in (False, True):
        model, (x, y) = mlp(count=5), batch()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        torch.manual_seed(1)
        if is_guarded:
            with tg.guard(model):
                train_step(model, optimizer, x, y)
        else:
            train_step(model, optimizer, x, y)
        results.append([parameter.cpu() for parameter in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize("cheap", [False, True])
def test_no_device_call_is_made_during_graph_capture(cheap: bool) -> None:
    model, (x, y) = mlp(count=5), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=True)
    with DeviceCounter() as plain:
        train_step(model, optimizer, x, y)
    with tg.guard(model, cheap=cheap):
        train_step(model, optimizer, x, y)
        with DeviceCounter() as seen, capturing():
            train_step(model, optimizer, x, y)
        assert not seen.forbidden
        assert seen.launches == plain.launches
        train_step(model, optimizer, x, y)


def test_an_overflow_skipped_by_the_grad_scaler_is_not_a_finding() -> None:
    model, (x, y) = mlp(count=2), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**127)
    with tg.guard(model, on="record") as found:
        for _ in range(2):
            optimizer.zero_grad()
            loss = (model(x) - y).square().sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert not found.findings

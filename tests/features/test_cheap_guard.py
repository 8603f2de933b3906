"""A training looks only at its outputs, and a bad batch is run again to find the op."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from torchglass import NonFiniteError, guard


class Unlucky(nn.Module):
    """Its dropout decides whether it takes the logarithm of zero, and it counts its passes."""

    passes: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.dropout = nn.Dropout(0.02)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        kept = self.dropout(torch.ones_like(x)).prod(dim=1)
        result: torch.Tensor = torch.log(kept) * self.norm(x).sum(1)
        return result


class Logarithm(nn.Module):
    """Of nothing but zeros, whatever comes in."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(x * 0)


def test_a_bad_batch_is_rerun_with_the_same_random_state() -> None:
    torch.manual_seed(0)
    model = Unlucky()
    batches = torch.randn(40, 8, 4)

    with guard(model, on="record", cheap=True) as guarded:
        outputs = [model(batch) for batch in batches]

    bad = [output for output in outputs if not torch.isfinite(output).all()]
    assert bad
    first = guarded.first
    assert first is not None
    assert (first.op, first.kind) == ("log", "inf")
    assert first.facts["inf"] == int(torch.isinf(bad[0]).sum())


def test_rerunning_a_batch_does_not_change_training() -> None:
    batches = torch.randn(40, 8, 4)

    def train(cheap: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = Unlucky()
        if not cheap:
            outputs = [model(batch) for batch in batches]
        else:
            with guard(model, on="record", cheap=True) as guarded:
                outputs = [model(batch) for batch in batches]
            assert not guarded.ok
        return [*outputs, *model.buffers(), torch.rand(3)]

    for one, other in zip(train(False), train(True), strict=True):
        assert torch.equal(one, other) or torch.equal(one.isnan(), other.isnan())


def test_a_cheap_guard_raises_at_the_model_call() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Softmax(-1))
    with torch.no_grad():
        model.get_parameter("0.weight")[0, 0] = float("nan")

    with guard(model, cheap=True), pytest.raises(NonFiniteError, match="contains 1 NaN"):
        model(torch.ones(1, 2))


class Root(nn.Module):
    """Has a gradient that is not finite at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        root: torch.Tensor = self.fc(x).abs().sqrt()
        return root


def test_a_bad_gradient_is_found_before_the_optimizer_uses_it() -> None:
    model = Root()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.fc.weight.detach().clone()

    with guard(model, cheap=True):
        model(torch.zeros(1, 2)).sum().backward()
        gradient = model.fc.weight.grad
        with pytest.raises(NonFiniteError) as raised:
            optimizer.step()

    assert (raised.value.finding.op, raised.value.finding.phase) == ("sqrt", "backward")
    assert torch.equal(model.fc.weight, before)
    assert model.fc.weight.grad is gradient


def test_inputs_the_model_overwrote_are_not_rerun() -> None:
    class Writes(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x.sub_(1).sqrt()

    model = Writes()
    with guard(model, on="record", cheap=True) as guarded:
        model(torch.zeros(3))

    assert [finding.op for finding in guarded.findings] == [""]
    assert "its inputs were overwritten" in guarded.findings[0].message


def test_a_gradient_broken_by_a_known_op_is_explained() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Logarithm())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    with guard(model, on="record", cheap=True) as guarded:
        model(torch.zeros(2, 4)).sum().backward()
        optimizer.step()

    assert [finding.op for finding in guarded.findings] == ["log"]


def test_a_gradient_broken_by_the_loss_names_the_line_of_the_update() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    with guard(model, on="record", cheap=True) as guarded:
        model(torch.ones(2, 4)).sum().backward()
        assert model.bias.grad is not None
        model.bias.grad.fill_(float("nan"))
        optimizer.step()

    (finding,) = guarded.findings
    assert finding.message == (
        "the gradient of bias contains 1 NaN, and rerunning the batch does not reproduce it"
    )
    assert finding.source is not None
    assert finding.source.file == __file__

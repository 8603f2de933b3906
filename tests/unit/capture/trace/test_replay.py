"""A record that is not true is found out."""

from __future__ import annotations

import cProfile
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import torchglass as tg


class _Choosing(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.where(torch.ones(3, dtype=torch.bool), x * 2, y * 2)


def test_a_modified_saved_value_is_the_first_mismatch() -> None:
    trace = tg.trace(nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)), torch.ones(2, 3))
    tanh = trace["tanh"]
    with torch.no_grad():
        assert tanh.tensor is not None
        tanh.tensor.add_(0.5)

    validation = trace.validate()

    assert not validation
    assert trace[validation.differing[0].op] is tanh
    assert validation.differing[0].reason == "values differ by up to 0.5"


def test_an_argument_without_effect_is_not_a_proven_parent() -> None:
    trace = tg.trace(_Choosing(), torch.ones(3), torch.ones(3))

    validation = trace.validate()

    assert validation
    (doubt,) = validation.unproven
    assert (trace[doubt.op].label, doubt.reason) == (
        "where_1_5",
        "changing right does not change the result",
    )


def test_without_perturbation_all_edges_are_accepted() -> None:
    trace = tg.trace(_Choosing(), torch.ones(3), torch.ones(3))

    assert trace.validate(perturb=False).unproven == ()


class _Drawing(nn.Module):
    def __init__(self, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.generator = generator

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.bernoulli(x.sigmoid(), generator=self.generator) + torch.randn(3)


def test_an_op_that_rejects_perturbed_values_is_still_replayed() -> None:
    validation = tg.trace(_Drawing(), torch.ones(3)).validate()

    assert validation
    assert validation.skipped == ()


def test_a_user_generator_is_not_advanced() -> None:
    generator = torch.Generator()
    trace = tg.trace(_Drawing(generator), torch.ones(3))
    state = generator.get_state()

    validation = trace.validate()

    assert torch.equal(generator.get_state(), state)
    assert [trace[doubt.op].label for doubt in validation.skipped] == ["bernoulli_1_2"]


class _Mapping(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mapped: torch.Tensor = torch.vmap(lambda row: (row + 1) * 2, in_dims=1)(x)
        return mapped * 3


def test_ops_inside_a_transform_are_skipped_in_validation() -> None:
    trace = tg.trace(_Mapping(), torch.ones(3, 5))

    validation = trace.validate()

    assert validation
    assert [trace[doubt.op].label for doubt in validation.skipped] == ["add_1_1", "mul_1_2"]


class _Counting(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = torch.tensor(3)
        before = count + 1
        count.add_(1)
        return x + count + before


def test_a_counter_updated_in_the_pass_is_replayed_from_its_initial_value() -> None:
    with tg.tracing(_Counting(), level="aten") as trace:
        _Counting()(torch.ones(3))

    assert trace.validate()


class _Running(nn.Module):
    def __init__(self, forward: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("held", torch.ones(4))
        self._forward = forward

    def forward(self, x: torch.Tensor) -> Any:
        return self._forward(self, x)


def dense_block(self: Any, x: torch.Tensor) -> Any:
    features = [x]
    features.append(torch.cat(features, 1))
    features.append(torch.cat(features, 1))
    return self.fc(torch.cat(tensors=features, dim=1)[:, :4])


def sizes_changed(self: Any, x: torch.Tensor) -> Any:
    sizes = [4, 4]
    y = self.fc(x).view(sizes)
    sizes[:] = [2, 8]
    y = y.reshape(sizes)
    sizes.append(3)
    return y


def index_changed(self: Any, x: torch.Tensor) -> Any:
    rows = [0, 1]
    y = self.fc(x)
    first = y[rows]
    both = y[:, rows]
    y[rows] = 0
    rows.append(2)
    return y[rows].sum() + first.sum() + both.sum()


def keywords_changed(self: Any, x: torch.Tensor) -> Any:
    dims, margins = [0], [1, 1]
    y = self.fc(x).sum(dim=dims, keepdim=True)
    dims.append(1)
    z = nn.functional.pad(input=self.fc(x), pad=margins)
    margins[0] = 3
    return y + z[:, :4]


def operands_cleared(self: Any, x: torch.Tensor) -> Any:
    operands = [x, x]
    y = torch.einsum("ij,jk->ik", operands)
    operands.clear()
    return self.fc(y)


@pytest.mark.parametrize(
    "forward", [dense_block, sizes_changed, index_changed, keywords_changed, operands_cleared]
)
def test_a_list_modified_later_is_replayed_with_its_original_contents(
    forward: Callable[[Any, torch.Tensor], Any],
) -> None:
    validation = tg.trace(_Running(forward), torch.randn(4, 4)).validate()

    assert validation, validation
    assert validation.skipped == ()


def test_a_module_call_keeps_the_inputs_of_a_list_modified_later() -> None:
    class Join(nn.Module):
        def forward(self, features: list[torch.Tensor]) -> list[torch.Tensor]:
            return [torch.cat(features, 1)]

    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.join = Join()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            features = [x]
            for _ in range(2):
                made = self.join(features)
                features += made
                made.append(x)
            return torch.cat(features, 1)

    trace = tg.trace(Dense(), torch.randn(2, 3))

    first, second = (call for call in trace.record.calls if call.path == "join")
    assert [len(first.inputs), len(second.inputs)] == [1, 2]
    assert [len(first.outputs), len(second.outputs)] == [1, 1]


def expanded_input(self: Any, x: torch.Tensor) -> Any:
    return self.fc(x) + x.flatten()[:1].view(1, 1).expand(10**10, 1)[:4] + 1


def expanded_buffer(self: Any, x: torch.Tensor) -> Any:
    return self.fc(x) * self.held[:1].expand(10**10)[:4]


def expanded_scalar(self: Any, x: torch.Tensor) -> Any:
    y = self.fc(x)
    return y.sum().expand(10**5, 10**5)[:4, :4] * y


def windows(self: Any, x: torch.Tensor) -> Any:
    long = self.fc(x).flatten().repeat(20_000)
    return long.unfold(0, 160_000, 1)[:3, :3] + 1


def expanded_and_written(self: Any, x: torch.Tensor) -> Any:
    y = self.fc(x).detach()
    wide = y[:1, :1].expand(10**5, 10**5)
    y.mul_(2)
    return y + wide[:4, :4]


@pytest.mark.parametrize("level", ["torch", "aten"])
@pytest.mark.parametrize(
    "forward",
    [expanded_input, expanded_buffer, expanded_scalar, windows, expanded_and_written],
)
def test_a_huge_view_of_a_small_tensor_takes_no_extra_memory(
    forward: Callable[[Any, torch.Tensor], Any], level: Any
) -> None:
    trace = tg.trace(_Running(forward), torch.randn(4, 4), level=level)

    validation = trace.validate()

    assert validation, validation
    assert validation.skipped == ()


def resized(self: Any, x: torch.Tensor) -> Any:
    y = self.fc(x)
    made = torch.empty(0)
    made.resize_(4, 4).copy_(y.detach())
    return y + made


def resized_like(self: Any, x: torch.Tensor) -> Any:
    y = self.fc(x)
    return y + torch.empty(0).resize_as_(y.detach()).copy_(y.detach())


def resized_buffer(self: Any, x: torch.Tensor) -> Any:
    self.held.resize_(8).fill_(2.0)
    return self.fc(x) + self.held[:4]


def given_other_memory(self: Any, x: torch.Tensor) -> Any:
    y = self.fc(x)
    return torch.empty(0).set_(y.detach()) + y


def buffer_given_other_memory(self: Any, x: torch.Tensor) -> Any:
    self.held.set_(torch.full((4,), 2.0))
    return self.fc(x) + self.held


def resized_by_out(self: Any, x: torch.Tensor) -> Any:
    made = torch.empty(0)
    torch.add(x, 1, out=made)
    return self.fc(x) + made


def on_fake_tensors(self: Any, x: torch.Tensor) -> Any:
    with FakeTensorMode():
        torch.ones(4) + 1
    return self.fc(x)


def on_meta(self: Any, x: torch.Tensor) -> Any:
    torch.ones(4, device="meta") + 1
    return self.fc(x)


def seeded(self: Any, x: torch.Tensor) -> Any:
    torch.manual_seed(3)
    y = torch.rand(4, 4) + self.fc(x)
    with torch.random.fork_rng():
        return nn.functional.dropout(y) + torch.randn(4)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized:UserWarning")
@pytest.mark.parametrize("level", ["torch", "aten"])
@pytest.mark.parametrize(
    "forward",
    [
        *(resized, resized_like, resized_buffer, given_other_memory, buffer_given_other_memory),
        *(resized_by_out, on_fake_tensors, on_meta, seeded),
    ],
)
def test_incomparable_outputs_are_skipped_and_not_reported_as_different(
    forward: Callable[[Any, torch.Tensor], Any], level: Any
) -> None:
    model = _Running(forward)
    trace = tg.trace(model, torch.randn(4, 4), level=level)
    after = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    validation = trace.validate()

    assert validation, validation
    assert all(map(torch.equal, model.state_dict().values(), after.values()))
    trace.output.sum().backward()


def test_ops_after_a_seed_set_by_the_model_are_skipped_in_validation() -> None:
    validation = tg.trace(_Running(seeded), torch.randn(4, 4)).validate()

    assert validation.skipped
    assert all("random state was changed" in doubt.reason for doubt in validation.skipped)


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
@pytest.mark.parametrize("level", ["torch", "aten"])
@pytest.mark.parametrize(
    ("make", "size"),
    [
        (lambda: nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2)), (4, 3)),
        (lambda: nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d()), (2, 3, 8, 8)),
        (lambda: nn.Sequential(nn.LazyConvTranspose1d(4, 3), nn.LazyInstanceNorm1d()), (2, 3, 8)),
    ],
)
def test_a_lazy_model_can_be_validated_and_trained_afterwards(
    make: Callable[[], nn.Module], size: tuple[int, ...], level: Any
) -> None:
    model = make()
    trace = tg.trace(model, torch.randn(size), level=level)
    weights = [parameter.detach().clone() for parameter in model.parameters()]

    validation = trace.validate()

    assert validation, validation
    assert all(map(torch.equal, model.parameters(), weights))
    trace.output.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    model(torch.randn(size)).sum().backward()


def calls_of_python(run: Callable[[], object]) -> int:
    profiler = cProfile.Profile()
    profiler.runcall(run)
    return sum(entry.callcount for entry in profiler.getstats())


@pytest.mark.parametrize("what", [str, tg.Trace.validate])
def test_the_work_for_an_op_is_linear_in_its_outputs(
    what: Callable[[tg.Trace], object],
) -> None:
    def work(count: int) -> int:
        model = _Running(lambda self, x: self.fc(x).flatten().repeat(count).unbind())
        trace = tg.trace(model, torch.randn(4, 4))
        what(trace)
        return calls_of_python(lambda: what(trace))

    assert work(100) < 6 * work(25)

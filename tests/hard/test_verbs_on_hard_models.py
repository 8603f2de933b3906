"""Every verb that runs a model runs those that compile their parts, stay lazy or return objects."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

import torchglass as tg
from tests.hard import forwards
from tests.hard.steps import KNOWN_WARNINGS, anatomy
from tests.models import Written
from torchglass import TorchglassWarning, errors

pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    *KNOWN_WARNINGS,
    pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile:UserWarning"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning"),
]

Verb = Callable[[nn.Module, torch.Tensor], Any]


VERBS: dict[str, Verb] = {
    "summary": tg.summary,
    "flops": tg.flops,
    "flops of a step": lambda model, x: tg.flops(model, x, backward=True),
    "memory": lambda model, x: tg.memory(model, x, backward=False),
    "memory of a step": lambda model, x: tg.memory(model, x, optimizer="adam"),
    "profile": lambda model, x: tg.profile(model, x, backward=False, warmup=0, repeats=1),
    "profile of a step": lambda model, x: tg.profile(model, x, warmup=0, repeats=1),
    "inspect": tg.inspect,
    "inspect of a step": lambda model, x: tg.inspect(model, x, backward=True),
    "explain": tg.explain,
}


def branch_with_weights(self: Any, x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda y: self.fc(y), lambda y: -self.fc(y), (x,))


def branch_on_layer(self: Any, x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (self.fc(x),))


def attention(self: Any, x: torch.Tensor) -> Any:
    # On the CPU it has no backward.
    query = self.fc(x).detach()[None, None]
    return flex_attention(query, query, query)[0, 0] + self.fc(x)


COMPILED_INSIDE = [
    branch_with_weights,
    pytest.param(branch_on_layer, marks=pytest.mark.slow),  # the same op as above
    attention,
]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("forward", COMPILED_INSIDE)
def test_a_partly_compiled_model_runs_and_trains(forward: forwards.Forward, verb: str) -> None:
    torch.manual_seed(0)
    model, x = Written(forward, {"fc": nn.Linear(4, 4)}), torch.randn(4, 4)
    plain = copy.deepcopy(model)
    plain(x).sum().backward()

    assert str(VERBS[verb](model, x))

    assert all(parameter.grad is None for parameter in model.parameters())
    model(x).sum().backward()
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)


def test_the_gradients_of_a_branch_are_counted() -> None:
    # The first run of a process imports the compiler, and those after it are to count the same.
    model, x = Written(branch_with_weights, {"fc": nn.Linear(4, 4)}), torch.randn(4, 4)
    every = 4 * sum(parameter.numel() for parameter in model.parameters())

    assert [tg.memory(model, x).gradients_bytes for _ in range(2)] == [every, every]


class WithUnused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.LazyLinear(4)
        self.head = nn.Linear(4, 2)
        self.unused = nn.LazyLinear(3)
        self.norm = nn.LazyBatchNorm1d()

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.used(x))


@pytest.mark.parametrize("verb", VERBS)
def test_an_unused_lazy_module_does_not_stop_any_function_and_stays_lazy(verb: str) -> None:
    model, x = WithUnused(), torch.randn(4, 4)

    assert str(VERBS[verb](model, x))

    assert isinstance(model.unused.weight, nn.UninitializedParameter)
    assert isinstance(model.norm.running_mean, nn.parameter.UninitializedBuffer)
    if verb != "explain":
        assert isinstance(model.used.weight, nn.UninitializedParameter)
    model(x).sum().backward()


@pytest.mark.parametrize("name", ["object_out", "slotted_out", "distribution_out", "complex_out"])
def test_outputs_are_found_in_any_container(name: str) -> None:
    model, x = forwards.make(name), torch.randn(4, 4)

    trace = tg.trace(model, x)

    assert trace.outputs
    assert tg.flops(model, x, backward=True).backward_flops > 0
    assert tg.memory(model, x).gradients_bytes == 4 * (16 + 4)
    calls = tg.summary(model, x).calls
    assert calls is not None
    assert calls[0].outputs


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_a_nested_tensor_output_has_a_backward(layout: torch.layout) -> None:
    def forward(self: Any, x: torch.Tensor) -> Any:
        return self.fc(torch.nested.as_nested_tensor([x[:2], x[:3]], layout=layout))

    model, x = Written(forward, {"fc": nn.Linear(4, 4)}), torch.randn(4, 4)

    for verb in VERBS.values():
        assert str(verb(model, x))
    assert tg.trace(model, x).validate()
    assert tg.memory(model, x).gradients_bytes == 4 * (16 + 4)


def test_an_output_that_cannot_be_summed_is_named_with_advice() -> None:
    class NoSum(torch.Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is torch.Tensor.sum:
                raise NotImplementedError("no sum")
            return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]

    def forward(self: Any, x: torch.Tensor) -> Any:
        return {"logits": self.fc(x).as_subclass(NoSum)}

    model, x = Written(forward, {"fc": nn.Linear(4, 4)}), torch.randn(4, 4)

    with pytest.raises(errors.CaptureError, match=r"cannot sum output logits .* Pass loss="):
        tg.profile(model, x)
    taken = tg.profile(model, x, loss=lambda out: out["logits"].mean(), warmup=0, repeats=1)
    assert taken.root.total_ns > 0


@pytest.mark.parametrize("name", sorted(forwards.TAKES_GRADIENTS))
@pytest.mark.parametrize("verb", VERBS)
def test_a_forward_that_computes_gradients_leaves_none(name: str, verb: str) -> None:
    model, x = forwards.make(name), torch.randn(4, 4)
    before = anatomy(model)

    assert str(VERBS[verb](model, x))

    assert anatomy(model) == before
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("verb", ["summary", "flops", "memory", "profile", "inspect"])
def test_gradients_of_a_backward_inside_a_forward_are_restored(verb: str) -> None:
    def forward(self: Any, x: torch.Tensor) -> Any:
        torch.autograd.backward(self.fc(x).sum())
        return self.fc(x) + self.fc.weight.grad

    model, x = Written(forward, {"fc": nn.Linear(4, 4)}), torch.randn(4, 4)
    model(x)
    gradients = [parameter.grad for parameter in model.parameters()]
    values = [gradient.clone() for gradient in gradients if gradient is not None]

    VERBS[verb](model, x)

    assert all(p.grad is one for p, one in zip(model.parameters(), gradients, strict=True))
    assert all(map(torch.equal, (p.grad for p in model.parameters()), values))  # type: ignore[arg-type]


class Stateful(nn.Module):
    """Keeps what its forward changes out of the sight of torch's modules."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.lstm = nn.LSTM(4, 4)
        self.noise = torch.Generator()
        self.noises = {"other": [torch.Generator()]}
        self.cache: list[torch.Tensor] = []
        self.by_length: dict[int, list[int]] = {4: [1]}
        self.seen = {1}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.fc.bias.data = self.fc.bias.data + 1
        self.cache.append(x)
        self.by_length[4].append(2)
        self.by_length[len(self.cache)] = []
        self.seen.add(len(self.seen) + 1)
        noise = torch.rand(4, generator=self.noise)
        noise += torch.rand(4, generator=self.noises["other"][0])
        output: torch.Tensor = self.lstm(self.fc(x))[0] + noise
        return output


@pytest.mark.filterwarnings("error::torchglass.errors.TorchglassWarning")
@pytest.mark.parametrize("verb", VERBS)
def test_attributes_changed_by_a_forward_are_restored(verb: str) -> None:
    model = Stateful()
    bias, cache, pointer = model.fc.bias.detach().clone(), model.cache, model.fc.bias.data_ptr()
    generators = [model.noise, model.noises["other"][0]]
    states = [generator.get_state() for generator in generators]

    VERBS[verb](model, torch.randn(4, 4))

    assert torch.equal(model.fc.bias, bias)
    assert model.fc.bias.data_ptr() == pointer
    assert all(map(torch.equal, (one.get_state() for one in generators), states))
    assert model.cache is cache
    assert (model.cache, model.by_length, model.seen) == ([], {4: [1]}, {1})


def write_through_data(self: Any, x: torch.Tensor) -> Any:
    self.fc.weight.data.mul_(0.5)
    return self.fc(x)


def write_through_data_of_many(self: Any, x: torch.Tensor) -> Any:
    self.wide.weight.data.mul_(0.5)
    self.ids.data.add_(1)
    return self.fc(x)


def write_without_gradients(self: Any, x: torch.Tensor) -> Any:
    with torch.no_grad():
        self.fc.weight.mul_(0.5)
    return self.fc(x)


def write_into_attribute(self: Any, x: torch.Tensor) -> Any:
    self.mean.add_(1)
    return self.fc(x)


def write_into_list(self: Any, x: torch.Tensor) -> Any:
    self.means[0].add_(1)
    return self.fc(x)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("forward", "name"),
    [
        (write_through_data, "parameters .*: fc.weight$"),
        (write_through_data_of_many, "parameters .*: wide.weight, ids$"),
        (write_without_gradients, "parameters .*: fc.weight$"),
        (write_into_attribute, "tensors .*: mean$"),
        (write_into_list, "tensors .*: means$"),
    ],
)
def test_permanent_changes_by_a_forward_are_warned_about_once(
    verb: str, forward: Callable[..., Any], name: str
) -> None:
    members = {
        "fc": nn.Linear(4, 4),
        "wide": nn.Linear(99, 99),
        "ids": torch.arange(3),
        "mean": torch.zeros(2),
        "means": [torch.zeros(2)],
    }

    with pytest.warns(TorchglassWarning, match=f"the forward changes {name}") as told:
        VERBS[verb](Written(forward, members), torch.randn(4, 4))

    assert len([one for one in told if one.category is TorchglassWarning]) == 1

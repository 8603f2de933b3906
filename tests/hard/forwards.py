"""Forwards that break tools which watch a model: one small function each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.models import Written

Forward = Callable[..., Any]
Members = dict[str, Any]


class Pair(NamedTuple):
    hidden: torch.Tensor
    rest: Any


@dataclasses.dataclass
class Result:
    logits: torch.Tensor
    loss: torch.Tensor | None = None


class Answer:
    """An output that is neither a container nor a dataclass."""

    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits
        self.extra = {"doubled": [logits * 2]}


class Slotted:
    __slots__ = ("logits", "unset")

    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits


class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        result = x.exp()
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (result,) = ctx.saved_tensors
        return gradients[0] * torch.as_tensor(result)


def in_place_relu(self: Any, x: torch.Tensor) -> Any:
    return F.relu(self.fc(x), inplace=True) + 1


def residual_in_place(self: Any, x: torch.Tensor) -> Any:
    y = self.fc(x)
    y += x
    return y.relu_()


def write_through_view(self: Any, x: torch.Tensor) -> Any:
    y = self.fc(x)
    y.view(-1)[:3].mul_(2)
    y[:, 1] = 0
    return y * y


def masked_fill(self: Any, x: torch.Tensor) -> Any:
    y = self.fc(x)
    return y.masked_fill_(y > 0, -1.0)


def keyword_only(self: Any, x: torch.Tensor, *, scale: float = 2.0) -> Any:
    return self.fc(input=x) * scale


def dict_out(self: Any, x: torch.Tensor) -> Any:
    return {"a": self.fc(x), "b": [x, {"c": x + 1}], "n": None, "s": "text"}


def namedtuple_out(self: Any, x: torch.Tensor) -> Any:
    return Pair(self.fc(x), (None, 3))


def dataclass_out(self: Any, x: torch.Tensor) -> Any:
    y = self.fc(x)
    return Result(logits=y, loss=y.mean())


def generator_of_steps(self: Any, x: torch.Tensor) -> Any:
    return torch.stack([self.fc(x) * step for step in range(3)]).sum(0)


def recursion(self: Any, x: torch.Tensor, depth: int = 3) -> Any:
    result: torch.Tensor = x if depth == 0 else self(self.fc(x), depth - 1)
    return result


def data_dependent(self: Any, x: torch.Tensor) -> Any:
    while x.abs().sum() < 100:
        x = self.fc(x) + 2 * x
    return x


def direct_forward(self: Any, x: torch.Tensor) -> Any:
    return self.fc.forward(x)


def no_grad_inside(self: Any, x: torch.Tensor) -> Any:
    with torch.no_grad():
        shift = self.fc(x).mean()
    return self.fc(x) - shift


def checkpointed(self: Any, x: torch.Tensor) -> Any:
    return checkpoint(self.fc, x, use_reentrant=False) + x


def own_function(self: Any, x: torch.Tensor) -> Any:
    return Exp.apply(self.fc(x))  # type: ignore[no-untyped-call]


def unused_chunk(self: Any, x: torch.Tensor) -> Any:
    first, _ = self.fc(x).chunk(2)
    return first


def vmapped(self: Any, x: torch.Tensor) -> Any:
    return torch.vmap(self.fc)(x)


def inner_gradient(self: Any, x: torch.Tensor) -> Any:
    return torch.func.grad(lambda y: self.fc(y).square().sum())(x)


def functional_call(self: Any, x: torch.Tensor) -> Any:
    doubled = {name: value * 2 for name, value in self.fc.named_parameters()}
    return torch.func.functional_call(self.fc, doubled, (x,))


def autocast(self: Any, x: torch.Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return self.fc(x).float()


def sparse(self: Any, x: torch.Tensor) -> Any:
    return torch.sparse.mm(x.detach().to_sparse(), self.fc.weight)


def complex_numbers(self: Any, x: torch.Tensor) -> Any:
    return torch.fft.ifft(torch.fft.fft(self.fc(x)).conj()).real


def einsum(self: Any, x: torch.Tensor) -> Any:
    return torch.einsum("ij,kj->ik", x, self.fc(x))


def random_numbers(self: Any, x: torch.Tensor) -> Any:
    noise = torch.rand_like(x) + torch.randn(4)
    return F.dropout(self.fc(x) * noise, 0.5)


def expanded(self: Any, x: torch.Tensor) -> Any:
    return self.fc(x)[:, :1].expand(-1, 1000).sum(1)


def nothing(self: Any, x: torch.Tensor) -> Any:
    self.fc(x)


def state(self: Any, x: torch.Tensor) -> Any:
    self.seen += 1
    self.mean.mul_(0.9).add_(x.mean(), alpha=0.1)
    return self.fc(x) - self.mean


def force_of_energy(self: Any, x: torch.Tensor) -> Any:
    x = x.detach().requires_grad_()
    energy = self.fc(x).square().sum()
    (force,) = torch.autograd.grad(energy, x, create_graph=True)
    return energy, force


def gradient_without_graph(self: Any, x: torch.Tensor) -> Any:
    x = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(self.fc(x).square().sum(), x)
    return self.fc(slope)


def gradient_of_gradient(self: Any, x: torch.Tensor) -> Any:
    loss = self.fc(x).pow(3).sum()
    (gradient,) = torch.autograd.grad(loss, self.fc.weight, create_graph=True)
    return gradient.square()


def checkpointed_reentrant(self: Any, x: torch.Tensor) -> Any:
    # Its inputs need a gradient, or none comes to the layer.
    return checkpoint(self.fc, x if x.requires_grad else x * self.fc.bias, use_reentrant=True)


def object_out(self: Any, x: torch.Tensor) -> Any:
    return Answer(self.fc(x))


def slotted_out(self: Any, x: torch.Tensor) -> Any:
    return [Slotted(self.fc(x))]


def distribution_out(self: Any, x: torch.Tensor) -> Any:
    return torch.distributions.Normal(self.fc(x), torch.ones(4), validate_args=False)


def complex_out(self: Any, x: torch.Tensor) -> Any:
    return torch.fft.fft(self.fc(x))


def numbers_out(self: Any, x: torch.Tensor) -> Any:
    y = self.fc(x)
    return y.argmax(1), y > 0, 3


def detached_out(self: Any, x: torch.Tensor) -> Any:
    return self.fc(x).detach()


def many_outputs(self: Any, x: torch.Tensor) -> Any:
    return self.fc(x).flatten().repeat(10).unbind()


def list_appended(self: Any, x: torch.Tensor) -> Any:
    features = [self.fc(x)]
    for _ in range(2):
        features.append(torch.cat(features, 1))
    return features


def huge_view(self: Any, x: torch.Tensor) -> Any:
    return self.fc(x).detach().sum().expand(10**5, 10**5)[:4, :4] + self.fc(x)


def resized(self: Any, x: torch.Tensor) -> Any:
    y = self.fc(x)
    made = torch.empty(0).resize_(4, 4).copy_(y.detach())
    return y + made


def given_memory(self: Any, x: torch.Tensor) -> Any:
    y = self.fc(x)
    return y + torch.empty(0).set_(y.detach())


def jacobian(self: Any, x: torch.Tensor) -> Any:
    return torch.func.jacrev(self.fc)(x[0])


def jagged(self: Any, x: torch.Tensor) -> Any:
    both = torch.nested.nested_tensor([x.detach()[:2], x.detach()[:3]], layout=torch.jagged)
    return self.fc(both).to_padded_tensor(0.0)


def stateful(model: nn.Module) -> nn.Module:
    model.seen = 0  # type: ignore[assignment]
    model.register_buffer("mean", torch.zeros(()))
    return model


FORWARDS: dict[str, Forward] = {
    function.__name__: function
    for function in (
        *(in_place_relu, residual_in_place, write_through_view, masked_fill, keyword_only),
        *(dict_out, namedtuple_out, dataclass_out, generator_of_steps, recursion, data_dependent),
        *(direct_forward, no_grad_inside, checkpointed, own_function, unused_chunk, vmapped),
        *(inner_gradient, functional_call, autocast, sparse, complex_numbers, einsum),
        *(random_numbers, expanded, nothing, state, force_of_energy, gradient_without_graph),
        *(gradient_of_gradient, checkpointed_reentrant, object_out, slotted_out, distribution_out),
        *(complex_out, numbers_out, detached_out, many_outputs, list_appended, huge_view, resized),
        *(given_memory, jacobian, jagged),
    )
}
"""All of them, by name; each model has one layer `fc` and takes a 4×4 tensor."""

TAKES_GRADIENTS = {"force_of_energy", "gradient_without_graph", "gradient_of_gradient"}
"""Those that do not run under `torch.no_grad()`."""

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(True)),
    "lstm": lambda: Written(lambda self, x: self.r(x)[0], {"r": nn.LSTM(4, 3, 2, dropout=0.5)}),
    "gru": lambda: Written(lambda self, x: self.r(x)[0], {"r": nn.GRU(4, 3, bidirectional=True)}),
    "attention": lambda: Written(
        lambda self, x: self.m(x, x, x)[0], {"m": nn.MultiheadAttention(4, 2)}
    ),
    "encoder": lambda: nn.TransformerEncoderLayer(4, 2, 8),
    "encoder in eval": lambda: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2, enable_nested_tensor=False
    ).eval(),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
    "shared": lambda: _shared(nn.Linear(4, 4)),
    "lazy": lambda: nn.Sequential(nn.LazyLinear(4), nn.ReLU()),
    "lazy batch norm": lambda: nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d()),
    "data parallel": lambda: nn.DataParallel(nn.Linear(4, 4)),
    "identity": lambda: nn.Sequential(nn.Identity(), nn.Linear(4, 4), nn.Identity()),
}


def _shared(layer: nn.Module) -> nn.Module:
    return nn.Sequential(layer, nn.ReLU(), layer)


def make(name: str) -> nn.Module:
    """A hard model by its name, always the same one."""
    torch.manual_seed(0)
    if name in NETWORKS:
        return NETWORKS[name]()
    model = Written(FORWARDS[name], {"fc": nn.Linear(4, 4)})
    return stateful(model) if name == "state" else model


NAMES = [*FORWARDS, *NETWORKS]

"""Someone gives a tensor inside a forward a name: it is recorded, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import nn

from tests.watched import watching
from torchglass import attach


class Names(nn.Module):
    """A layer, and something that is done to its result with a name given on the way."""

    def __init__(self, then: Callable[[nn.Module, torch.Tensor], Any]) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self._then = then

    def forward(self, x: torch.Tensor) -> Any:
        return self._then(self, self.fc(x))


class Squares(nn.Module):
    """A layer whose result has a name."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = attach(self.fc(x), self, "hidden")
        return hidden.square()


# Both are torch's own, of what it does while it compiles.
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_attach_does_nothing_in_a_compiled_forward(fullgraph: bool, in_place: bool) -> None:
    torch.compiler.reset()
    part = Squares()
    model = nn.Sequential(nn.Linear(4, 4), part)
    if in_place:
        part.compile(backend="eager", fullgraph=fullgraph)
    else:
        model[1] = cast(Squares, torch.compile(part, backend="eager", fullgraph=fullgraph))

    with watching(model) as seen:
        for _ in range(2):
            torch.autograd.backward(model(torch.randn(3, 4)).sum())

    assert part.fc.weight.grad is not None
    assert seen.steps("0.output") == [0, 1]
    assert not any("hidden" in label for label in seen.labels)


def test_an_attached_leaf_keeps_its_gradient() -> None:
    leaf = torch.ones(4, requires_grad=True)
    model = Names(lambda own, hidden: hidden * attach(leaf, own, "leaf"))

    with watching(model) as seen:
        torch.autograd.backward(model(torch.randn(3, 4)).sum())

    assert leaf.grad is not None
    assert {"leaf", "leaf.grad"} <= seen.labels


def test_an_attached_parameter_stays_a_parameter() -> None:
    given = []

    def name_weight(own: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
        given.append(attach(cast(Names, own).fc.weight, own, "named"))
        return hidden

    model = Names(name_weight)

    with watching(model) as seen:
        model(torch.randn(3, 4))

    assert given == [model.fc.weight]
    assert given[0] is model.fc.weight
    assert "named" in seen.labels


def test_a_tensor_attached_under_no_grad_can_be_modified_in_place() -> None:
    def write(own: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            named = attach(hidden, own, "hidden")
        return named.mul_(2)

    plain, model = Names(write), Names(write)
    model.load_state_dict(plain.state_dict())
    x = torch.randn(3, 4)

    with watching(model) as seen:
        result = model(x)

    assert torch.equal(result, plain(x))
    assert "hidden" in seen.labels


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")  # torch's own
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize(
    "make",
    [
        torch.Tensor.to_sparse,
        torch.Tensor.to_sparse_csr,
        lambda hidden: torch.nested.as_nested_tensor([hidden, hidden[:1]]),
    ],
    ids=["sparse", "csr", "nested"],
)
def test_a_tensor_type_without_views_can_be_attached(
    make: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    model = Names(lambda own, hidden: attach(make(hidden), own, "named"))

    with watching(model):
        result = model(torch.randn(3, 4))

    assert result.layout is make(torch.ones(3, 4)).layout


def test_an_attached_name_can_be_any_object() -> None:
    model = Names(lambda own, hidden: attach(hidden, own, 3))  # type: ignore[arg-type]

    with watching(model) as seen:
        torch.autograd.backward(model(torch.randn(3, 4)).sum())

    assert {"3", "3.grad"} <= seen.labels


def test_a_name_whose_str_raises_is_reported_and_the_forward_continues() -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("has no name")

    model = Names(lambda own, hidden: attach(hidden, own, Broken()))  # type: ignore[arg-type]

    with watching(model, misses="has no name"):
        assert model(torch.randn(3, 4)).shape == (3, 4)


def test_a_tensor_attached_in_an_eval_pass_is_in_the_graph() -> None:
    model = Squares().eval()

    with watching(model) as seen, torch.no_grad():
        for _ in range(2):
            model(torch.randn(3, 4))

    assert [node.name for node in seen.graph.nodes if node.kind == "attached"] == ["eval:hidden"]

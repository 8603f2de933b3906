from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.models import Written
from torchglass.capture.measure.memory import measure
from torchglass.errors import CaptureError
from torchglass.records.measures import Footprint, MemoryBlock


def footprint(forward: Callable[..., Any], *inputs: torch.Tensor, **options: Any) -> Footprint:
    model = Written(forward, {"fc": nn.Linear(4, 4)})
    return measure(model, inputs, {}, **options).footprint


def kinds(found: Footprint) -> dict[str, int]:
    sizes: Counter[str] = Counter()
    for block in found.blocks:
        sizes[block.kind] += block.bytes
    return dict(sizes)


def peak(found: Footprint) -> int:
    """The most beyond what was there before."""
    return max(accumulate((change.bytes for change in found.changes), initial=0))


def of_kind(found: Footprint, kind: str) -> list[MemoryBlock]:
    return [block for block in found.blocks if block.kind == kind]


X = torch.ones(3, 4)
BYTES = X.nbytes


def test_the_memory_of_a_linear_layer_matches_hand_computation() -> None:
    found = footprint(lambda self, x: self.fc(x), X, optimizer="adam")

    sizes = kinds(found)
    weights = (4 * 4 + 4) * 4
    assert sizes["parameter"] == sizes["gradient"] == weights
    assert sizes["optimizer"] == 2 * weights + 2 * 4
    assert sizes["input"] == BYTES
    assert sizes["activation"] == BYTES + 4
    assert found.optimizer == "Adam"


def test_a_forward_without_backward_keeps_its_output_and_no_activation() -> None:
    found = footprint(lambda self, x: self.fc(x).relu(), X, backward=False)

    assert {"activation", "gradient"}.isdisjoint(kinds(found))
    (output,) = of_kind(found, "output")
    assert (output.op, output.bytes) == ("relu", BYTES)
    assert [part.phase for part in found.parts] == ["forward"]


def test_an_activation_names_its_producer_and_all_savers() -> None:
    found = footprint(lambda self, x: self.fc(x).sigmoid().exp(), X)

    by_op = {block.op: block for block in of_kind(found, "activation")}
    assert [saver.node for saver in by_op["sigmoid"].saved_by] == ["SigmoidBackward0"]
    assert [saver.node for saver in by_op["exp"].saved_by] == ["ExpBackward0"]
    assert "addmm" not in by_op
    (given,) = of_kind(found, "input")
    assert [(saver.node, saver.path) for saver in given.saved_by] == [("AddmmBackward0", "fc")]


def views(self: Any, x: torch.Tensor) -> Any:
    y = self.fc(x)
    return y.view(-1)[2:].detach().t().expand(2, -1), y.relu_(), y.T


def test_views_and_in_place_ops_allocate_nothing() -> None:
    found = footprint(views, X, backward=False)

    assert [change.bytes for change in found.changes] == [BYTES]


def test_a_checkpoint_saves_less_and_recomputes_in_the_backward() -> None:
    def inner(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x).sigmoid().exp().tanh()  # type: ignore[no-any-return]

    plain = footprint(inner, X)
    saving = footprint(
        lambda self, x: checkpoint(lambda x: inner(self, x), x, use_reentrant=False), X
    )

    assert kinds(plain)["activation"] - kinds(saving)["activation"] == 2 * BYTES
    again = [block for block in saving.blocks if block.op == "sigmoid"]
    assert [block.phase for block in again] == ["forward", "backward"]


def test_accumulated_gradients_are_added_in_place_as_without_measuring() -> None:
    def branches(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)
        return y.exp() + y.sigmoid() + y.tanh()  # type: ignore[no-any-return]

    found = footprint(branches, torch.ones(300, 4))

    assert found.allocations[0].peak_bytes == peak(found)
    assert not [b for b in found.blocks if b.op == "add" and b.phase == "backward"]


def test_a_tied_weight_is_one_block_with_one_gradient() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(10, 4)
            self.head = nn.Linear(4, 10, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(tokens))  # type: ignore[no-any-return]

    found = measure(Tied(), (torch.zeros(2, dtype=torch.long),), {}).footprint

    assert kinds(found)["parameter"] == kinds(found)["gradient"] == 10 * 4 * 4
    assert [block.name for block in of_kind(found, "gradient")] == ["embed.weight"]


def test_the_gradient_of_an_input_belongs_to_no_module() -> None:
    found = footprint(lambda self, x: self.fc(x), X.clone().requires_grad_())

    assert kinds(found)["gradient"] == 80 + BYTES
    assert "" in {block.name for block in of_kind(found, "gradient")}


def test_the_loss_is_a_separate_phase() -> None:
    target = torch.zeros(3, dtype=torch.long)

    found = footprint(
        lambda self, x: self.fc(x), X, loss=lambda y: functional.cross_entropy(y, target)
    )

    assert [part.phase for part in found.parts] == ["forward", "loss", "backward"]
    (kept,) = [b for b in of_kind(found, "activation") if b.op == "_log_softmax"]
    assert (kept.phase, kept.path) == ("loss", None)


@pytest.mark.parametrize("fake", [False, True])
def test_a_tensor_from_a_list_is_allocated_and_an_external_one_is_an_input(fake: bool) -> None:
    outside = torch.ones(100, 4)

    found = footprint(
        lambda self, x: self.fc(x) + torch.tensor([1.0, 2.0, 3.0, 4.0]) + outside[:3], X, fake=fake
    )

    assert [block.bytes for block in found.blocks if block.op == "lift_fresh"] == [16]
    assert sorted(block.bytes for block in of_kind(found, "input")) == [BYTES, outside.nbytes]


def test_the_second_optimizer_step_is_measured() -> None:
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    x = torch.randn(8, 64)
    optimizer = torch.optim.Adam(model.parameters())

    first = measure(model, (x,), {}, optimizer=optimizer).footprint
    torch.autograd.backward(model(x).sum())
    optimizer.step()
    second = measure(model, (x,), {}, optimizer=optimizer).footprint

    assert peak(first) == peak(second)
    assert kinds(first) == kinds(second)
    assert abs(peak(first) - first.allocations[0].peak_bytes) <= 16


def test_measuring_memory_does_not_change_user_state() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout())
    torch.autograd.backward(model(torch.randn(3, 4)).sum())
    optimizer = torch.optim.Adam(model.parameters())
    before = copy.deepcopy(model.state_dict())
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    waiting = model(torch.randn(3, 4)).sum()
    state = copy.deepcopy(model.state_dict())
    random = torch.get_rng_state()

    measure(model, (torch.randn(3, 4),), {}, optimizer=optimizer)
    measure(model, (torch.randn(3, 4),), {}, optimizer=optimizer, fake=True)

    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is gradient for parameter, gradient in gradients)
    assert not optimizer.state
    torch.autograd.backward(waiting)
    assert before.keys() == state.keys()
    assert not torch.equal(random, torch.get_rng_state())


def test_an_exception_of_the_model_propagates_with_a_note_on_the_module() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 5))

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as raised:
        measure(model, (X,), {})

    notes: list[str] = getattr(raised.value, "__notes__", ["while running 1"])
    assert notes == ["while running 1"]
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_without_gradients_notes_that_there_was_no_backward() -> None:
    found = footprint(lambda self, x: x + 1, X)

    assert found.notes == ("no output requires a gradient, so there was no backward",)


def test_the_memory_of_a_meta_model_is_predicted() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(1 << 20, 1 << 20), nn.ReLU())
        x = torch.empty(2, 1 << 20)

    found = measure(model, (x,), {}).footprint

    assert found.fake
    assert not found.allocations
    assert kinds(found)["parameter"] == 4 * ((1 << 40) + (1 << 20))
    assert {block.spec.device for block in found.blocks} == {"cpu"}


def test_the_prediction_for_an_lstm_notes_what_torch_does_not_report() -> None:
    model = nn.LSTM(4, 3)

    found = measure(model, (torch.zeros(5, 2, 4),), {}, fake=True).footprint

    assert any("workspace" in note for note in found.notes)
    assert all(type(weight) is nn.Parameter for weight in model._flat_weights)


def test_a_step_under_autocast_allocates_copies_of_weights() -> None:
    model = nn.Linear(64, 64)
    x = torch.randn(8, 64)

    with torch.autocast("cpu", torch.bfloat16):
        model(x)
        first = measure(model, (x,), {}).footprint
        second = measure(model, (x,), {}).footprint

    assert kinds(first) == kinds(second)
    assert kinds(first)["activation"] >= 64 * 64 * 2
    assert peak(first) <= first.allocations[0].peak_bytes


def test_inputs_without_a_fake_version_are_refused() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], layout=torch.jagged)

    with pytest.raises(CaptureError, match="no fake version of a nested tensor"):
        footprint(lambda self, x: self.fc(x), nested, fake=True, backward=False)


def test_a_nested_tensor_is_counted_by_its_values_and_offsets() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], layout=torch.jagged)

    found = footprint(lambda self, x: self.fc(x), nested, backward=False)

    assert [block.bytes for block in of_kind(found, "output")] == [5 * 4 * 4]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "adam", "backward": False}, "use backward=True"),
        ({"optimizer": "nonsense"}, "torch.optim has no 'nonsense'"),
    ],
)
def test_invalid_options_are_refused_before_anything_runs(
    options: dict[str, Any], message: str
) -> None:
    runs: list[object] = []

    with pytest.raises(CaptureError, match=message):
        footprint(lambda self, x: runs.append(x), X, **options)

    assert not runs


def test_a_target_that_is_not_callable_is_refused() -> None:
    with pytest.raises(CaptureError, match="object cannot be run"):
        measure(object(), (), {})

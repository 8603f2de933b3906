from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
import torch

from torchglass.capture.measure.storage_log import Ledger, Place
from torchglass.records.measures import Saver


@pytest.fixture
def ledger() -> Ledger:
    ticks = count()
    made = Ledger(clock=lambda: next(ticks))
    made.begin("forward")
    made.place = Place("fc", "addmm")
    return made


def sizes(ledger: Ledger) -> list[int]:
    ledger.end()
    return [change.bytes for change in ledger.read()[1]]


def test_a_block_is_taken_once_and_freed_when_its_last_view_is_gone(ledger: Ledger) -> None:
    tensor = torch.zeros(8)
    view = tensor[2:].view(2, 3)

    ledger.take(tensor)
    ledger.take(view)
    del tensor
    assert sizes(ledger) == [32]
    del view

    assert sizes(ledger) == [32, -32]


def test_what_was_there_before_is_not_taken(ledger: Ledger) -> None:
    weight = torch.zeros(4)

    ledger.hold(weight, "parameter", "fc", "fc.weight")
    ledger.take(weight.view(2, 2))

    assert sizes(ledger) == []
    (block,), _, _ = ledger.read()
    assert (block.kind, block.phase, block.path, block.name) == (
        "parameter",
        None,
        "fc",
        "fc.weight",
    )


def test_a_block_that_grows_is_another_one_and_both_are_there_for_a_moment(ledger: Ledger) -> None:
    tensor = torch.zeros(4)
    ledger.take(tensor)

    tensor.resize_(10)
    ledger.take(tensor)

    assert sizes(ledger) == [16, 40, -16]


def test_a_storage_that_is_emptied_by_itself_is_noticed_at_the_end_of_a_phase(
    ledger: Ledger,
) -> None:
    tensor = torch.zeros(4)
    ledger.take(tensor)

    tensor.untyped_storage().resize_(0)

    assert sizes(ledger) == [16, -16]


def test_what_is_freed_after_the_last_phase_does_not_count(ledger: Ledger) -> None:
    tensor = torch.zeros(4)
    ledger.take(tensor)
    ledger.end()

    del tensor
    _, changes, _ = ledger.read()

    assert [change.bytes for change in changes] == [16]


def test_a_closed_ledger_sees_nothing_any_longer(ledger: Ledger) -> None:
    tensor = torch.zeros(4)
    ledger.take(tensor)

    ledger.close()
    del tensor

    assert sizes(ledger) == [16]


def test_a_sparse_tensor_is_its_indices_and_values_and_their_views_are_no_more(
    ledger: Ledger,
) -> None:
    tensor = torch.eye(3).to_sparse()

    ledger.take(tensor)
    ledger.take(tensor._values())

    assert sizes(ledger) == [2 * 3 * 8, 3 * 4]


# torch says so of every such tensor.
@pytest.mark.filterwarnings("ignore:Sparse CS. tensor support is in beta:UserWarning")
@pytest.mark.parametrize("make", [torch.Tensor.to_sparse_csr, torch.Tensor.to_sparse_csc])
def test_a_compressed_sparse_tensor_is_three_blocks(
    ledger: Ledger, make: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    ledger.take(make(torch.eye(3)).clone())

    taken = [size for size in sizes(ledger) if size > 0]

    assert sorted(taken) == [3 * 4, 3 * 8, 4 * 8]


def test_a_nested_tensor_is_its_values_and_offsets(ledger: Ledger) -> None:
    nested = torch.nested.nested_tensor([torch.zeros(2, 4), torch.zeros(3, 4)], layout=torch.jagged)

    ledger.take(nested)

    assert sum(sizes(ledger)) == 5 * 4 * 4 + 3 * 8


def test_an_activation_says_who_made_it_and_who_keeps_it(ledger: Ledger) -> None:
    kept, freed = torch.zeros(4), torch.zeros(2)
    ledger.take(kept)
    ledger.take(freed)
    del freed

    ledger.retain("activation")
    ledger.saved(kept.view(2, 2), Saver(node="ReluBackward0", path="act"))
    first, second = ledger.read()[0]

    assert (first.kind, first.path, first.op) == ("activation", "fc", "addmm")
    assert first.saved_by == (Saver(node="ReluBackward0", path="act"),)
    assert second.kind == "temporary"


def test_the_state_of_an_optimizer_was_there_before_the_step(ledger: Ledger) -> None:
    ledger.begin("optimizer")
    state, temporary = torch.zeros(4), torch.zeros(2)
    ledger.take(state)
    ledger.take(temporary)
    ledger.own(state, "optimizer", "fc", "fc.weight")
    ledger.end()

    blocks, changes, parts = ledger.read()

    assert [block.phase for block in blocks] == [None, "optimizer"]
    assert [change.block for change in changes] == [1]
    assert [part.start for part in parts] == [0, 0]


def test_the_time_runs_from_the_first_phase_on() -> None:
    ticks = count(100, 10)
    ledger = Ledger(clock=lambda: next(ticks))

    ledger.begin("forward")
    kept = torch.zeros(1)
    ledger.take(kept)
    ledger.begin("backward")
    ledger.end()

    _, (change,), parts = ledger.read()
    assert [part.start_ns for part in parts] == [0, 20]
    assert change.time_ns == 10
    del kept

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
import torch

from torchglass.capture.measure.memory_recorder import KernelPlace, StorageLog
from torchglass.records.measures import Saver


@pytest.fixture
def log() -> StorageLog:
    ticks = count()
    made = StorageLog(clock=lambda: next(ticks))
    made.begin("forward")
    made.place = KernelPlace("fc", "addmm")
    return made


def sizes(log: StorageLog) -> list[int]:
    log.end()
    return [change.bytes for change in log.read()[1]]


def test_a_block_is_allocated_once_and_freed_with_its_last_view(log: StorageLog) -> None:
    tensor = torch.zeros(8)
    view = tensor[2:].view(2, 3)

    log.take(tensor)
    log.take(view)
    del tensor
    assert sizes(log) == [32]
    del view

    assert sizes(log) == [32, -32]


def test_existing_storages_are_not_allocations(log: StorageLog) -> None:
    weight = torch.zeros(4)

    log.hold(weight, "parameter", "fc", "fc.weight")
    log.take(weight.view(2, 2))

    assert sizes(log) == []
    (block,), _, _ = log.read()
    assert (block.kind, block.phase, block.path, block.name) == (
        "parameter",
        None,
        "fc",
        "fc.weight",
    )


def test_a_resized_block_is_a_new_one_and_both_are_briefly_live(log: StorageLog) -> None:
    tensor = torch.zeros(4)
    log.take(tensor)

    tensor.resize_(10)
    log.take(tensor)

    assert sizes(log) == [16, 40, -16]


def test_a_storage_resized_to_zero_is_noticed_at_the_end_of_a_phase(
    log: StorageLog,
) -> None:
    tensor = torch.zeros(4)
    log.take(tensor)

    tensor.untyped_storage().resize_(0)

    assert sizes(log) == [16, -16]


def test_blocks_freed_after_the_last_phase_do_not_count(log: StorageLog) -> None:
    tensor = torch.zeros(4)
    log.take(tensor)
    log.end()

    del tensor
    _, changes, _ = log.read()

    assert [change.bytes for change in changes] == [16]


def test_a_closed_storage_log_records_nothing(log: StorageLog) -> None:
    tensor = torch.zeros(4)
    log.take(tensor)

    log.close()
    del tensor

    assert sizes(log) == [16]


def test_a_sparse_tensor_is_two_blocks_and_its_views_add_none(
    log: StorageLog,
) -> None:
    tensor = torch.eye(3).to_sparse()

    log.take(tensor)
    log.take(tensor._values())

    assert sizes(log) == [2 * 3 * 8, 3 * 4]


# torch says so of every such tensor.
@pytest.mark.filterwarnings("ignore:Sparse CS. tensor support is in beta:UserWarning")
@pytest.mark.parametrize("make", [torch.Tensor.to_sparse_csr, torch.Tensor.to_sparse_csc])
def test_a_compressed_sparse_tensor_is_three_blocks(
    log: StorageLog, make: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    log.take(make(torch.eye(3)).clone())

    taken = [size for size in sizes(log) if size > 0]

    assert sorted(taken) == [3 * 4, 3 * 8, 4 * 8]


def test_a_nested_tensor_is_the_blocks_of_its_values_and_offsets(log: StorageLog) -> None:
    nested = torch.nested.nested_tensor([torch.zeros(2, 4), torch.zeros(3, 4)], layout=torch.jagged)

    log.take(nested)

    assert sum(sizes(log)) == 5 * 4 * 4 + 3 * 8


def test_an_activation_block_has_its_producer_and_savers(log: StorageLog) -> None:
    kept, freed = torch.zeros(4), torch.zeros(2)
    log.take(kept)
    log.take(freed)
    del freed

    log.retain("activation")
    log.saved(kept.view(2, 2), Saver(node="ReluBackward0", path="act"))
    first, second = log.read()[0]

    assert (first.kind, first.path, first.op) == ("activation", "fc", "addmm")
    assert first.saved_by == (Saver(node="ReluBackward0", path="act"),)
    assert second.kind == "temporary"


def test_optimizer_state_exists_before_the_step(log: StorageLog) -> None:
    log.begin("optimizer")
    state, temporary = torch.zeros(4), torch.zeros(2)
    log.take(state)
    log.take(temporary)
    log.own(state, "optimizer", "fc", "fc.weight")
    log.end()

    blocks, changes, parts = log.read()

    assert [block.phase for block in blocks] == [None, "optimizer"]
    assert [change.block for change in changes] == [1]
    assert [part.start for part in parts] == [0, 0]


def test_time_starts_with_the_first_phase() -> None:
    ticks = count(100, 10)
    log = StorageLog(clock=lambda: next(ticks))

    log.begin("forward")
    kept = torch.zeros(1)
    log.take(kept)
    log.begin("backward")
    log.end()

    _, (change,), parts = log.read()
    assert [part.start_ns for part in parts] == [0, 20]
    assert change.time_ns == 10
    del kept

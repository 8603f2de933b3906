"""Which op a tensor is said to come from."""

from __future__ import annotations

import pytest
import torch

from torchglass.capture.trace.producers import Producers
from torchglass.records.trace import OpId

both_ways = pytest.mark.parametrize("hold", [True, False], ids=["held", "watched"])


@both_ways
def test_each_output_of_an_op_has_its_index(hold: bool) -> None:
    first, second = torch.ones(4).chunk(2)
    origins = Producers(hold=hold)

    origins.made(OpId(3), (first, second))

    assert origins.find(first) == (3, 0)
    assert origins.find(second) == (3, 1)


@both_ways
def test_the_last_op_that_wrote_a_tensor_is_its_producer(hold: bool) -> None:
    first, second = torch.ones(4).chunk(2)
    origins = Producers(hold=hold)
    origins.made(OpId(3), (first, second))

    origins.made(OpId(4), (second,))

    assert origins.find(second) == (4, 0)


@both_ways
def test_an_untracked_view_is_found_by_its_memory(hold: bool) -> None:
    tensor = torch.ones(4)
    origins = Producers(hold=hold)
    origins.made(OpId(3), (tensor,))

    assert origins.find(tensor[1:]) == (3, 0)
    assert origins.find(torch.ones(4)) is None


def test_a_tensor_reusing_a_freed_id_or_memory_has_no_producer() -> None:
    origins = Producers(hold=False)
    for op in range(50):
        origins.made(OpId(op), (torch.ones(4),))

    later = [torch.ones(4) for _ in range(50)]

    assert [origins.find(tensor) for tensor in later] == [None] * 50

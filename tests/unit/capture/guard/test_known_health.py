"""What is known of a tensor holds until it is written into or gone."""

from __future__ import annotations

import gc
import weakref

import torch

from torchglass.capture.guard.tensor_health import Health, KnownHealth


def test_a_write_through_a_view_invalidates_the_known_health() -> None:
    memory, tensor = KnownHealth(), torch.ones(4)
    memory.remember(tensor, Health.FINE)
    assert memory.recall(tensor) is Health.FINE

    tensor[0] = float("nan")

    assert memory.recall(tensor) is None
    assert memory.health(tensor) is Health.NAN


def test_no_tensor_is_kept_alive_or_confused_with_another() -> None:
    memory = KnownHealth()
    tensor = torch.ones(4)
    memory.remember(tensor, Health.NAN, "sqrt")
    gone = weakref.ref(tensor)

    del tensor
    gc.collect()

    assert gone() is None
    others = [torch.ones(4) for _ in range(100)]
    assert all(memory.recall(other) is None for other in others)


def test_freed_tensors_do_not_accumulate() -> None:
    memory = KnownHealth()
    kept = torch.ones(1)
    memory.remember(kept, Health.FINE)

    for start in range(0, 40_000, 1000):
        batch = [torch.empty(0) for _ in range(1000)]
        for tensor in batch:
            memory.remember(tensor, Health.FINE)
        assert len(memory._known) < 20_000, start

    assert memory.recall(kept) is Health.FINE


def test_a_view_of_undefined_memory_is_undefined() -> None:
    memory, rows = KnownHealth(), torch.empty(3, 4)
    memory.leave_undefined(rows)

    assert memory.is_undefined(rows[1])
    assert not memory.is_undefined(torch.empty(3, 4))

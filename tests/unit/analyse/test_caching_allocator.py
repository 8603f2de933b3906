"""The model of torch's CUDA allocator, against what its source says."""

from __future__ import annotations

import random
from typing import Any

from torchglass.analyse.memory import CachingAllocator

_MB = 1 << 20


def test_small_blocks_share_a_segment_of_two_megabytes() -> None:
    allocator = CachingAllocator()
    for _ in range(4096):
        allocator.allocate(1)
    assert allocator.reserved.allocated_bytes == 4096 * 512
    assert allocator.reserved.reserved_bytes == 2 * _MB
    allocator.allocate(1)
    assert allocator.reserved.reserved_bytes == 4 * _MB


def test_medium_blocks_take_twenty_megabyte_segments_and_large_blocks_their_own() -> None:
    allocator = CachingAllocator()
    allocator.allocate(3 * _MB)
    assert allocator.reserved.reserved_bytes == 20 * _MB
    allocator.allocate(16 * _MB)
    assert allocator.reserved.reserved_bytes == 20 * _MB
    allocator.allocate(11 * _MB)
    assert allocator.reserved.reserved_bytes == 32 * _MB


def test_free_neighbors_are_merged_and_the_best_fit_is_used() -> None:
    allocator = CachingAllocator()
    pieces = [allocator.allocate(4 * _MB) for _ in range(5)]
    assert allocator.reserved.reserved_bytes == 20 * _MB
    allocator.free(pieces[1])
    allocator.free(pieces[3])
    allocator.free(pieces[2])
    allocator.allocate(12 * _MB)
    assert allocator.reserved.reserved_bytes == 20 * _MB


def test_a_fragmented_segment_cannot_take_a_large_block() -> None:
    allocator = CachingAllocator()
    pieces = [allocator.allocate(4 * _MB) for _ in range(5)]
    allocator.free(pieces[1])
    allocator.free(pieces[3])
    allocator.allocate(8 * _MB)
    assert allocator.reserved.reserved_bytes == 40 * _MB


def test_free_segments_are_released_before_out_of_memory() -> None:
    allocator = CachingAllocator(limit=40 * _MB)
    allocator.free(allocator.allocate(30 * _MB))
    allocator.allocate(32 * _MB)
    assert not allocator.reserved.is_out_of_memory
    allocator.allocate(9 * _MB)
    assert allocator.reserved.is_out_of_memory


def test_no_memory_is_lost_over_many_blocks() -> None:
    allocator, draw = CachingAllocator(), random.Random(0)
    alive: list[Any] = []
    for _ in range(5000):
        if alive and draw.random() < 0.5:
            allocator.free(alive.pop(draw.randrange(len(alive))))
        else:
            alive.append(allocator.allocate(draw.choice([7, 4000, 2 * _MB, 15 * _MB])))
    reserved = allocator.reserved.reserved_bytes
    for piece in alive:
        allocator.free(piece)
    # All that was reserved is free again, and in whole segments.
    assert allocator.reserved.reserved_bytes == reserved
    allocator._give_back()
    assert allocator._reserved == 0

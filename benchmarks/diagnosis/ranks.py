"""Trainings of two ranks on one machine, over gloo."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed, multiprocessing, nn

from benchmarks.diagnosis.cases import Watch

_RANKS = 2


def run_ranks(train: Callable[..., None], watch: Watch, *arguments: Any) -> None:
    """Call `train(rank, watch, *arguments)` in two processes that can reduce tensors."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Forked processes would inherit torch's threads in an unknown state.
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=_begin, args=(rank, port, train, watch, *arguments))
        for rank in range(_RANKS)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    failed = [process.exitcode for process in processes if process.exitcode]
    if failed:
        raise RuntimeError(f"ranks ended with {failed}")


def _begin(rank: int, port: int, train: Callable[..., None], watch: Watch, *arguments: Any) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", rank=rank, world_size=_RANKS)
    train(rank, watch, *arguments)
    distributed.destroy_process_group()


def average_gradients(model: nn.Module) -> None:
    """Replace every gradient by its mean over the ranks."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            distributed.all_reduce(parameter.grad)
            parameter.grad /= _RANKS

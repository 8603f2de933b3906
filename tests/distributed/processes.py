"""Groups of real processes that train together."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_ranks(count: int, program: str, *arguments: str) -> list[subprocess.CompletedProcess[str]]:
    """Run a program in so many processes at once; `gather` of this module makes their group."""
    started = [
        _start(rank, count, port, program, arguments)
        for port in [_free_port()]
        for rank in range(count)
    ]
    done = []
    for process in started:
        out, err = process.communicate(timeout=240)
        done.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
    return done


def gather() -> int:
    """Join the group that the environment tells of, and give the own rank."""
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    return distributed.get_rank()


def _start(
    rank: int, count: int, port: int, program: str, arguments: tuple[str, ...]
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src"))),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])

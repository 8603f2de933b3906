"""Imports: what a package costs before it has done anything, in interpreters just started."""

from __future__ import annotations

import compileall
import importlib
import importlib.util
import resource
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.cases import at_start
from benchmarks.measure import cpu_seconds
from benchmarks.rows import OURS, PEERS, TORCHINFO, Case, Effort, Reading, Topic


def import_cost(contender: str) -> list[float]:
    """CPU milliseconds of an import after torch's."""
    import torch  # noqa: F401 - its own cost is not counted

    _compile(contender)
    start = time.process_time()
    importlib.import_module(contender.lower())
    return [1e3 * (time.process_time() - start)]


def first_summary_cost(contender: str) -> list[float]:
    """CPU milliseconds of an import after torch's and a first, small, summary."""
    import torch

    model = torch.nn.Linear(2, 2)
    _compile(contender)

    def ours() -> str:
        import torchglass as tg

        return str(tg.summary(model))

    def torchinfo() -> str:
        import torchinfo

        return str(torchinfo.summary(model, verbose=0))

    return [1e3 * cpu_seconds({OURS: ours, TORCHINFO: torchinfo}[contender])]


def help_cost() -> float:
    """CPU milliseconds of `torchglass --help` over those of an interpreter that does nothing."""
    return 1e3 * (_run_cost("-m", "torchglass", "--help") - _run_cost("-c", "pass"))


def _compile(contender: str) -> None:
    """Have the bytecode of a package on disk, as pip leaves it, also for one that is edited."""
    package = importlib.util.find_spec(contender.lower())
    if package is not None and package.origin is not None:
        compileall.compile_dir(Path(package.origin).parent, quiet=1)


def _run_cost(*arguments: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _measure_help(effort: Effort) -> dict[str, Reading]:
    _compile(OURS)
    samples = tuple(help_cost() for _ in range(effort.rounds))
    return {OURS: Reading(unit="ms", samples=samples)}


TOPIC = Topic(
    name="imports",
    title="Imports",
    about=(
        "CPU time over `import torch`, each round in a new interpreter with compiled "
        "bytecode. `--help` is over an interpreter that does nothing."
    ),
    cases=[
        at_start("import", "ms", import_cost, (OURS, *PEERS), goal=50),
        at_start("import and a first summary", "ms", first_summary_cost, (OURS, TORCHINFO)),
        Case("torchglass --help", _measure_help),
    ],
)

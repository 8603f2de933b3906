"""Runs cases in worker processes, and reads what was found in them."""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import torchglass as tg
from benchmarks.diagnosis.cases import Case, Watch, all_cases

SLUGS = {"rank-not-finite": "nan"}
"""Kinds that name the same problem as another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What is compared of a finding."""

    severity: str
    kind: str
    path: str
    series: str
    step: int | None
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A case that was run, and its findings in their order."""

    case: str
    log_freq: int
    found: tuple[Found, ...] = ()
    error: str = ""
    seconds: float = 0.0
    first_loss: float = float("nan")
    last_loss: float = float("nan")


def run_all(
    cases: Sequence[Case], log_freqs: Iterable[int], workers: int, seed: int = 0
) -> list[Result]:
    """Run every case at every log_freq, each from the same seed."""
    tasks = [(case.name, log_freq, seed) for log_freq in log_freqs for case in cases]
    if workers < 2:
        return [_run(task) for task in tasks]
    # Workers import torch afresh: a forked process inherits its threads in an unknown state.
    context = multiprocessing.get_context("spawn")
    results = []
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_begin) as pool:
        for number, result in enumerate(pool.map(_run, tasks), 1):
            results.append(result)
            if number % 20 == 0 or result.error:
                said = f"{number}/{len(tasks)} {result.case} {result.error}"
                print(said, file=sys.stderr, flush=True)
    return results


def _begin() -> None:
    torch.set_num_threads(1)
    # What torch says about a mistake is for the user; some of the mistakes make it speak.
    warnings.simplefilter("ignore")


def _run(task: tuple[str, int, int]) -> Result:
    name, log_freq, seed = task
    case = all_cases()[name]
    torch.manual_seed(seed)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="diagnosis-") as folder:
        watch = Watch(Path(folder), log_freq)
        try:
            case.train(watch)
            seconds = time.perf_counter() - started
            found = _findings(watch)
            first, last = _losses(watch)
        except Exception as problem:  # noqa: BLE001 - the other cases are to be run
            error = f"{type(problem).__name__}: {problem}"
            return Result(case=name, log_freq=log_freq, error=error)
        finally:
            torch.set_default_dtype(torch.float32)
            torch.set_grad_enabled(True)
    return Result(
        case=name,
        log_freq=log_freq,
        found=found,
        seconds=seconds,
        first_loss=first,
        last_loss=last,
    )


def _target(folder: Path) -> Path:
    """The file of a run, or the folder with those of its ranks."""
    files = sorted(folder.glob("*.glass"))
    return files[0] if len(files) == 1 else folder


def _findings(watch: Watch) -> tuple[Found, ...]:
    diagnosis = watch.diagnoses[0] if watch.diagnoses else tg.diagnose(_target(watch.folder))
    return tuple(map(_compared, diagnosis.findings))


def _compared(finding: Any) -> Found:
    step = getattr(finding, "first_step", None)
    return Found(
        severity=finding.severity,
        kind=SLUGS.get(finding.kind, finding.kind),
        path=finding.path,
        series=getattr(finding, "series", "") or "",
        step=finding.step if step is None else step,
        message=finding.message,
    )


def _losses(watch: Watch) -> tuple[float, float]:
    """The mean loss of the first and of the last tenth of the steps."""
    values = np.asarray(watch.losses)
    if watch.diagnoses:
        return float("nan"), float("nan")
    if not len(values):
        with tg.open(watch.folder / "rank0.glass") as run:
            values = np.asarray(run["loss"].values, dtype=float)
    part = max(1, len(values) // 10)
    return float(values[:part].mean()), float(values[-part:].mean())

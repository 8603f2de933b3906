"""Calling a function in an interpreter of its own, which nobody has warmed, patched or filled.

    fresh(import_cost, contender="torchinfo")

Only what JSON can say goes in and comes out.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

LONGEST = 900.0
"""Seconds on the wall clock after which a contender is stopped."""

_ROOT = Path(__file__).parent.parent
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


class FreshError(Exception):
    """The other interpreter did not come to an end, or raised: says what in a word or two."""


def fresh(function: Callable[..., Any], **arguments: Any) -> Any:
    """What a function of a module returns when a new interpreter calls it."""
    request = json.dumps([function.__module__, function.__name__, arguments])
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.fresh", request],
            capture_output=True,
            text=True,
            check=False,
            timeout=LONGEST,
            cwd=_ROOT,
            env={**os.environ, **_ONE_THREAD},
        )
    except subprocess.TimeoutExpired as error:
        raise FreshError(f"took more than {LONGEST:.0f} s") from error
    if done.returncode != 0:
        *_, last = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise FreshError(last.partition(":")[0])
    return json.loads(done.stdout)


def _answer(request: str) -> None:
    # What the function prints must not get into the answer.
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    module, function, arguments = json.loads(request)
    result = getattr(importlib.import_module(module), function)(**arguments)
    with answer:
        json.dump(result, answer)


if __name__ == "__main__":
    _answer(sys.argv[1])

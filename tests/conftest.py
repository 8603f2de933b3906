"""Around every test: the user's world is left as it was found."""

from __future__ import annotations

import gc
import linecache
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from tests import textual_pilot

textual_pilot.install()

# How long an example takes says how busy the machine is, and nothing of what is tested. A check
# has the same examples each time; `--hypothesis-profile=searching` looks for others.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("searching", deadline=None, max_examples=1000)
settings.load_profile("repeatable")
# In the background of a shell script Ctrl-C is ignored, also by the programs that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# The models are small, and threads that share a processor mostly wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What collection makes stays, and would be walked again and again.
gc.disable()
# What the explorer remembers is this machine's user's, and no test may read or write it.
_CONFIG = tempfile.mkdtemp(prefix="torchglass-config-")
os.environ["XDG_CONFIG_HOME"] = _CONFIG
# wandb reads this once a process, and asks for a login where it is not set.
os.environ["WANDB_MODE"] = "offline"


def pytest_collection_finish() -> None:
    gc.enable()


@pytest.fixture(autouse=True)
def _nothing_stays_behind() -> Iterator[None]:
    """No global hook, active mode or stand-in for one of torch's functions outlives a test."""
    before = traces_of_us()
    yield
    after = traces_of_us()
    assert before is None or after == before


@pytest.fixture(autouse=True)
def _every_test_compiles_anew() -> Iterator[None]:
    """After eight compilations of one `forward`, whoever asked, dynamo compiles it no more."""
    yield
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()


@pytest.fixture(autouse=True)
def _no_model_of_a_test_stays() -> Iterator[None]:
    """Tests write their models to a file net.py, and another's would be found under its name."""
    yield
    sys.modules.pop("net", None)
    linecache.clearcache()


@pytest.fixture(scope="module", autouse=True)
def _the_collector_leaves_what_was_imported_alone() -> None:
    """A watch searches all objects that Python knows for optimizers: in a test, its own alone."""
    gc.collect()
    gc.freeze()
    # Counting a million frozen objects takes 70 ms, and every explorer asks whether there are any.
    gc.get_freeze_count = lambda: 1


_RULES = "torchglass.analyse.diagnosis.rule"


@pytest.fixture(autouse=True)
def _no_rule_of_a_test_stays() -> Iterator[None]:
    """A rule that a test or an example adds is gone after it."""
    yield
    rules: dict[str, Any] = getattr(sys.modules.get(_RULES), "RULES", {})
    for kind in [kind for kind, rule in rules.items() if rule.family == "own"]:
        del rules[kind]


@pytest.fixture
def scalers_freed() -> Iterator[None]:
    """A watch takes a `GradScaler` that is alive for that of its training: none may stay."""
    yield
    gc.collect()


def pytest_unconfigure() -> None:
    shutil.rmtree(_CONFIG, ignore_errors=True)


def traces_of_us() -> dict[str, Any] | None:
    if "torch" not in sys.modules:
        return None
    import torch
    from torch.nn.modules import module as modules
    from torch.optim import optimizer as optimizers

    return {
        "module hooks": [
            len(getattr(modules, name))
            for name in sorted(vars(modules))
            if name.startswith("_global_") and hasattr(getattr(modules, name), "__len__")
        ],
        "optimizer hooks": [
            len(optimizers._global_optimizer_pre_hooks),
            len(optimizers._global_optimizer_post_hooks),
        ],
        "calls": [
            torch.nn.Module.__call__,
            torch.nn.Module._call_impl,
            torch.nn.Module._wrapped_call_impl,
        ],
        "overrides": torch.overrides.has_torch_function,
        "function modes": torch._C._len_torch_function_stack(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "grad mode": torch.is_grad_enabled(),
        "default dtype": torch.get_default_dtype(),
    }

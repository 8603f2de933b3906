"""`import torchglass` and `torchglass --help` bring in nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "textual", "starlette", "uvicorn", "pygraphviz", "safetensors", "rich", "numpy")


def loaded_after(code: str) -> set[str]:
    """The names of the modules that a fresh interpreter has loaded after running some code."""
    report = "import sys; print('\\nloaded:', *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True
    )
    return set(done.stdout.rpartition("loaded: ")[2].split())


@pytest.mark.parametrize("module", HEAVY)
def test_importing_torchglass_brings_in_nothing_heavy(module: str, bare_import: set[str]) -> None:
    assert module not in bare_import


@pytest.fixture(scope="module")
def bare_import() -> set[str]:
    loaded = loaded_after("import torchglass")

    assert "torchglass" in loaded
    return loaded


def test_help_does_not_wait_for_torch() -> None:
    loaded = loaded_after("from torchglass.cli import main\nassert main(['--help']) == 0")

    assert "torchglass.cli" in loaded
    assert loaded.isdisjoint({"torch", "numpy", "textual", "starlette", "uvicorn", "pygraphviz"})
    assert loaded.isdisjoint({"torchglass.api", "torchglass.capture", "torchglass.store"})


def test_a_first_summary_does_not_wait_for_what_reads_runs() -> None:
    loaded = loaded_after("import torch, torchglass as tg\nprint(tg.summary(torch.nn.ReLU()))")

    assert "torchglass.capture.model.structure" in loaded
    assert loaded.isdisjoint({"sqlite3", "torchglass.store", "torchglass.results.run"})


def test_the_public_names_do_not_wait_for_torch() -> None:
    loaded = loaded_after("import torchglass as tg\nfor name in tg.__all__: getattr(tg, name)")

    assert "torchglass.classic" in loaded
    assert loaded.isdisjoint({"torch", "textual", "starlette", "uvicorn", "pygraphviz"})

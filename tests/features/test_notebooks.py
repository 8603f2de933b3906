"""The notebooks of the documentation run in a real kernel and print what they show."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from docs.examples import ROOT, words_of
from docs.notebooks import NOTEBOOKS, printed


@pytest.mark.slow
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs_and_reproduces_its_outputs(file: Path, tmp_path: Path) -> None:
    again = tmp_path / file.name

    # In a process of its own: what runs kernels makes this one look like a notebook.
    subprocess.run([sys.executable, "-m", "docs.notebooks", file, again], cwd=ROOT, check=True)

    for before, now in zip(printed(file), printed(again), strict=True):
        # Machines differ in the last digits, so the words are compared.
        assert words_of(before) <= words_of(now), "renew the notebooks: python -m docs.notebooks"


def test_there_are_three_notebooks() -> None:
    assert [file.stem for file in NOTEBOOKS] == [
        "find-a-nan",
        "understand-a-model",
        "watch-a-training",
    ]

"""The notebooks of the documentation run in a real kernel and print what they show."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from docs.examples import words_of
from docs.notebooks import NOTEBOOKS, printed, run


@pytest.mark.slow
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs_and_prints_what_it_shows(file: Path, tmp_path: Path) -> None:
    shown = nbformat.read(file, as_version=4)
    again = nbformat.read(file, as_version=4)

    run(again, tmp_path)

    for before, now in zip(printed(shown), printed(again), strict=True):
        # Machines differ in the last digits, so the words are compared.
        assert words_of(before) <= words_of(now), "renew the notebooks: python -m docs.notebooks"


def test_there_are_three_notebooks() -> None:
    assert [file.stem for file in NOTEBOOKS] == [
        "find-a-nan",
        "understand-a-model",
        "watch-a-training",
    ]

"""The examples in the docstrings of the public functions print what they say."""

from __future__ import annotations

import doctest
from pathlib import Path
from types import ModuleType

import pytest

from torchglass.api import (
    flops,
    guarding,
    inspecting,
    memory,
    models,
    passes,
    recording,
    timing,
    training,
)
from torchglass.classic import explorers, gadgets, lens, statistics
from torchglass.views import formats

FINDER = doctest.DocTestFinder(exclude_empty=True)
EXAMPLES = [
    example
    for module in (
        flops,
        guarding,
        inspecting,
        memory,
        models,
        passes,
        recording,
        timing,
        training,
        explorers,
        gadgets,
        lens,
        statistics,
        formats,
    )
    for example in FINDER.find(module)
    if example.examples
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_prints_what_it_says(
    example: doctest.DocTest,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)

    results = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example)

    assert results.failed == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    "module",
    [models, passes, timing, training, explorers, lens],
    ids=lambda module: module.__name__,
)
def test_the_public_modules_have_examples(module: ModuleType) -> None:
    assert any(example.name.startswith(module.__name__) for example in EXAMPLES)

"""The examples in the docstrings of the public functions print what they say."""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module
from pathlib import Path

import pytest

from torchglass import api, classic

FINDER = doctest.DocTestFinder(exclude_empty=True)
MODULES = [
    *(f"{api.__name__}.{module.name}" for module in pkgutil.iter_modules(api.__path__)),
    *(f"{classic.__name__}.{module.name}" for module in pkgutil.iter_modules(classic.__path__)),
    "torchglass.views.formats",
]
EXAMPLES = [
    example for name in MODULES for example in FINDER.find(import_module(name)) if example.examples
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
    "verb", ["flops", "guard", "log_forward_pass", "summary", "trace", "watch"]
)
def test_a_public_verb_has_an_example(verb: str) -> None:
    assert any(example.name.endswith(f".{verb}") for example in EXAMPLES)

"""The examples in the docstrings of the public functions print what they say."""

from __future__ import annotations

import doctest
import inspect
import pkgutil
import re
from importlib import import_module
from pathlib import Path

import pytest

import torchglass as tg
from torchglass import api, classic

FINDER = doctest.DocTestFinder(exclude_empty=True)
MODULES = [
    *(f"{api.__name__}.{module.name}" for module in pkgutil.iter_modules(api.__path__)),
    *(f"{classic.__name__}.{module.name}" for module in pkgutil.iter_modules(classic.__path__)),
    "torchglass.tables.text",
]
VERBS = [name for name in (*tg.__all__, "open") if inspect.isfunction(getattr(tg, name))]
EXAMPLES = [
    example for name in MODULES for example in FINDER.find(import_module(name)) if example.examples
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_a_docstring_example_prints_its_output(
    example: doctest.DocTest,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)

    results = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example)

    assert results.failed == 0, capsys.readouterr().out


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_a_public_function_has_an_example(verb: str) -> None:
    assert ">>> " in (getattr(tg, verb).__doc__ or "")


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_a_public_function_documents_parameters_and_result(verb: str) -> None:
    function = getattr(tg, verb)
    text = inspect.getdoc(function) or ""
    arguments = text.partition("Args:")[2].partition("\n\n")[0]

    for parameter in inspect.signature(function).parameters.values():
        assert re.search(rf"^    \*{{0,2}}{parameter.name}: ", arguments, re.MULTILINE)
    gives_nothing = inspect.signature(function).return_annotation in ("None", None)
    assert gives_nothing or "\nReturns:\n" in text

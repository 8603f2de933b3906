"""What `torchglass` offers is what it says it offers, and each of it says what it is."""

from __future__ import annotations

import ast
import builtins
import inspect
from importlib import import_module
from pathlib import Path

import pytest

import torchglass

NAMES = [name for name in torchglass.__all__ if name != "__version__"]


def test_the_public_names_are_sorted() -> None:
    assert torchglass.__all__ == sorted(torchglass.__all__)


@pytest.mark.parametrize("name", torchglass.__all__)
def test_every_public_name_exists(name: str) -> None:
    assert hasattr(torchglass, name)
    assert name in dir(torchglass)


def test_type_checkers_see_the_same_names_in_the_same_places() -> None:
    tree = ast.parse(Path(torchglass.__file__).read_text(encoding="utf-8"))
    branch = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in branch.body if isinstance(node, ast.ImportFrom)]
    seen = {alias.name: node.module for node in imports for alias in node.names}

    assert sorted(seen) == sorted([*NAMES, "open"])
    for name, home in seen.items():
        assert getattr(import_module(str(home)), name) is getattr(torchglass, name)


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_has_a_one_sentence_summary(name: str) -> None:
    documentation = inspect.getdoc(getattr(torchglass, name)) or ""
    first_line = documentation.partition("\n")[0]

    assert first_line.endswith(".")
    assert len(first_line) > len(name)


def test_a_star_import_does_not_shadow_builtins() -> None:
    imported: dict[str, object] = {}
    exec("from torchglass import *", imported)

    assert not [name for name in imported if name in vars(builtins) and name[0] != "_"]
    assert callable(torchglass.open)
    assert "open" in dir(torchglass)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'sumary'"):
        _ = torchglass.sumary  # type: ignore[attr-defined]

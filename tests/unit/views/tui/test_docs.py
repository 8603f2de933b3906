"""The page about the explorer has the keys that the explorer has."""

from __future__ import annotations

from docs.explorer_keys import PAGE, markdown, renewed


def test_the_key_documentation_is_current() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert renewed(page) == page


def test_every_documented_column_has_an_example() -> None:
    assert "| `` |" not in markdown()

"""The page about the explorer has the keys that the explorer has."""

from __future__ import annotations

from docs.explorer_keys import PAGE, markdown, renewed


def test_the_page_has_all_keys_as_they_are_now() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert renewed(page) == page


def test_every_component_has_an_example() -> None:
    assert "| `` |" not in markdown()

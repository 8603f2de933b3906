"""Every example in the README and in the docs runs, and prints what is shown below it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.examples import DOCS, PAGES, ROOT, blocks_of, renewed, run_page

PACKAGE = ROOT / "src" / "torchglass"
SLOW = {"docs/plan.md"}
"""Pages that take seconds; tests of their verbs run every day (test_plans.py)."""


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def has_examples(page: Path) -> bool:
    return any(block.language == "python" for block in blocks_of(text_of(page)))


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def links(page: Path) -> list[str]:
    return re.findall(r"\]\(((?!http)[^)#]+)\)", text_of(page))


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if name_of(page) in SLOW else ())
        for page in PAGES
        if has_examples(page)
    ],
    ids=name_of,
)
def test_the_examples_of_a_page_reproduce_their_output(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    wrong = [block for block in run_page(text_of(page)) if not block.is_true]

    renew = f"renew the page with `python -m docs.examples {name_of(page)}`"
    assert [(block.printed, block.body) for block in wrong] == [], renew


def test_the_readme_has_examples() -> None:
    blocks = blocks_of(text_of(ROOT / "README.md"))
    assert sum(block.language == "python" for block in blocks) >= 5


def test_outputs_are_shown_in_the_docs() -> None:
    shown = [block for page in PAGES for block in blocks_of(text_of(page))]
    assert sum(block.language == "text" for block in shown) >= 5


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_links_of_a_page_are_valid(page: Path) -> None:
    missing = [link for link in links(page) if not _exists(page.parent / link)]
    assert missing == []


def _exists(target: Path) -> bool:
    """Whether a link leads to a file; the site makes a page of each notebook."""
    return target.exists() or target.with_suffix(".ipynb").exists()


@pytest.mark.parametrize("page", [ROOT / "CONTRIBUTING.md", DOCS / "how-it-works.md"], ids=name_of)
def test_the_files_that_a_page_names_exist(page: Path) -> None:
    named = re.findall(r"`([\w/]+/[\w.]+\.(?:py|json))`", text_of(page))

    missing = [
        name for name in named if not any((base / name).exists() for base in (PACKAGE, ROOT))
    ]
    assert named
    assert missing == []


PAGE = """
```python
print("one 1.5 ms")
```

<!-- numbers vary -->
```text
{}
```
"""


@pytest.mark.parametrize(
    ("shown", "is_true"), [("one 1.5 ms", True), ("one 20 μs", True), ("two 1.5 ms", False)]
)
def test_an_output_with_times_is_compared_without_numbers(shown: str, is_true: bool) -> None:
    assert run_page(PAGE.format(shown))[1].is_true is is_true


def test_a_wrong_output_is_updated() -> None:
    page = "```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n"

    assert renewed(page) == page.replace("3", "2")


def test_a_page_without_examples_is_unchanged() -> None:
    assert renewed("# Limits\n") == "# Limits\n"


def test_a_block_that_is_not_run_says_why() -> None:
    notes = [block.note for page in PAGES for block in blocks_of(text_of(page))]
    assert [note for note in notes if note.startswith("not run") and ": " not in note] == []


def test_the_reference_lists_every_public_name() -> None:
    import torchglass as tg

    pages = "".join(map(text_of, (DOCS / "reference").glob("*.md")))
    named = set(re.findall(r"^::: (?:torchglass\.|class )(\w+)$", pages, flags=re.MULTILINE))
    assert {*tg.__all__, "open"} - named == {"__version__"}

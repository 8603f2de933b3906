"""Every example in the README and in the docs runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def examples(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def prints(page: Path) -> list[tuple[str, str]]:
    """The examples that a page shows the print of, and these prints."""
    text = page.read_text(encoding="utf-8")
    pattern = r"^```python\n((?:(?!^```).)*)^```\n\n^```text\n(.*?)^```"
    return re.findall(pattern, text, flags=re.MULTILINE | re.DOTALL)


def links(page: Path) -> list[str]:
    return re.findall(r"\]\(((?!http)[^)#]+)\)", page.read_text(encoding="utf-8"))


def test_the_readme_has_examples() -> None:
    assert len(examples(ROOT / "README.md")) > 5


@pytest.mark.parametrize("page", [page for page in PAGES if examples(page)], ids=lambda p: p.name)
def test_the_examples_of_a_page_run_as_printed(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}

    for number, example in enumerate(examples(page)):
        exec(compile(example, f"{page.name} (example {number})", "exec"), names)


@pytest.mark.parametrize("page", [page for page in PAGES if prints(page)], ids=lambda p: p.name)
def test_what_a_page_shows_is_what_its_example_prints(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for example, shown in prints(page):
        exec(compile(example, page.name, "exec"), {})

        assert capsys.readouterr().out == shown


def test_a_table_is_shown_in_the_docs() -> None:
    assert any(map(prints, PAGES))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    assert [link for link in links(page) if not (page.parent / link).exists()] == []

"""The columns of a run are those that the documentation lists."""

from __future__ import annotations

from tests.recorded import ROOT
from torchglass.store.arrow_columns import SCHEMA_COLUMNS
from torchglass.store.segments import SEGMENT_COLUMNS


def test_the_documented_columns_are_current() -> None:
    page = (ROOT / "docs" / "columns.md").read_text(encoding="utf-8")

    for name, (kind, meaning) in SCHEMA_COLUMNS.items():
        assert f"| `{name}` | {kind} | {meaning} |" in page


def test_the_documentation_lists_what_segments_have_besides() -> None:
    page = (ROOT / "docs" / "object-stores.md").read_text(encoding="utf-8")

    for name, (kind, meaning) in SEGMENT_COLUMNS.items():
        assert f"| `{name}` | {kind} | {meaning} |" in page

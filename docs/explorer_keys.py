"""The keys in docs/explore.md, written from the table that the explorer itself is made from."""

from __future__ import annotations

from pathlib import Path

from torchglass.views.tui.keys import KEYS, PANEL_KEYS, KeyEntry, sections
from torchglass.views.tui.panel_tabs import all_keys, panel_toggles
from torchglass.views.tui.tree_columns import COLUMNS, NAME

PAGE = Path(__file__).parent / "explore.md"
BEGIN, END = "<!-- keys -->", "<!-- end of keys -->"


def renewed(page: str) -> str:
    """The page with its keys and columns as they are now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{markdown()}\n{END}{after}"


def markdown() -> str:
    """All keys and all columns as tables."""
    parts = [
        *("## Keys", "", "`?` shows them in the explorer.", ""),
        *_tables((*KEYS, *panel_toggles())),
        *("## Keys inside the panels", ""),
        *_tables(PANEL_KEYS),
        *("## Columns", "", "| column | example | key |", "|---|---|---|"),
        *(
            f"| {column.name} | `{column.example}` | {_group_key(column.group)} |"
            for column in (NAME, *COLUMNS)
        ),
        "",
    ]
    return "\n".join(parts)


def _tables(keys: tuple[KeyEntry, ...]) -> list[str]:
    lines = []
    for title, entries in sections(keys).items():
        lines += [f"### {title}", "", "| key | does |", "|---|---|"]
        lines += [f"| {_code(entry)} | {entry.does} |" for entry in entries]
        lines.append("")
    return lines


def _code(entry: KeyEntry) -> str:
    return " ".join(f"`{key}`" for key in entry.label.split())


def _group_key(group: str) -> str:
    keys = (entry for entry in all_keys() if entry.action == f"column('{group}')")
    return next((_code(entry) for entry in keys), "")

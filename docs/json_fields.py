"""The fields of every report's JSON in docs/reference/json.md, from the list that schemas use."""

from __future__ import annotations

from pathlib import Path

from torchglass.results.schemas import Field, all_fields

PAGE = Path(__file__).parent / "reference" / "json.md"
BEGIN, END = "<!-- fields -->", "<!-- end of fields -->"


def renewed(page: str) -> str:
    """The page with the fields as they are now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{markdown()}\n{END}{after}"


def markdown() -> str:
    """A table for each report, and for each object in it."""
    lines: list[str] = []
    for name, one in all_fields().items():
        heading = f"## {name}\n\n{one.title[:1].upper()}{one.title[1:]}." if one.title else ""
        lines += [heading or f"**{name}**", "", "| field | type | meaning |", "|---|---|---|"]
        lines += [*map(_row, one.fields), ""]
    return "\n".join(lines)


def _row(field: Field) -> str:
    name = f"`{field.name}`" + ("" if field.required else " (may be missing)")
    return f"| {name} | `{field.type}` | {field.meaning} |"

"""What every verb returns: text to print, its most important lines, and JSON with a schema.

    result.text()       all of it
    result.brief()      at most 40 lines, and how many were left out
    result.to_json()    {"schema": "torchglass/flops", "version": 1, "model": "ResNet", …}

The fields of each JSON are listed in `report_fields.txt`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import Any

from torchglass.records.json_data import nan_as_none
from torchglass.tables.export import File, json_text, written
from torchglass.tables.text import BRIEF_LINES, broken, shortened_lines

SCHEMA_VERSION = 1
"""It rises when a field is removed or changes its meaning; a new field does not raise it."""


class Result(ABC):
    """What a verb returns: print it, or export it."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The result as dicts, lists, strings and numbers."""

    def text(self, *, width: int | None = None) -> str:
        """All of it as text; with a `width`, to fit a terminal of this many columns."""
        return broken(str(self), width)

    def brief(self, *, width: int | None = None, lines: int = BRIEF_LINES) -> str:
        """The text in a few lines, one of which says how many were left out.

        Args:
            width: Terminal columns to fit into.
            lines: Maximum number of lines.
        """
        return shortened_lines(self._text_to_shorten(lines, width), lines)

    def to_json(self, file: File | None = None) -> str:
        """The result as JSON with its schema, also written to `file` if one is given."""
        return written(json_text(self.document()), file)

    def document(self) -> dict[str, Any]:
        """What the JSON contains: the name and version of its schema, and the result."""
        plain: dict[str, Any] = nan_as_none({**schema_fields(type(self)), **self.to_dict()})
        return plain

    def schema(self) -> dict[str, Any]:
        """The JSON Schema that `document` and `to_json` follow."""
        from torchglass.results import schemas

        return schemas.schema(schema_fields(type(self))["schema"])

    def _text_to_shorten(self, lines: int, width: int | None) -> str:
        """The text for `brief`; what is more than `lines` has its most important rows first."""
        return self.text(width=width)


def schema_fields(kind: type[Result]) -> dict[str, Any]:
    """The first fields of the JSON of a result: `{"schema": "torchglass/batch-size", …}`."""
    name = re.sub("(?<=[a-z])(?=[A-Z])", "-", kind.__name__).lower()
    return {"schema": f"torchglass/{name}", "version": SCHEMA_VERSION}

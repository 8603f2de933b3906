"""Data as the text of a JSON or CSV file."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any


def json_text(plain: Any) -> str:
    """JSON in ASCII, so that any name can be written anywhere."""
    return json.dumps(plain, indent=2)


def typed_shape(shape: Sequence[int] | None) -> str:
    """A shape as it is typed on the command line: "1x3x224x224"."""
    return "?" if shape is None else "x".join(map(str, shape)) or "scalar"


def csv_text(headings: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """A line of headings, and a line for each row; None leaves its cell empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(headings)
    writer.writerows(rows)
    return text.getvalue()

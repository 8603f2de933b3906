"""What the commands that measure a model have in common: options, and where the numbers go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Protocol

from cyclopts import Parameter

from torchglass.cli.output import STDOUT, export

Depth = Annotated[int | None, Parameter(help="Show so many levels below the model.")]
Json = Annotated[
    Path | None,
    Parameter(allow_leading_hyphen=True, help="Write JSON to a file; `-` prints it instead."),
]
Csv = Annotated[
    Path | None,
    Parameter(
        allow_leading_hyphen=True,
        help="Write a line for each module to a file; `-` prints them instead.",
    ),
]


class Exportable(Protocol):
    """A result that can be written down."""

    @property
    def to_json(self) -> Callable[[Path | None], str]:
        """Its JSON, and a file of it if there is a path."""

    @property
    def to_csv(self) -> Callable[[Path | None], str]:
        """A line for each module, and a file of them if there is a path."""


def export_all(result: Exportable, *, json: Path | None, csv: Path | None) -> bool:
    """Write what is wanted of a result; whether it was printed, so that nothing else is to be."""
    for path, to_format in ((json, result.to_json), (csv, result.to_csv)):
        if path is not None:
            export(to_format, path)
    return STDOUT in (json, csv)

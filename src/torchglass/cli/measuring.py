"""What the commands that measure a model have in common: options, and where the numbers go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol

from cyclopts import Parameter

from torchglass.cli.options import File
from torchglass.cli.output import STDOUT, expect_one_printed, export

Depth = Annotated[
    int | None,
    Parameter(help="Levels to show; by default as many as about 100 rows allow."),
]


@Parameter(name="*")
@dataclass(frozen=True)
class Files:
    """Files to write the results to."""

    json: File | None = None
    """Write JSON to a file; `-` prints it."""
    csv: File | None = None
    """Write CSV, a line per module, to a file; `-` prints it."""

    def check(self) -> None:
        """Refuse both on stdout."""
        expect_one_printed(json=self.json, csv=self.csv)


NO_FILES = Files()


class Exportable(Protocol):
    """A result that can be written down."""

    @property
    def to_json(self) -> Callable[[Path | None], str]:
        """Its JSON, and a file of it if there is a path."""

    @property
    def to_csv(self) -> Callable[[Path | None], str]:
        """A line for each module, and a file of them if there is a path."""


def export_all(result: Exportable, files: Files) -> bool:
    """Write what is wanted of a result; whether it was printed, so that nothing else is to be."""
    for path, to_format in ((files.json, result.to_json), (files.csv, result.to_csv)):
        if path is not None:
            export(to_format, path)
    return STDOUT in (files.json, files.csv)

"""Runs the notebooks and writes their outputs into them: `python -m docs.notebooks`."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
_SECONDS = 120


def run(notebook: nbformat.NotebookNode, folder: Path) -> None:
    """Run all cells in a kernel of their own, in a folder; their outputs are then in them."""
    NotebookClient(
        notebook,
        timeout=_SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
    ).execute()
    for cell in notebook.cells:
        cell.metadata.clear()
        for output in cell.get("outputs", ()):
            _tidy(output)


def printed(notebook: nbformat.NotebookNode) -> list[str]:
    """What each code cell printed or returned, as text."""
    return [
        "".join(
            output.get("text") or output.get("data", {}).get("text/plain", "")
            for output in cell.outputs
        )
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def _tidy(output: nbformat.NotebookNode) -> None:
    """Name the source of a cell "cell.py": its real name is another one in each run."""
    if "text" in output:
        output.text = re.sub(r"/\S*ipykernel_\d+/\d+\.py", "cell.py", output.text)


def renew() -> None:
    """Run all notebooks and save them with their outputs."""
    for file in NOTEBOOKS:
        notebook = nbformat.read(file, as_version=4)
        with tempfile.TemporaryDirectory() as folder:
            run(notebook, Path(folder))
        nbformat.write(notebook, file)
        sys.stderr.write(f"wrote {file.name}\n")


if __name__ == "__main__":
    renew()

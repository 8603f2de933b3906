"""Runs the notebooks and writes their outputs into them: `python -m docs.notebooks`."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

NOTEBOOKS = sorted((Path(__file__).parent / "notebooks").glob("*.ipynb"))
_SECONDS = 300


def run(file: Path, to: Path) -> None:
    """Run a notebook in a kernel and an empty folder, and save it with its outputs."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(file, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        client = NotebookClient(
            notebook, timeout=_SECONDS, record_timing=False, resources=resources
        )
        client.execute()
    notebook.metadata.language_info = {"name": "python"}
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            _tidy(output)
    nbformat.write(notebook, to)


def printed(file: Path) -> list[str]:
    """What each code cell of a notebook printed or returned, as text."""
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    return ["".join(map(text_of, cell["outputs"])) for cell in cells if cell["cell_type"] == "code"]


def text_of(output: dict[str, Any]) -> str:
    """The text of one output; of a picture what it says of itself."""
    return "".join(output.get("text") or output.get("data", {}).get("text/plain", ""))


def _tidy(output: Any) -> None:
    """Name the source of a cell "cell.py": its real name is another one in each run."""
    if "text" in output:
        output.text = re.sub(r"/\S*ipykernel_\d+/\d+\.py", "cell.py", output.text)


def renew() -> None:
    """Run all notebooks and save them."""
    for file in NOTEBOOKS:
        run(file, file)
        sys.stderr.write(f"wrote {file.name}\n")


if __name__ == "__main__":
    if sys.argv[1:]:
        run(Path(sys.argv[1]), Path(sys.argv[2]))
    else:
        renew()

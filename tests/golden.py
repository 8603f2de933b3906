"""Expected outputs that are files in tests/golden, rewritten by TORCHGLASS_GOLDEN=write."""

from __future__ import annotations

import os
from pathlib import Path

_FOLDER = Path(__file__).parent / "golden"


def assert_golden(name: str, text: str) -> None:
    """The text is what the golden file of this name holds."""
    path = _FOLDER / name
    if os.environ.get("TORCHGLASS_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"no golden file {name}; TORCHGLASS_GOLDEN=write makes it"
    assert text == path.read_text(encoding="utf-8")

"""The runs and checkpoints of a folder."""

from __future__ import annotations

from pathlib import Path

from torchglass.targets.names import find_targets


def test_runs_and_checkpoints_of_a_folder_are_found(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / ".hidden").mkdir()
    for name in ("weights.safetensors", "runs/today.glass", ".hidden/x.pt", "notes.txt"):
        (tmp_path / name).write_bytes(b"")

    assert {path.name for path in find_targets(tmp_path)} == {"weights.safetensors", "today.glass"}

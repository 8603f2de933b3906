"""Trackers write into the current folder unless told otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """wandb and Lightning leave their folders here, and not in the repository."""
    monkeypatch.chdir(tmp_path)

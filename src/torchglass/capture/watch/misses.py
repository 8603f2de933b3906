"""What could not be recorded, said without drowning the user in it."""

from __future__ import annotations

from torchglass.errors import warn

MOST_WARNINGS = 5
"""Of so many problems of one watcher the user is told."""


class Misses:
    """Warns of each problem that is new, up to a number of them."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def tell(self, problem: Exception) -> None:
        """Something could not be recorded."""
        message = f"{type(problem).__name__}: {problem}"
        if message not in self._told and len(self._told) < MOST_WARNINGS:
            self._told.add(message)
            warn(f"watching went wrong, the training goes on: {message}")

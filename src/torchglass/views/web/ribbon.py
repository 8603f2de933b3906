"""A growing record of steps in a few hundred columns, whatever the number of steps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

MOST_COLUMNS = 600
"""More than a plot in a panel has pixels."""


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """What was measured at some steps that follow each other, joined into one."""

    first_step: int
    last_step: int
    steps: int
    """How many measured steps it holds."""
    content: T


class Ribbon(Generic[T]):
    """Columns of equally many steps; when there are too many, each two become one."""

    def __init__(self, join: Callable[[Sequence[T]], T], most: int = MOST_COLUMNS) -> None:
        self.columns: list[Column[T]] = []
        self.width = 1
        """How many steps a full column holds."""
        self._join = join
        self._most = most

    @property
    def last_step(self) -> int:
        """The latest step that was added, -1 before the first."""
        return self.columns[-1].last_step if self.columns else -1

    def extend(self, steps: Sequence[int], contents: Sequence[T]) -> None:
        """Take in what was measured at some steps."""
        if not steps:
            return
        news = [Column(step, step, 1, each) for step, each in zip(steps, contents, strict=True)]
        total = sum(column.steps for column in self.columns) + len(news)
        last = self.columns[-1:] if self.columns and self.columns[-1].steps < self.width else []
        full = self.columns[: len(self.columns) - len(last)]
        while -(-total // self.width) > self._most:
            self.width *= 2
            news, last, full = [*full, *last, *news], [], []
        self.columns = [*full, *self._packed([*last, *news])]

    def at(self, step: int) -> Column[T] | None:
        """The column of a step: the one that holds it, or the last before it."""
        place = bisect_right(self.columns, step, key=lambda column: column.first_step)
        return self.columns[place - 1] if place else None

    def _packed(self, columns: Sequence[Column[T]]) -> list[Column[T]]:
        """Neighbours joined until each column holds as many steps as it should."""
        packed: list[Column[T]] = []
        group: list[Column[T]] = []
        for column in columns:
            group.append(column)
            if sum(each.steps for each in group) >= self.width:
                packed.append(self._joined(group))
                group = []
        return [*packed, self._joined(group)] if group else packed

    def _joined(self, group: Sequence[Column[T]]) -> Column[T]:
        if len(group) == 1:
            return group[0]
        return Column(
            min(each.first_step for each in group),
            max(each.last_step for each in group),
            sum(each.steps for each in group),
            self._join([each.content for each in group]),
        )

"""The problems of a training, as they are found."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from torchglass.analyse.training_health import Judge, Measured, Observation
from torchglass.records.finding import Finding, Findings


class Problems:
    """Looks for problems in each step, and keeps those of the run."""

    def __init__(self) -> None:
        self._judge = Judge()
        self._findings: list[Finding] = []
        self._told_compiled = 0

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All problems that were found."""
        return tuple(self._findings)

    def look(
        self,
        step: int,
        observations: Iterable[Observation],
        compiled: Collection[str],
        *,
        measured: Callable[[], Measured] | None = None,
        is_still: bool = False,
    ) -> Findings | None:
        """All problems of the run, if a step shows new ones; `compiled` are paths out of sight."""
        new = self._judge.look(step, observations, measured, is_still=is_still)
        new += [_compiled(path, step) for path in list(compiled)[self._told_compiled :]]
        self._told_compiled = len(compiled)
        self._findings += new
        return Findings(findings=tuple(self._findings)) if new else None


def _compiled(path: str, step: int) -> Finding:
    name = f"`{path}`" if path else "The model"
    return Finding(
        severity="note",
        kind="compiled",
        message=f"{name} runs compiled: its internals are not recorded",
        path=path,
        step=step,
    )

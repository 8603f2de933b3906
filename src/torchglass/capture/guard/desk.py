"""Where findings are handed in: each place once, and none that was allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import nn

from torchglass.capture.guard.dumping import Dumper
from torchglass.capture.guard.evidence import Held, Spot, held_by
from torchglass.capture.guard.finiteness import Health
from torchglass.errors import warn
from torchglass.records.finding import Finding

Report = Callable[[Finding], None]
"""Is told of each finding, and may raise to stop the run."""


class Desk:
    """What those who look forward and those who look back have in common."""

    def __init__(
        self,
        model: nn.Module,
        report: Report,
        *,
        allow: Iterable[str] = (),
        dumper: Dumper | None = None,
        repeat: bool = False,
    ) -> None:
        """`allow` names ops and modules that are never to blame.

        Each place is reported once, or with `repeat` whenever it is met.
        """
        self.model = model
        self._report = report
        self.dumper = dumper
        self._allow = frozenset(allow)
        self._repeat = repeat
        self.met = 0
        """How often something was found that is not finite, told before or not."""
        self._told: set[tuple[Health, Spot]] = set()
        self._warned = False

    @property
    def held(self) -> Held:
        """The names of the model's parameters and buffers."""
        return held_by(self.model)

    def report(self, finding: Finding) -> None:
        """Hand on a finding, which may raise."""
        self._report(finding)

    def is_news(self, health: Health, spot: Spot) -> bool:
        """Whether something is to be reported, which from then on it has been."""
        if spot.op in self._allow or (spot.path and spot.path in self._allow):
            return False
        self.met += health is not Health.NEAR
        key = health, spot._replace(call=0)
        is_new = key not in self._told
        self._told.add(key)
        return is_new or (self._repeat and health is not Health.NEAR)

    def miss(self, problem: Exception) -> None:
        """Go on without what could not be looked at: no error of ours stops the user's run."""
        if not self._warned:
            self._warned = True
            warn(f"the guard could not look at everything: {problem!r}")

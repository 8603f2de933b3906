"""A single tensor looked at because its owner asks."""

from __future__ import annotations

import torch

from torchglass.capture.guard.desk import Report
from torchglass.capture.guard.evidence import Exhibit, standing, user_source
from torchglass.capture.guard.finiteness import Health, look_again
from torchglass.capture.quiet import quietly


def check(tensor: torch.Tensor, name: str, report: Report, *, is_known: bool) -> bool:
    """Whether a tensor is finite; if not, and if no op is known to have made it so, report it."""
    with quietly():
        health = look_again(tensor)
        if health <= Health.NEAR:
            return True
        finding = standing(name, health, Exhibit(name, "result", tensor), user_source())
    if not is_known:
        report(finding)
    return False

"""What the verbs that look into a pass expect to be given."""

from __future__ import annotations

from torchglass.errors import TargetError


def expect_module(model: object, verb: str) -> None:
    """Refuse what is no nn.Module, by the name of the verb that it was given to."""
    from torch import nn

    if not isinstance(model, nn.Module):
        raise TargetError(f"{verb} takes an nn.Module, not {type(model).__name__}")

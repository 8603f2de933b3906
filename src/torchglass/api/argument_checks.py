"""Checks of the arguments of verbs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torchglass.errors import CaptureError, TargetError


def expect_module(model: object, verb: str) -> None:
    """Reject a model that is not an nn.Module."""
    from torch import nn

    if not isinstance(model, nn.Module):
        raise TargetError(f"{verb} takes an nn.Module, not {type(model).__name__}")


def expect_one_of(option: str, value: object, known: Sequence[str]) -> None:
    """Reject a value that is not one of the known ones."""
    if value not in known:
        raise CaptureError(f"{option} must be one of {', '.join(known)}, not {value!r}")


def expect_names(option: str, names: Iterable[str]) -> tuple[str, ...]:
    """The names passed to an option, as a tuple."""
    found = [names] if isinstance(names, str) else names
    if not isinstance(found, Iterable):
        raise TargetError(f"{option} must be a name or a list of names, not {names!r}")
    every = tuple(found)
    for name in every:
        if not isinstance(name, str):
            raise TargetError(
                f"{option} must be a name or a list of names, but {name!r} is not a string"
            )
    return every


def expect_at_least(least: int, option: str, value: object) -> None:
    """Reject a value that is not an integer, or is too small."""
    if not isinstance(value, int) or value < least:
        raise CaptureError(f"{option} must be {least} or more, not {value!r}")

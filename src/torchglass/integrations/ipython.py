"""The magic of IPython: `%explore model` after `%load_ext torchglass`."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any, Protocol


class Shell(Protocol):
    """What IPython hands to an extension."""

    user_ns: dict[str, Any]

    def register_magic_function(
        self, function: Callable[[str], Any], *, magic_kind: str, magic_name: str
    ) -> None:
        """Make a function a magic."""

    def ev(self, expression: str) -> Any:
        """What an expression of the user's is."""


def install(shell: Shell, explore: Callable[..., Any]) -> None:
    """Teach a shell the magic: `%explore model`, `%explore model, inputs`, `%explore runs/a.glass`.

    Without anything it explores what the last cell gave, as rp's EMA did.
    """

    def magic(line: str) -> Any:
        expression = line.strip()
        if not expression:
            return explore(shell.user_ns.get("_"))
        if _is_file(expression, shell):
            return explore(shlex.split(expression)[0])
        given = shell.ev(f"({expression},)")
        return explore(*given)

    magic.__doc__ = "Walk through a model, a run or a checkpoint: %explore model[, inputs]"
    shell.register_magic_function(magic, magic_kind="line", magic_name="explore")


def _is_file(expression: str, shell: Shell) -> bool:
    """Whether a line names a file or a model in one, and nothing of the user's."""
    name = expression.partition(".")[0].partition("(")[0].partition(",")[0].strip()
    return name not in shell.user_ns and any(sign in expression for sign in "./:")

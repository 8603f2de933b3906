"""IPython magics, and the page of a run inside a notebook cell."""

from __future__ import annotations

import html
import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from torchglass.records.reader import Reader
from torchglass.store.file_reader import FileReader
from torchglass.views.web.saved_page import render_page


class Shell(Protocol):
    """The IPython shell, as passed to an extension."""

    user_ns: dict[str, Any]

    def register_magic_function(
        self, function: Callable[[str], Any], *, magic_kind: str, magic_name: str
    ) -> None:
        """Register a function as a magic."""

    def ev(self, expression: str) -> Any:
        """The value of a user's expression."""


def install(shell: Shell, explore: Callable[..., Any]) -> None:
    """Add `%explore model`, `%explore model, inputs`, `%explore runs/a.glass` and `EMA` to a shell.

    Without anything both explore what the last cell gave. Where that is not a model, it is the
    model whose forward was recorded last, or else the one that was defined last.
    """

    def magic(line: str) -> Any:
        expression = line.strip()
        if not expression:
            return explore(_last(shell.user_ns))
        if _is_file(expression, shell):
            return explore(shlex.split(expression)[0])
        given = shell.ev(f"({expression},)")
        return explore(*given)

    magic.__doc__ = "Browse a model, a run or a checkpoint: %explore model[, inputs]"
    shell.register_magic_function(magic, magic_kind="line", magic_name="explore")
    shell.register_magic_function(magic, magic_kind="line", magic_name="EMA")


def _last(names: Mapping[str, Any]) -> Any:
    """The target to explore if none is named; None offers the files of the folder."""
    last = names.get("_")
    # Checks classes: an instance would run the user's properties.
    is_value = isinstance(last, (int, float)) or hasattr(type(last), "requires_grad")
    if last is not None and not is_value and not (isinstance(last, str) and not last):
        return last
    own = [value for name, value in names.items() if not name.startswith("_")]
    models = [value for value in own if hasattr(type(value), "named_modules")]
    recorded = [model for model in models if getattr(model, "__dict__", {}).get("forward_stats")]
    return next(reversed(recorded or models), None)


def _is_file(expression: str, shell: Shell) -> bool:
    """Whether a line names a file or a model in one, and not a user's variable."""
    name = expression.partition(".")[0].partition("(")[0].partition(",")[0].strip()
    return name not in shell.user_ns and any(sign in expression for sign in "./:")


HEIGHT = 640
"""The height of the page in pixels."""

_STYLE = "border: 1px solid #8884; border-radius: 6px"


def live_frame(url: str, *, height: int = HEIGHT) -> str:
    """The page of a server in this process, which follows a training live.

    A browser on another machine does not reach it; `saved_frame` works anywhere.
    """
    return _frame(f'src="{html.escape(url)}"', height)


def saved_frame(run: Reader | str | os.PathLike[str], *, height: int = HEIGHT) -> str:
    """The page with the current data of a run: needs no server, and stays in a saved notebook."""
    if isinstance(run, (str, os.PathLike)):
        with FileReader(Path(run)) as reader:
            page = render_page(reader)
    else:
        page = render_page(run)
    return _frame(f'sandbox="allow-scripts allow-downloads" srcdoc="{html.escape(page)}"', height)


def _frame(source: str, height: int) -> str:
    return f'<iframe {source} width="100%" height="{height}" style="{_STYLE}"></iframe>'

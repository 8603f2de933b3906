"""IPython magics, and the page of a run inside a notebook cell."""

from __future__ import annotations

import html
import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torchglass.records.run import Reader
from torchglass.store.readers import FileReader
from torchglass.views.web.saved_page import render_page


def install(shell: Any, explore: Callable[..., Any]) -> None:
    """Add `%explore model`, `%explore model, inputs`, `%explore runs/a.glass` and `EMA` to IPython.

    Without arguments they explore the result of the last cell. If that is not a model, they
    explore the model whose forward was recorded last, or else the model that was defined last.
    """

    def magic(line: str) -> Any:
        expression = line.strip()
        if not expression:
            return explore(_last(shell.user_ns))
        if _is_file(expression, shell):
            return explore(shlex.split(expression)[0])
        return explore(*shell.ev(f"({expression},)"))

    magic.__doc__ = "Browse a model, a run or a checkpoint: %explore model[, inputs]"
    shell.register_magic_function(magic, magic_kind="line", magic_name="explore")
    shell.register_magic_function(magic, magic_kind="line", magic_name="EMA")


def _last(names: Mapping[str, Any]) -> Any:
    """The target to explore if none is named; None lists the files of the folder."""
    last = names.get("_")
    # Checks classes: an instance would run the user's properties.
    is_value = isinstance(last, (int, float)) or hasattr(type(last), "requires_grad")
    if last is not None and not is_value and not (isinstance(last, str) and not last):
        return last
    own = [value for name, value in names.items() if not name.startswith("_")]
    models = [value for value in own if hasattr(type(value), "named_modules")]
    recorded = [model for model in models if getattr(model, "__dict__", {}).get("forward_stats")]
    return next(reversed(recorded or models), None)


def _is_file(expression: str, shell: Any) -> bool:
    """Whether a line names a file or a model in one, and not a variable."""
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

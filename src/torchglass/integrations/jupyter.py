"""The page of a run inside a notebook, as HTML that a cell shows."""

from __future__ import annotations

import html
import os
from pathlib import Path

from torchglass.records.flow import Reader
from torchglass.store.file import FileReader
from torchglass.views.web.offline import render_page

HEIGHT = 640
"""Of the page, in pixels of the browser."""

_STYLE = "border: 1px solid #8884; border-radius: 6px"


def live_frame(url: str, *, height: int = HEIGHT) -> str:
    """The page that a server in this process serves: it follows a training as it runs.

    A browser on another machine does not reach it; `saved_frame` works anywhere.
    """
    return _frame(f'src="{html.escape(url)}"', height)


def saved_frame(run: Reader | str | os.PathLike[str], *, height: int = HEIGHT) -> str:
    """The page with all that a run has now: it needs no server, and stays in a saved notebook."""
    if isinstance(run, (str, os.PathLike)):
        with FileReader(Path(run)) as reader:
            page = render_page(reader)
    else:
        page = render_page(run)
    return _frame(f'sandbox="allow-scripts allow-downloads" srcdoc="{html.escape(page)}"', height)


def _frame(source: str, height: int) -> str:
    return f'<iframe {source} width="100%" height="{height}" style="{_STYLE}"></iframe>'

"""The widget itself, which needs anywidget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anywidget
import traitlets

from torchglass.views.notebook.page import reply
from torchglass.views.web.answers import OpenRuns
from torchglass.views.web.saved_page import render_empty_page


class PageWidget(anywidget.AnyWidget):
    """A frame with the page; its requests are answered in the kernel."""

    _esm = Path(__file__).with_name("widget.js")
    page = traitlets.Unicode().tag(sync=True)
    height = traitlets.Int(720).tag(sync=True)

    def __init__(self, runs: OpenRuns, *, height: int = 720) -> None:
        super().__init__(page=render_empty_page(), height=height)
        self._runs = runs
        self.on_msg(self._answer)

    def _answer(self, _: object, content: dict[str, Any], __: object) -> None:
        self.send(reply(self._runs, content))

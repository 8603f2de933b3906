"""A page that a notebook shows as the result of a cell.

The widget uses the notebook's own connection to the kernel. It opens no port, so it
works wherever the notebook does. A notebook without widgets, or one converted to a file,
shows the page as it was when the cell ran.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from torchglass.errors import TorchglassError
from torchglass.records.reader import Reader
from torchglass.views.web.answers import Distances, OpenRuns, answer
from torchglass.views.web.saved_page import render_empty_page, render_runs

_FRAME = (
    '<iframe srcdoc="{page}" style="width:100%;height:{height}px;border:1px solid #8884;'
    'border-radius:8px" title="{title}"></iframe>'
)


class NotebookPage:
    """The page of some runs, for the output of a cell."""

    def __init__(
        self,
        *readers: Reader,
        height: int = 720,
        compared: Sequence[int] = (),
        distances: Distances | None = None,
    ) -> None:
        self.readers = readers
        self._runs = OpenRuns(readers, compared=compared, distances=distances)
        self.height = height

    @cached_property
    def widget(self) -> Any:
        """The live page as a widget; None if anywidget is not installed."""
        try:
            return _widget_class()(self._runs, height=self.height)
        except ImportError:
            return None

    def _repr_html_(self) -> str:
        title = html.escape(self.readers[0].run().name)
        page = html.escape(render_runs(self._runs), quote=True)
        return _FRAME.format(page=page, height=self.height, title=title)

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        bundle: dict[str, Any] = {"text/plain": repr(self), "text/html": self._repr_html_()}
        return bundle if self.widget is None else {**bundle, **_widget_part(self.widget)}

    def __repr__(self) -> str:
        return f"<page of {', '.join(reader.run().name for reader in self.readers)}>"


@cache
def _widget_class() -> Any:
    """A frame with the page; its requests are answered in the kernel. Needs anywidget."""
    import anywidget
    import traitlets

    class PageWidget(anywidget.AnyWidget):
        _esm = Path(__file__).with_name("widget.js")
        page = traitlets.Unicode().tag(sync=True)
        height = traitlets.Int(720).tag(sync=True)

        def __init__(self, runs: OpenRuns, *, height: int = 720) -> None:
            super().__init__(page=render_empty_page(), height=height)
            self._runs = runs
            self.on_msg(self._answer)

        def _answer(self, _: object, content: dict[str, Any], __: object) -> None:
            self.send(reply(self._runs, content))

    return PageWidget


def _widget_part(widget: Any) -> dict[str, Any]:
    """The part of a MIME bundle that shows the widget."""
    found = widget._repr_mimebundle_()
    data = found[0] if isinstance(found, tuple) else found or {}
    return {kind: value for kind, value in data.items() if kind.startswith("application/")}


def reply(runs: OpenRuns, content: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request of the page in a widget."""
    try:
        text = answer(runs, content["name"], content["query"]).decode("ascii")
        return {"id": content["id"], "text": text}
    except TorchglassError as error:
        return {"id": content["id"], "error": str(error)}

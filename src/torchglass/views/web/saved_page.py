"""The page as one file that opens without a server."""

from __future__ import annotations

import base64
import gzip
import html
import itertools
from collections.abc import Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from torchglass.errors import TorchglassError, ViewError
from torchglass.records.run import Reader
from torchglass.tables.export import in_its_folder
from torchglass.views.web.answers import Distances, OpenRuns, Reports, answer
from torchglass.views.web.payloads import (
    Payload,
    distances_payload,
    reports_payload,
    snapshot,
    to_json,
)

MEDIA_TYPES = {
    "index.html": "text/html",
    "page.js": "text/javascript",
    "layout.js": "text/javascript",
    "page.css": "text/css",
    "base.css": "text/css",
    "reports.js": "text/javascript",
    "reports.css": "text/css",
    "runs.js": "text/javascript",
    "runs.css": "text/css",
    "icon.svg": "image/svg+xml",
    "THIRD_PARTY.txt": "text/plain",
}
"""All files that can be requested: a path from a request is looked up here, never opened."""

_FOLDER = Path(__file__).parent / "page"


@cache
def read(name: str) -> bytes:
    """The content of one file of the page."""
    try:
        return (_FOLDER / name).read_bytes()
    except FileNotFoundError as error:
        raise ViewError(
            "the page is not built. Reinstall the package, or run `python hatch_build.py` in "
            "its checkout"
        ) from error


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; \
script-src 'unsafe-inline' blob:; worker-src blob:; style-src 'unsafe-inline'; \
img-src data: blob:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="icon" href="data:image/svg+xml;base64,{icon}">
<style>{style}</style>
</head>
<body>
<div id="page" data-view="{view}"></div>
<noscript>This page draws the model with JavaScript, which is turned off here.</noscript>
{scripts}
</body>
</html>
"""


def render_page(*readers: Reader) -> str:
    """The page with all data of the readers, as one HTML text."""
    return render_runs(OpenRuns(readers))


def render_runs(runs: OpenRuns) -> str:
    """The same for open runs, with the distances between them."""
    readers = runs.readers
    data = {
        "runs": [snapshot(reader) for reader in readers],
        "compare": list(runs.compared),
        "distances": {
            f"{one},{other}": distances_payload(runs, one, other)
            for one, other in itertools.permutations(range(len(readers)), 2)
            if 0 in (one, other) and runs.distances(one, other) is not None
        },
        **({"reports": reports_payload(runs)} if runs.report_kinds else {}),
    }
    title = f"{readers[0].run().name} – Torchglass"
    return _render(title, _packed(data), _lazy_views(runs))


def _lazy_views(runs: OpenRuns) -> list[str]:
    """The views of these runs that have a script of their own."""
    return ["reports"] if runs.report_kinds else []


def render_empty_page(runs: OpenRuns) -> str:
    """The page as one HTML text without data: it requests them from the frame around it."""
    return _render("Torchglass", "", _lazy_views(runs))


def _render(title: str, data: str, views: Sequence[str] = ()) -> str:
    """The page of runs, and the scripts of further `views` that it can show of them."""
    scripts = [
        *(_inert(f"torchglass-{name}", _escaped_script(f"{name}.js")) for name in views),
        _inert("torchglass-layout", _escaped_script("layout.js")),
        f"<script>{_escaped_script('page.js')}</script>",
    ]
    return _document(title, data, ["page", *views], scripts)


def render_view(title: str, name: str, data: Payload) -> str:
    """A page of one view alone, such as "reports", as one HTML text."""
    script = f"<script>{_escaped_script(f'{name}.js')}</script>"
    return _document(title, _packed(data), ["base", name], [script], view=name)


def _document(
    title: str, data: str, styles: Sequence[str], scripts: Sequence[str], view: str = ""
) -> str:
    licences = _text("THIRD_PARTY.txt").replace("</script", "<\\/script")
    style = "".join(_text(f"{name}.css") for name in styles)
    inert = [_inert("third-party-licences", licences), _inert("torchglass-data", data)]
    return _PAGE.format(
        title=html.escape(title),
        icon=base64.b64encode(read("icon.svg")).decode("ascii"),
        style=style.replace("</style", "<\\/style"),
        view=view,
        scripts="\n".join([*inert, *scripts]),
    )


def _inert(id: str, text: str) -> str:
    """Text in a page that the browser does not run."""
    return f'<script type="text/plain" id="{id}">{text}</script>'


def _packed(data: Payload) -> str:
    return base64.b64encode(gzip.compress(to_json(data), 6, mtime=0)).decode("ascii")


def write_page(reader: Reader, path: Path, *others: Reader) -> None:
    """Save the page of a run, and of others to compare it with, as one HTML file."""
    write_runs(OpenRuns((reader, *others)), path)


def write_runs(runs: OpenRuns, path: Path) -> None:
    """The same for open runs, with the distances between them."""
    page = render_runs(runs)
    in_its_folder(path).write_text(page, encoding="utf-8", errors="replace")


def _escaped_script(name: str) -> str:
    return _text(name).replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _text(name: str) -> str:
    return read(name).decode("utf-8")


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
        reports: Reports | None = None,
    ) -> None:
        self.readers = readers
        self._runs = OpenRuns(readers, compared=compared, distances=distances, reports=reports)
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
            super().__init__(page=render_empty_page(runs), height=height)
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

"""The page as one file that opens without a server."""

from __future__ import annotations

import base64
import gzip
import html
import itertools
from functools import cache
from pathlib import Path

from torchglass.errors import ViewError
from torchglass.records.reader import Reader
from torchglass.tables.export import in_its_folder
from torchglass.views.web.answers import OpenRuns
from torchglass.views.web.payloads import distances_payload, snapshot, to_json

MEDIA_TYPES = {
    "index.html": "text/html",
    "page.js": "text/javascript",
    "layout.js": "text/javascript",
    "page.css": "text/css",
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
<div id="page"></div>
<noscript>This page draws the model with JavaScript, which is turned off here.</noscript>
<script type="text/plain" id="third-party-licences">{licences}</script>
<script type="text/plain" id="torchglass-data">{data}</script>
<script type="text/plain" id="torchglass-layout">{layout}</script>
<script>{script}</script>
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
    }
    packed = gzip.compress(to_json(data), 6, mtime=0)
    title = f"{readers[0].run().name} – Torchglass"
    return _render(title, base64.b64encode(packed).decode("ascii"))


def render_empty_page() -> str:
    """The page as one HTML text without data: it requests them from the frame around it."""
    return _render("Torchglass", "")


def _render(title: str, data: str) -> str:
    return _PAGE.format(
        title=html.escape(title),
        icon=base64.b64encode(read("icon.svg")).decode("ascii"),
        style=_text("page.css").replace("</style", "<\\/style"),
        licences=_text("THIRD_PARTY.txt").replace("</script", "<\\/script"),
        data=data,
        layout=_escaped_script("layout.js"),
        script=_escaped_script("page.js"),
    )


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

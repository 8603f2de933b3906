"""The page as one file that opens from a disk, without a server or a network."""

from __future__ import annotations

import base64
import html
from pathlib import Path

from torchglass.records.flow import Reader
from torchglass.views.web import page_files
from torchglass.views.web.payloads import snapshot, to_json

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; \
script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:">
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
<script type="application/json" id="torchglass-data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def render_page(reader: Reader) -> str:
    """All that the reader has, and the page that shows it, as one HTML text."""
    return _PAGE.format(
        title=html.escape(f"{reader.run().name} – Torchglass"),
        icon=base64.b64encode(page_files.read("icon.svg")).decode("ascii"),
        style=_text("page.css").replace("</style", "<\\/style"),
        licences=_text("THIRD_PARTY.txt").replace("</script", "<\\/script"),
        # Inside a script element only `<` can end or change what the parser reads.
        data=to_json(snapshot(reader)).replace("<", "\\u003c"),
        script=_text("page.js").replace("</script", "<\\/script").replace("<!--", "<\\!--"),
    )


def write_page(reader: Reader, path: Path) -> None:
    """Save the page of a run as one HTML file."""
    path.write_text(render_page(reader), encoding="utf-8", errors="replace")


def _text(name: str) -> str:
    return page_files.read(name).decode("utf-8")

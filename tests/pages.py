"""What a served page answers, asked as a browser asks."""

from __future__ import annotations

import json
import urllib.request
from typing import Any


def read_page(url: str, path: str) -> Any:
    """The JSON at a path of a page: `read_page(server.url, "api/run")`."""
    # The token of the address becomes a cookie.
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    browser.open(url).close()
    with browser.open(f"{url.partition('?')[0]}{path}") as answer:
        return json.load(answer)

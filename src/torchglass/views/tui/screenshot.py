"""The screen as a picture that loads nothing."""

from __future__ import annotations

import re
from typing import Any

from textual.app import App


def screenshot(app: App[Any], *, simplify: bool = False) -> str:
    """What is on the screen as SVG."""
    svg = app.export_screenshot(simplify=simplify)
    # The picture would load its font from another host.
    return re.sub(r"@font-face\s*{.*?}", "", svg, flags=re.DOTALL)

"""What all HTML is made with: text that is only text, and styles that come with it."""

from __future__ import annotations

from functools import cache
from html import escape
from importlib.resources import files

from torchglass.views.formats import harmless


def text(content: object) -> str:
    """Anything as text that no browser takes for markup."""
    return escape(harmless(str(content)))


@cache
def style(name: str) -> str:
    """A stylesheet of this package, to stand in the page itself."""
    return f"<style>\n{files(__package__).joinpath(name).read_text(encoding='utf-8')}</style>"

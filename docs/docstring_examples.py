"""Fences the examples in docstrings, so that the reference shows `>>>` lines as code."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_EXAMPLE = re.compile(r"^(?P<indent> *)>>> .*(?:\n[ \t]*\S.*)*", flags=re.MULTILINE)
"""From a line with `>>>` to the next empty line."""


class FencedExamples(Extension):
    """Puts a fence around each example of each docstring."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called once for each module, class, function and attribute that is loaded."""
        if obj.docstring and ">>>" in obj.docstring.value:
            obj.docstring.value = _EXAMPLE.sub(_fenced, obj.docstring.value)


def _fenced(example: re.Match[str]) -> str:
    indent = example["indent"]
    return f"{indent}```pycon\n{example[0]}\n{indent}```"

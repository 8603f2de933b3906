"""What the forward of a module takes, read in the file of its class."""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import textwrap
import tokenize

from torchglass.records.model import ClassSource

_WRONG_ARGUMENTS = re.compile(r"TypeError: (?:.*\.)?(\w+)\.forward\(\) (?:missing|takes|got) ")


def misled_class(error: str) -> str:
    """The class whose forward was given other arguments than it takes; "" for other errors."""
    found = _WRONG_ARGUMENTS.match(error)
    return found[1] if found else ""


def forward_signature(source: ClassSource) -> str:
    """The arguments of a forward, "(x, mask=None)"; "" where its code is not to be found."""
    if source.forward_line is None:
        return ""
    lines = linecache.getlines(source.forward_file or source.file)[source.forward_line - 1 :]
    try:
        (function,) = ast.parse(textwrap.dedent("".join(inspect.getblock(lines)))).body
    except (SyntaxError, ValueError, tokenize.TokenError):
        return ""
    if not isinstance(function, ast.FunctionDef):
        return ""
    arguments = function.args
    del (arguments.posonlyargs or arguments.args)[:1]
    return f"({ast.unparse(arguments)})"

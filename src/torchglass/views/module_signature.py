"""What a module does, in a few characters; and the arguments of its forward.

>>> brief("Conv2d", "3, 64, kernel_size=(7, 7), stride=(2, 2), padding=(3, 3), bias=False")
'Conv2d(3→64, 7×7)'
>>> brief("Linear", "in_features=2048, out_features=1000, bias=True")
'Linear(2048→1000)'
"""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import textwrap
import tokenize
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from torchglass.records.model import ClassSource
from torchglass.views.formats import harmless, shorten

_LONGEST = 48
_UNSAID = {"inplace=False", "bias=True"}
_IN_AND_OUT = (("in_features", "out_features"), ("in_channels", "out_channels"), ("nx", "nf"))
_DIMENSIONS = re.compile(r"([123])d$")


@dataclass(frozen=True, slots=True)
class _Extra:
    """An `extra_repr`, taken apart at its commas."""

    positional: tuple[str, ...]
    named: dict[str, str]


@lru_cache(maxsize=1 << 12)
def brief(kind: str, extra: str) -> str:
    """A class name and its most important settings."""
    settings = harmless(_settings(kind, extra)) if extra else ""
    return f"{harmless(kind)}({settings})" if settings else harmless(kind)


@lru_cache(maxsize=1 << 12)
def kernel_size(kind: str, extra: str) -> str:
    """The kernel size of a module, "" where it has none."""
    return _times(_parse(extra).named.get("kernel_size", ""), _dimensions(kind))


def _settings(kind: str, extra: str) -> str:
    parsed = _parse(extra)
    for matches, write in _WRITERS:
        if matches(kind):
            written = write(kind, parsed)
            if written:
                return written
    return _through(parsed) or _anything(extra)


def _convolution(kind: str, extra: _Extra) -> str:
    if len(extra.positional) < 2 or "kernel_size" not in extra.named:
        return ""
    return f"{_arrow(*extra.positional[:2])}, {_times(extra.named['kernel_size'])}"


def _embedding(kind: str, extra: _Extra) -> str:
    return _arrow(*extra.positional[:2]) if len(extra.positional) >= 2 else ""


def _recurrent(kind: str, extra: _Extra) -> str:
    if len(extra.positional) < 2:
        return ""
    more = (f"{name}={value}" for name, value in extra.named.items() if name in _OF_RECURRENT)
    return ", ".join((_arrow(*extra.positional[:2]), *more))


_OF_RECURRENT = ("num_layers", "bidirectional")


def _pool(kind: str, extra: _Extra) -> str:
    size = extra.named.get("kernel_size") or extra.named.get("output_size", "")
    if not size:
        return ""
    dimensions = _dimensions(kind)
    stride = extra.named.get("stride", size)
    written = _times(size, dimensions)
    if _times(stride, dimensions) == written:
        return written
    return f"{written}, stride={_times(stride)}"


def _norm(kind: str, extra: _Extra) -> str:
    return ", ".join(map(_times, extra.positional))


_WRITERS: tuple[tuple[Callable[[str], bool], Callable[[str, _Extra], str]], ...] = (
    (lambda kind: "Conv" in kind, _convolution),
    (lambda kind: "Embedding" in kind, _embedding),
    (lambda kind: kind.startswith(("RNN", "LSTM", "GRU")), _recurrent),
    (lambda kind: "Pool" in kind, _pool),
    (lambda kind: "Norm" in kind, _norm),
)


def _through(extra: _Extra) -> str:
    """Input and output features, under any of their names."""
    for into, out in _IN_AND_OUT:
        if into in extra.named and out in extra.named:
            return _arrow(extra.named[into], extra.named[out])
    return ""


def _anything(extra: str) -> str:
    kept = [part for part in _split(extra) if part not in _UNSAID]
    return shorten(", ".join(kept), _LONGEST)


def _arrow(into: str, out: str) -> str:
    # A lazy module learns its input size at its first forward.
    return f"{'?' if into == '0' else into}→{out}"


def _dimensions(kind: str) -> int:
    found = _DIMENSIONS.search(kind)
    return int(found[1]) if found else 1


def _times(size: str, dimensions: int = 1) -> str:
    """A size with multiplication signs: "(7, 7)" is "7×7", and so is "7" in two dimensions."""
    parts = [part for part in _split(size.strip("()[] ")) if part]
    return "×".join(parts * dimensions if len(parts) == 1 else parts)


def _parse(extra: str) -> _Extra:
    positional: list[str] = []
    named: dict[str, str] = {}
    for part in _split(extra):
        name, sign, value = part.partition("=")
        if sign and name.isidentifier():
            named[name] = value
        else:
            positional.append(part)
    return _Extra(tuple(positional), named)


def _split(text: str) -> list[str]:
    """The parts of a text between commas outside of brackets."""
    parts = [""]
    depth = 0
    for char in text:
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts if part.strip()]


_WRONG_ARGUMENTS = re.compile(r"TypeError: (?:.*\.)?(\w+)\.forward\(\) (?:missing|takes|got) ")


def misled_class(error: str) -> str:
    """The class whose forward was called with wrong arguments; "" for other errors."""
    found = _WRONG_ARGUMENTS.match(error)
    return found[1] if found else ""


def forward_signature(source: ClassSource) -> str:
    """The arguments of a forward, "(x, mask=None)"; "" where its code is not found."""
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

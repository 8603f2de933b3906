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
from collections.abc import Callable, Mapping
from functools import lru_cache

from torchglass.analyse.signatures import facts_of, split_settings
from torchglass.records.model import ClassSource
from torchglass.views.formats import harmless, shorten

Facts = Mapping[str, str]
"""The settings of a module by name; unnamed ones are numbered."""

_LONGEST = 48
_UNSAID = {"inplace=False", "bias=True"}
_IN_AND_OUT = (("in_features", "out_features"), ("in_channels", "out_channels"), ("nx", "nf"))
_RECURRENT = ("num_layers", "bidirectional")
_DIMENSIONS = re.compile(r"([123])d$")


@lru_cache(maxsize=1 << 12)
def brief(kind: str, extra: str) -> str:
    """A class name and its most important settings."""
    settings = harmless(_settings(kind, extra)) if extra else ""
    return f"{harmless(kind)}({settings})" if settings else harmless(kind)


@lru_cache(maxsize=1 << 12)
def kernel_size(kind: str, extra: str) -> str:
    """The kernel size of a module, "" if it has none."""
    return _times(facts_of(extra).get("kernel_size", ""), _dimensions(kind))


def _settings(kind: str, extra: str) -> str:
    parsed = facts_of(extra)
    for matches, write in _WRITERS:
        if matches(kind):
            written = write(kind, parsed)
            if written:
                return written
    return _through(parsed) or _anything(extra)


def _convolution(kind: str, facts: Facts) -> str:
    return _join(_sizes(facts), _times(facts["kernel_size"])) if "kernel_size" in facts else ""


def _embedding(kind: str, facts: Facts) -> str:
    return _sizes(facts)


def _recurrent(kind: str, facts: Facts) -> str:
    return _join(_sizes(facts), *(f"{name}={facts[name]}" for name in facts if name in _RECURRENT))


def _pool(kind: str, facts: Facts) -> str:
    dimensions = _dimensions(kind)
    size = facts.get("kernel_size") or facts.get("output_size", "")
    written, stride = _times(size, dimensions), facts.get("stride", size)
    return (
        written if _times(stride, dimensions) == written else f"{written}, stride={_times(stride)}"
    )


def _norm(kind: str, facts: Facts) -> str:
    return ", ".join(_times(value) for name, value in facts.items() if name.isdecimal())


_WRITERS: tuple[tuple[Callable[[str], bool], Callable[[str, Facts], str]], ...] = (
    (lambda kind: "Conv" in kind, _convolution),
    (lambda kind: "Embedding" in kind, _embedding),
    (lambda kind: kind.startswith(("RNN", "LSTM", "GRU")), _recurrent),
    (lambda kind: "Pool" in kind, _pool),
    (lambda kind: "Norm" in kind, _norm),
)


def _sizes(facts: Facts) -> str:
    """The input and output size, which are the first two settings."""
    return _arrow(facts["0"], facts["1"]) if "0" in facts and "1" in facts else ""


def _join(sizes: str, *more: str) -> str:
    return ", ".join((sizes, *more)) if sizes else ""


def _through(facts: Facts) -> str:
    """Input and output features, under any of their names."""
    for into, out in _IN_AND_OUT:
        if into in facts and out in facts:
            return _arrow(facts[into], facts[out])
    return ""


def _anything(extra: str) -> str:
    kept = [part for part in split_settings(extra) if part not in _UNSAID]
    return shorten(", ".join(kept), _LONGEST)


def _arrow(into: str, out: str) -> str:
    # A lazy module learns its input size at its first forward.
    return f"{'?' if into == '0' else into}→{out}"


def _dimensions(kind: str) -> int:
    found = _DIMENSIONS.search(kind)
    return int(found[1]) if found else 1


def _times(size: str, dimensions: int = 1) -> str:
    """A size with multiplication signs: "(7, 7)" is "7×7", and so is "7" in two dimensions."""
    parts = list(split_settings(size.strip("()[] ")))
    return "×".join(parts * dimensions if len(parts) == 1 else parts)


_WRONG_ARGUMENTS = re.compile(r"TypeError: (?:.*\.)?(\w+)\.forward\(\) (?:missing|takes|got) ")


def misled_class(error: str) -> str:
    """The class whose forward was called with wrong arguments; "" for other errors."""
    found = _WRONG_ARGUMENTS.match(error)
    return found[1] if found else ""


def forward_signature(source: ClassSource) -> str:
    """The arguments of a forward, "(x, mask=None)"; "" if its code is not found."""
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

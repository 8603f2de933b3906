"""Numbers and shapes as people read them, the same in every view."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torchglass.records.tensors import TensorSpec

NOT_RUN = "–"
SAME_AS = "↗"
SPARKS = "▁▂▃▄▅▆▇█"
_ROUNDING = 1e-9
"""Values that differ by less than this share of their size are equal."""

_ONE_CELL_EACH = re.compile(r"[ -~─-╿×·–…→↗≈]*")


def format_shape(shape: Iterable[int] | None) -> str:
    """A shape with multiplication signs.

    Args:
        shape: The sizes. None or an empty shape gives "".

    Returns:
        The text.

    Example:
        >>> format_shape((3, 224, 224))
        '3×224×224'
    """
    return "×".join(str(size) for size in shape) if shape else ""


class Shaped(Protocol):
    """Anything with a tensor's shape."""

    @property
    def spec(self) -> TensorSpec:
        """The tensor's shape and dtype."""


def shape_text(spec: TensorSpec) -> str:
    """The shape of any tensor: "scalar" without dimensions, "?" if it is not known."""
    if spec.shape is None:
        return "?"
    return format_shape(spec.shape) or "scalar"


def first_shape(tensors: Sequence[Shaped]) -> str:
    """The shape of the first tensor and how many more follow: "8×16 +1"; "" for none."""
    if not tensors:
        return ""
    more = f" +{len(tensors) - 1}" if len(tensors) > 1 else ""
    return shape_text(tensors[0].spec) + more


def format_count(count: int) -> str:
    """A count in K, M or B.

    Args:
        count: The count.

    Returns:
        The text.

    Example:
        >>> format_count(1_700_000)
        '1.7M'
    """
    if count < 1_000:
        return f"{count}"
    for limit, unit in ((1_000_000, "K"), (1_000_000_000, "M")):
        if count < limit:
            return f"{count * 1_000 / limit:.1f}{unit}"
    return f"{count / 1_000_000_000:.1f}B"


def format_flops(count: float) -> str:
    """A number of operations with three digits and a unit: 3628146688 is "3.63 G"."""
    if count < 1000:
        return f"{count:.0f}"
    for unit in "KMGTP":
        count /= 1000
        # Rounded, 999.7 would be 1000.
        if count < 999.5:
            digits = 2 if count < 9.995 else 1 if count < 99.95 else 0
            return f"{count:.{digits}f} {unit}"
    return f"{count / 1000:.2f} E"


def format_bytes(count: float, *, step: int = 1024) -> str:
    """An amount of memory in steps of 1024, or of 1000: 253.5 KB."""
    if count < step:
        return f"{count:.0f} B"
    for unit in ("KB", "MB", "GB"):
        count /= step
        if count < step:
            return f"{count:.1f} {unit}"
    return f"{count / step:.1f} TB"


def format_time(seconds: float) -> str:
    """A duration in the unit that suits it.

    Args:
        seconds: The duration.

    Returns:
        The text.

    Example:
        >>> format_time(0.00123)
        '1.23ms'
    """
    if seconds < 1e-6:
        return f"{seconds * 1e9:.1f}ns"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.2f}μs"
    if seconds < 1.0:
        return f"{seconds * 1e3:.2f}ms"
    if seconds < 60.0:
        return f"{seconds:.4f}s" if seconds < 10.0 else f"{seconds:.2f}s"
    minutes = seconds / 60.0
    return f"{minutes:.1f}min" if minutes < 60.0 else f"{minutes / 60.0:.1f}h"


def format_ns(nanoseconds: float) -> str:
    """A duration that was measured in nanoseconds."""
    return format_time(nanoseconds / 1e9)


def format_share(part: float, whole: float) -> str:
    """A share in percent; "<1%" instead of a rounded 0%."""
    if not whole:
        return ""
    percent = 100 * part / whole
    return "<1%" if 0 < percent < 1 else f"{percent:.0f}%"


def share_text(part: float, whole: float) -> str:
    """A share in percent, "" for nothing."""
    return format_share(part, whole) if part else ""


def sparkline(values: Sequence[float], width: int) -> str:
    """A row of bars for the last `width` values; what is not finite leaves a gap."""
    shown = values[-width:]
    finite = [value for value in shown if math.isfinite(value)]
    if not finite:
        return " " * len(shown)
    low, high = min(finite), max(finite)
    # Values that differ only by rounding are drawn at the same height.
    is_flat = high - low <= _ROUNDING * max(abs(low), abs(high))
    scale = 0.0 if is_flat else (len(SPARKS) - 1) / (high - low)
    return "".join(
        SPARKS[round((value - low) * scale)] if math.isfinite(value) else " " for value in shown
    )


def harmless(text: str) -> str:
    r"""The text with control characters as visible escapes: "\n", "\x1b"."""
    if text.isprintable() and text.isascii():
        return text
    return "".join(
        char.encode("unicode_escape", "surrogatepass").decode("ascii")
        if _is_control(char)
        else char
        for char in text
    )


def plural(count: int, noun: str) -> str:
    """A count and its noun: "1 op", "1,200 ops"."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def shorten(text: str, limit: int) -> str:
    """At most `limit` characters of a text, the middle left out: names differ at their ends."""
    if len(text) <= limit:
        return text
    head = (limit - 1) // 2
    return f"{text[:head]}…{text[len(text) - (limit - 1 - head) :]}"


def width(text: str) -> int:
    """The terminal cells that a text takes: wide characters take two, combining ones none."""
    if _ONE_CELL_EACH.fullmatch(text):
        return len(text)
    visible = (char for char in text if not unicodedata.combining(char))
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in visible)


def pad(text: str, cells: int, *, right: bool = False) -> str:
    """The text padded with spaces to this many cells; with `right` they come first."""
    space = " " * (cells - width(text))
    return space + text if right else text + space


def _escape(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")


def _is_control(char: str) -> bool:
    # Variation selectors are marks, but terminals disagree on their width.
    is_control = unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"}
    return is_control or "\ufe00" <= char <= "\ufe0f"

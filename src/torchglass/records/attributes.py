"""What a live model holds, described without holding it, and the seam to ask for more of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NewType, Protocol

import numpy as np
import numpy.typing as npt

from torchglass.records.findings import Finding
from torchglass.records.tensors import Stats, TensorSpec

AttributeId = NewType("AttributeId", int)
AttributeRole = Literal[
    "recorded", "parameter", "buffer", "module", "attribute", "property", "method", "item"
]
"""A recorded tensor is one that went into or came out of the module; items are in a container."""
Progress = Callable[[float], bool]
"""Is told what share of a task is done, and says whether to go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribute:
    """Something that a module, or something in it, holds under a name."""

    id: AttributeId
    """By which more of it can be asked for."""
    name: str
    """"weight"; of an item its place: "[3]", "['lr']"."""
    role: AttributeRole = "attribute"
    type_name: str = ""
    """The name of its class; "" for a property, which is not called before it is opened."""
    text: str = ""
    """What it is in one line, "" where there is nothing to say."""
    spec: TensorSpec | None = None
    """Set for a tensor, which opens into its numbers."""
    opens: bool = False
    """Whether there are things in it to be looked at."""
    reads: bool = False
    """Whether it has more text than what was said of it in one line."""
    encloses: bool = False
    """Whether it is one of the things that it was reached through."""
    problem: str = ""
    """What was raised when it was looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some of the things that something holds."""

    attributes: tuple[Attribute, ...] = ()
    start: int = 0
    total: int = 0
    """How many there are on all pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFacts:
    """How a tensor lies in memory, and what it is to autograd."""

    spec: TensorSpec
    stride: tuple[int, ...] | None = None
    """None for a tensor that is not strided."""
    offset: int = 0
    """In elements, from the beginning of its storage."""
    storage_bytes: int = 0
    """Of the whole storage, of which it may be a view."""
    contiguous: bool = True
    requires_grad: bool = False
    grad_fn: str = ""
    has_grad: bool = False
    unreadable: str = ""
    """Why its numbers cannot be shown, "" where they can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearHistogram:
    """How many numbers lie in each of equal parts of a range."""

    low: float
    high: float
    counts: tuple[int, ...]


Index = tuple[int | range | None, ...]
"""A place in each dimension; in one or two a stretch that is seen, or None for all of it."""


class LiveModel(Protocol):
    """A model that is there to be looked into.

    Nothing of it is called, copied or changed but what is asked for. What was described can be
    opened until another module is asked for; after that its id is a LookupFailedError.
    """

    def module(self, path: str) -> Attribute:
        """The module at a path, to be opened."""

    def open(
        self, id: AttributeId, *, start: int = 0, most: int = 100, everything: bool = False
    ) -> Page:
        """A page of what something holds; `everything` adds what is private, and methods."""

    def call(self, id: AttributeId) -> Attribute:
        """What a property returns; what it raises is the problem of the attribute."""

    def text(self, id: AttributeId) -> str:
        """All that something has to say of itself, but no more than can be read."""

    def facts(self, id: AttributeId) -> TensorFacts:
        """How a tensor lies in memory."""

    def values(
        self, id: AttributeId, index: Index, rows: range, columns: range
    ) -> npt.NDArray[Any]:
        """Numbers of a tensor: two dimensions of it, cut to some rows and columns.

        Where one dimension is seen whole it has one row, and so has a scalar.
        """

    def image(
        self, id: AttributeId, index: Index, height: int, width: int
    ) -> npt.NDArray[np.float32]:
        """Two dimensions of a tensor made to fit so many pixels, by the means of what meets."""

    def measure(self, id: AttributeId, progress: Progress, part: Index = ()) -> Stats | None:
        """The numbers of a tensor, or of a part of it, summed up.

        None where it has none, or was told to stop.
        """

    def spread(
        self, id: AttributeId, stats: Stats, bins: int, progress: Progress, part: Index = ()
    ) -> LinearHistogram | None:
        """How the finite numbers of what was measured are spread."""

    def check(self, progress: Progress) -> tuple[Finding, ...] | None:
        """The parameters and buffers that contain NaN or Inf.

        None where there are no values to look at, or if it was told to stop.
        """

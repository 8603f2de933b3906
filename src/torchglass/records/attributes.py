"""The attributes of a model, described without keeping them alive, and how to read more."""

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
""""recorded" is an input or output of the module; "item" is an element of a container."""
Progress = Callable[[float], bool]
"""Takes the share of a task that is done, and returns whether to continue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribute:
    """An attribute of a module, or of an object inside it."""

    id: AttributeId
    """Selects it in the methods of `LiveModel`."""
    name: str
    """"weight"; for an item its index: "[3]", "['lr']"."""
    role: AttributeRole = "attribute"
    type_name: str = ""
    """The name of its class; "" for a property, which is not called until it is opened."""
    text: str = ""
    """Its value in one line, "" if there is nothing to show."""
    spec: TensorSpec | None = None
    """Set for a tensor, which opens in the tensor viewer."""
    opens: bool = False
    """Whether it contains other objects."""
    reads: bool = False
    """Whether it has more text than one line."""
    encloses: bool = False
    """Whether it contains itself: it is one of the objects it was reached through."""
    problem: str = ""
    """The exception that reading it raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some of the attributes of an object."""

    attributes: tuple[Attribute, ...] = ()
    start: int = 0
    total: int = 0
    """The number on all pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFacts:
    """The memory layout of a tensor, and its role in autograd."""

    spec: TensorSpec
    stride: tuple[int, ...] | None = None
    """None for a tensor that is not strided."""
    offset: int = 0
    """In elements, from the start of its storage."""
    storage_bytes: int = 0
    """Of the whole storage; the tensor may be a view of a part."""
    contiguous: bool = True
    requires_grad: bool = False
    grad_fn: str = ""
    has_grad: bool = False
    unreadable: str = ""
    """Why its values cannot be shown, "" if they can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearHistogram:
    """A histogram with bins of equal width."""

    low: float
    high: float
    counts: tuple[int, ...]


Index = tuple[int | range | None, ...]
"""An index per dimension; one or two dimensions may have a range, or None for all of it."""


class LiveModel(Protocol):
    """A model that can be browsed attribute by attribute.

    Nothing is called, copied or changed except what is requested. An id is valid until another
    module is opened; after that it raises LookupFailedError.
    """

    def module(self, path: str) -> Attribute:
        """The module at a path."""

    def open(
        self, id: AttributeId, *, start: int = 0, most: int = 100, everything: bool = False
    ) -> Page:
        """A page of an object's attributes; `everything` adds private ones and methods."""

    def call(self, id: AttributeId) -> Attribute:
        """The value of a property; an exception becomes the attribute's problem."""

    def text(self, id: AttributeId) -> str:
        """The full text of an attribute, cut to a readable length."""

    def facts(self, id: AttributeId) -> TensorFacts:
        """The memory layout of a tensor."""

    def values(
        self, id: AttributeId, index: Index, rows: range, columns: range
    ) -> npt.NDArray[Any]:
        """Values of a tensor: two of its dimensions, cut to some rows and columns.

        A slice of one dimension, or a scalar, has one row.
        """

    def image(
        self, id: AttributeId, index: Index, height: int, width: int
    ) -> npt.NDArray[np.float32]:
        """Two dimensions of a tensor scaled to a number of pixels, by averaging."""

    def measure(self, id: AttributeId, progress: Progress, part: Index = ()) -> Stats | None:
        """Statistics of a tensor, or of a part of it.

        None if it has no values, or if `progress` stopped it.
        """

    def spread(
        self, id: AttributeId, stats: Stats, bins: int, progress: Progress, part: Index = ()
    ) -> LinearHistogram | None:
        """The histogram of the finite values that were measured."""

    def check(self, progress: Progress) -> tuple[Finding, ...] | None:
        """The parameters and buffers that contain NaN or Inf.

        None if there are no values, or if `progress` stopped it.
        """

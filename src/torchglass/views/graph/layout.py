"""Where everything in a picture lies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torchglass.views.graph.geometry import Area, Curve, Point, around, union


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The way of an edge."""

    curve: Curve
    tip: Point
    """Where its arrow ends."""
    label: Area | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A box, or the part of a box that is in one column."""

    name: str
    area: Area
    core: Area
    """That of the nodes in it."""
    title_room: float
    """What its title takes along the flow."""
    continued: bool = False
    """Whether it goes on from an earlier column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where the nodes, edges and boxes of a graph lie."""

    nodes: Mapping[str, Area]
    routes: tuple[Route, ...]
    """In the order of the graph's edges."""
    frames: tuple[Frame, ...]
    """Each after those around it."""

    @property
    def area(self) -> Area:
        """All of it."""
        return union(self.areas())

    def areas(self) -> Iterator[Area]:
        """The area of everything."""
        yield from self.nodes.values()
        for frame in self.frames:
            yield frame.area
        for route in self.routes:
            yield around(route.curve)
            if route.label is not None:
                yield route.label

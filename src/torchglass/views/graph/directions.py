"""The ways a picture can run, and how its flow lies on the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from torchglass.views.graph.geometry import Area, Point

Direction = Literal["down", "up", "right"]
Corners = tuple[float, float, float, float]
"""Left, bottom, right and top on the page, in points; upwards is positive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """One way to run."""

    rank: str
    """What Graphviz calls it."""
    title_edge: str
    """Where on the page a box begins: "t" at its top, "b" at its bottom."""
    titles_beside: bool
    """Whether titles stand beside the flow, not at its beginning."""
    into_flow: Callable[[float, float], Point]
    """From a place on the page to along and across."""
    onto_page: Callable[[float, float], Point]
    """From along and across to a place on the page."""

    def flow_area(self, corners: Corners) -> Area:
        """An area of the page, in the flow."""
        left, bottom, right, top = corners
        one, other = self.into_flow(left, bottom), self.into_flow(right, top)
        (begin, end), (near, far) = (sorted(pair) for pair in zip(one, other, strict=True))
        return Area(begin, end, near, far)

    def page_corners(self, area: Area) -> Corners:
        """An area of the flow, on the page."""
        one, other = self.onto_page(area.begin, area.left), self.onto_page(area.end, area.right)
        (left, right), (bottom, top) = (sorted(pair) for pair in zip(one, other, strict=True))
        return left, bottom, right, top


HEADINGS: Mapping[Direction, Heading] = {
    "down": Heading(
        rank="TB",
        title_edge="t",
        titles_beside=False,
        into_flow=lambda x, y: (-y, x),
        onto_page=lambda along, across: (across, -along),
    ),
    "up": Heading(
        rank="BT",
        title_edge="b",
        titles_beside=False,
        into_flow=lambda x, y: (y, x),
        onto_page=lambda along, across: (across, along),
    ),
    "right": Heading(
        rank="LR",
        title_edge="t",
        titles_beside=True,
        into_flow=lambda x, y: (x, -y),
        onto_page=lambda along, across: (along, -across),
    ),
}

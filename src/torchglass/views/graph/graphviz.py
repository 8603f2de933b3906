"""Graphviz, one picture at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pygraphviz

POINTS = 72.0
"""To the inch, in which Graphviz measures nodes."""

# Graphviz keeps its state in globals, so two threads may not be inside it at once.
_one_at_a_time = threading.Lock()


@contextmanager
def canvas(**attributes: str) -> Iterator[pygraphviz.AGraph]:
    """An empty graph that is freed at the end."""
    with _one_at_a_time:
        graph = pygraphviz.AGraph(strict=False, directed=True)
        try:
            graph.graph_attr.update(**attributes)
            yield graph
        finally:
            graph.close()


def size_of(graph: pygraphviz.AGraph, node: str) -> tuple[float, float]:
    """The width and height of a node in points."""
    attributes = graph.get_node(node).attr
    return float(attributes["width"]) * POINTS, float(attributes["height"]) * POINTS


def measure(nodes: Sequence[Mapping[str, str]]) -> list[tuple[float, float]]:
    """The width and height in points that nodes of some attributes have."""
    with canvas() as graph:
        for number, attributes in enumerate(nodes):
            graph.add_node(number, **attributes)
        graph.layout(prog="dot")
        return [size_of(graph, str(number)) for number in range(len(nodes))]

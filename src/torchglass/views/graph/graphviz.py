"""Runs Graphviz in a child process, so that Ctrl-C stops it and its warnings stay hidden."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, Any

from torchglass.errors import ViewError

POINTS = 72.0
"""Points per inch; Graphviz measures nodes in inches."""

_SILENT_SECONDS = 1.0
"""A drawing that takes longer shows its progress."""
_NOT_THE_USERS = "Fontconfig"
"""The start of the lines that fontconfig writes to stderr about the machine's fonts."""
_NODE = re.compile(r"^node (\d+) \S+ \S+ (\S+ \S+)", re.MULTILINE)
"""In Graphviz' plain text: the name of a node, its position, its width and height."""
_LENGTH = struct.Struct("!Q")

# Graphviz keeps its state in globals, so only one thread of a process may use it at a time.
_one_at_a_time = threading.Lock()


@dataclass(slots=True)
class DotGraph:
    """A graph for Graphviz: its boxes, nodes and edges with their attributes, in order."""

    attributes: Mapping[str, str] = field(default_factory=dict)
    boxes: list[tuple[str, str | None, Mapping[str, str]]] = field(default_factory=list)
    """The name of each cluster, and the cluster that it is in; None for the graph itself."""
    nodes: list[tuple[str, str | None, Mapping[str, str]]] = field(default_factory=list)
    """The name of each node, and its cluster."""
    edges: list[tuple[str, str, Mapping[str, str]]] = field(default_factory=list)
    """The names of the nodes at the ends of each edge."""


class Graphviz:
    """Lays out and draws; created and closed by `graphviz`."""

    def __init__(self, child: subprocess.Popen[bytes] | None) -> None:
        self._child = child

    def layout(self, drawing: DotGraph) -> dict[str, Any]:
        """The positions of all parts, as in Graphviz' JSON."""
        placed: dict[str, Any] = json.loads(self.draw(drawing, "json", engine="dot"))
        return placed

    def measure(self, nodes: Sequence[Mapping[str, str]]) -> list[tuple[float, float]]:
        """The width and height in points of nodes with some attributes."""
        if not nodes:
            return []
        drawing = DotGraph(nodes=[(str(number), None, one) for number, one in enumerate(nodes)])
        # Graphviz crashes on a table with thick round borders in JSON, but not in plain text.
        plain = self.draw(drawing, "plain", engine="dot").decode()
        found = dict(_NODE.findall(plain))
        sizes = [found[str(number)].split() for number in range(len(nodes))]
        return [(float(width) * POINTS, float(height) * POINTS) for width, height in sizes]

    def draw(self, drawing: DotGraph, format: str, *, engine: str) -> bytes:
        """The drawing as a file; the engine "nop2" does not move anything."""
        parts = (drawing.attributes, drawing.boxes, drawing.nodes, drawing.edges)
        request = json.dumps((format, engine, *parts)).encode()
        if self._child is None:
            return _drawn(request)
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        with suppress(BrokenPipeError):
            _send(self._child.stdin, b"", request)
        answer = _receive(self._child.stdout)
        if answer is None:
            code = self._child.wait()
            raise ViewError(f"Graphviz crashed (exit code {code}). Draw fewer ops: depth=1.")
        failure, picture = answer
        if failure:
            raise ViewError(f"Graphviz failed: {failure.decode()}")
        return picture


@contextmanager
def graphviz(what: str = "") -> Iterator[Graphviz]:
    """Graphviz for some drawings; during a slow one the terminal shows `what` is drawn."""
    # A frozen program has no Python interpreter to start.
    if not sys.executable or getattr(sys, "frozen", False):
        with _one_at_a_time:
            yield Graphviz(None)
        return
    start = (
        f"import sys; sys.path[:] = {sys.path!r}; "
        "from torchglass.views.graph.graphviz import serve; serve()"
    )
    with tempfile.TemporaryFile() as complaints, _progress(what):
        child = subprocess.Popen(
            [sys.executable, "-c", start],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            env={**os.environ, "PYTHONSAFEPATH": "1"},
        )
        try:
            yield Graphviz(child)
        finally:
            child.kill()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()
            child.wait()
            complaints.seek(0)
            _pass_on(complaints.read().decode(errors="replace"))


def serve() -> None:
    """Answer the requests on stdin. Runs in the child process."""
    answers = os.fdopen(os.dup(1), "wb")
    # Output of libraries must not get between the answers.
    os.dup2(2, 1)
    while (request := _receive(sys.stdin.buffer)) is not None:
        _send(answers, *_answer(request[1]))


def _answer(request: bytes) -> tuple[bytes, bytes]:
    """The error message and the drawing; one of them is empty."""
    try:
        return b"", _drawn(request)
    except Exception as error:  # noqa: BLE001 - told to the parent, which raises it
        return (str(error) or type(error).__name__).encode(), b""


def _drawn(request: bytes) -> bytes:
    import pygraphviz

    kind, engine, attributes, boxes, nodes, edges = json.loads(request)
    graph = pygraphviz.AGraph(strict=False, directed=True)
    try:
        graph.graph_attr.update(**attributes)
        clusters = {None: graph}
        for name, parent, shown in boxes:
            clusters[name] = clusters[parent].add_subgraph(name=name, **shown)
        for name, box, shown in nodes:
            clusters[box].add_node(name, **shown)
        for number, (source, target, shown) in enumerate(edges):
            graph.add_edge(source, target, key=str(number), **shown)
        # With the engine in `args`, Graphviz does not warn on stderr about many nodes.
        graph.has_layout = True
        return bytes(graph.draw(format=kind, args=f"-K{engine}"))
    finally:
        graph.close()


def _send(stream: IO[bytes], *parts: bytes) -> None:
    stream.writelines(_LENGTH.pack(len(part)) + part for part in parts)
    stream.flush()


def _receive(stream: IO[bytes]) -> tuple[bytes, bytes] | None:
    """The two parts of a message; None if the other process has ended."""
    parts = []
    for _ in range(2):
        head = stream.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack(head)
        parts.append(stream.read(length))
    return parts[0], parts[1]


def _pass_on(complaints: str) -> None:
    lines = [line for line in complaints.splitlines() if line.strip()]
    for line in lines:
        if not line.startswith(_NOT_THE_USERS) and "KeyboardInterrupt" not in lines[-1]:
            sys.stderr.write(f"{line}\n")


@contextmanager
def _progress(what: str) -> Iterator[None]:
    """Show a progress line on stderr, if it is a terminal."""
    stream = sys.stderr
    if not what or stream is None or not stream.isatty():
        yield
        return
    done = threading.Event()

    def show() -> None:
        seconds = 0
        while not done.wait(_SILENT_SECONDS):
            seconds += 1
            stream.write(f"\rDrawing {what}: {seconds} s (Ctrl-C cancels)")
            stream.flush()
        if seconds:
            stream.write("\r\x1b[K")
            stream.flush()

    thread = threading.Thread(target=show, daemon=True, name="torchglass-drawing")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()

"""The names under which rp's document draws the architecture of a model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from torchglass.analyse.model.parameters import count
from torchglass.analyse.model.repeats import alike, builds
from torchglass.errors import ViewError
from torchglass.records.model import Model, ModuleId
from torchglass.targets.reading import read
from torchglass.views.brief import brief
from torchglass.views.files import in_its_folder
from torchglass.views.formats import format_count, harmless

Graph = dict[str, list[Any]]


def extract_model_graph(model: object) -> Graph:
    """How the modules of a model are nested, as plain lists of nodes and edges.

    Neighbours that are built alike are one node, with how many they are and the last one's name.

    >>> import torch
    >>> graph = extract_model_graph(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(2, 3)))
    >>> [(node["id"], node["parameters"]) for node in graph["nodes"]], graph["edges"]
    ([('', 9), ('0', 0), ('1', 9)], [('', '0'), ('', '1')])
    """
    record = read(model)
    counts = count(record)
    nodes, edges = [], []
    for run in _runs(record):
        module = record[run[0]]
        nodes.append(
            {
                "id": module.path,
                "name": module.name or record.name,
                "until": record[run[-1]].name,
                "count": len(run),
                "class": module.kind,
                "label": brief(module.kind, module.extra),
                "parameters": sum(counts[one].total.parameters for one in run),
            }
        )
        if module.parent is not None:
            edges.append((record[module.parent].path, module.path))
    return {"nodes": nodes, "edges": edges}


def plot_network_graph(
    graph: Mapping[str, list[Any]], path: str | os.PathLike[str] | None = None
) -> str:
    """A picture of nodes and edges as SVG, also written to a file if there is a path for it.

    >>> import torch
    >>> plot_network_graph(extract_model_graph(torch.nn.ReLU())).startswith("<?xml")
    True
    """
    from torchglass.views.graph.graphviz import Drawing, graphviz
    from torchglass.views.graph.palette import LIGHT

    if not {"nodes", "edges"} <= graph.keys():
        raise ViewError('a graph is {"nodes": …, "edges": …}, as extract_model_graph gives it')
    font = {"fontname": "Helvetica,Arial,sans-serif", "fontcolor": LIGHT.text}
    look = {"shape": "box", "style": "rounded,filled", "fontsize": "11", **font}
    drawing = Drawing(
        {"rankdir": "LR", "bgcolor": LIGHT.ground, "nodesep": "0.12", "ranksep": "0.5"}
    )
    for node in graph["nodes"]:
        ink = LIGHT.parameters if node.get("parameters") else LIGHT.op
        inked = {"label": "\n".join(_lines(node)), "fillcolor": ink.fill, "color": ink.line}
        drawing.add_node(f"/{node['id']}", None, {**look, **inked})
    for source, target in graph["edges"]:
        line = {"color": LIGHT.edge, "arrowsize": "0.6"}
        drawing.add_edge(f"/{source}", f"/{target}", line)
    with graphviz(f"{len(drawing.nodes):,} modules") as drawer:
        picture = drawer.draw(drawing, "svg", engine="dot").decode()
    if path is not None:
        in_its_folder(path).write_text(picture, encoding="utf-8")
    return picture


def generate_architecture_diagram(model: object) -> str:
    """A picture of how the modules of a model are nested, as SVG.

    >>> import torch
    >>> "ReLU" in generate_architecture_diagram(torch.nn.Sequential(torch.nn.ReLU()))
    True
    """
    return plot_network_graph(extract_model_graph(model))


def _runs(record: Model) -> Iterator[tuple[ModuleId, ...]]:
    """The modules from the root on, of neighbours that are alike the first with all others."""
    build = builds(record)
    waiting: list[tuple[ModuleId, ...]] = [(record.root.id,)]
    while waiting:
        run = waiting.pop()
        yield run
        waiting += reversed(alike(record, record[run[0]].children, build))


def _lines(node: Mapping[str, Any]) -> Iterator[str]:
    name = str(node.get("name", node["id"]))
    if node.get("count", 1) > 1:
        name = f"{node['count']} × {name} … {node['until']}"
    yield _escaped(name)
    if node.get("label", name) != name:
        yield _escaped(str(node["label"]))
    if node.get("parameters"):
        yield f"{format_count(node['parameters'])} params"


def _escaped(text: str) -> str:
    # In a label of Graphviz a backslash begins what stands for something else.
    return harmless(text).replace("\\", "\\\\")

"""The names with which rp's document analyses modules and draws a model."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torchglass.analyse.parameters import ModuleCounts, count
from torchglass.analyse.sibling_order import alike, builds
from torchglass.api.summary import summary
from torchglass.classic.module_explorer import get_forward_stats
from torchglass.errors import LookupFailedError, ViewError
from torchglass.records.model import Model, Module, ModuleId, join_path
from torchglass.tables.export import in_its_folder
from torchglass.tables.text import format_count, harmless
from torchglass.targets.names import near
from torchglass.targets.readers import read
from torchglass.views.model_text import brief

_AT_ONCE = 100
"""Modules that are analysed between two turns of the event loop."""


@dataclass(kw_only=True)
class ModuleInfo:
    """Facts about one module.

    Attributes:
        name: Its name or path.
        module_type: Its class.
        parameter_count: Parameters in it and below. A tied parameter counts once.
        shapes: Shapes of its own parameters and buffers, by name.
        timing_stats: Seconds of its recorded forwards (last, mean, total). None if none were
            recorded.
        memory_usage: Bytes of all parameters in it and below.
    """

    name: str
    module_type: str
    parameter_count: int
    shapes: dict[str, tuple[int, ...]]
    timing_stats: dict[str, float] | None = None
    memory_usage: int | None = None


def analyze_module(name: str, module: Any) -> ModuleInfo:
    """Describe one module: class, parameters, shapes, and the time of recorded forwards.

    Args:
        name: Name for the result.
        module: The module.

    Returns:
        A `ModuleInfo`.

    Example:
        >>> import torch
        >>> analyze_module("fc", torch.nn.Linear(2, 3)).shapes
        {'weight': (3, 2), 'bias': (3,)}
    """
    record = read(module)
    return _info(name, record.root, count(record)[0], _timing(module).get(""))


def analyze_module_detailed(module: Any) -> ModuleInfo:
    """Describe one module with the shapes of everything below it, by dotted name.

    Args:
        module: The module.

    Returns:
        A `ModuleInfo`.

    Example:
        >>> import torch
        >>> list(analyze_module_detailed(torch.nn.Sequential(torch.nn.Linear(2, 3))).shapes)
        ['0.weight', '0.bias']
    """
    record = read(module)
    found = analyze_module(record.name, module)
    found.shapes = {
        join_path(inner.path, name): shape
        for inner in record.modules
        for name, shape in _shapes(inner).items()
    }
    return found


async def analyze_model_async(model: Any) -> dict[str, ModuleInfo]:
    """Describe all modules without blocking the event loop.

    Args:
        model: The model.

    Returns:
        A dict from module path to `ModuleInfo`.

    Example:
        >>> import torch
        >>> list(asyncio.run(analyze_model_async(torch.nn.Sequential(torch.nn.ReLU()))))
        ['', '0']
    """
    record = await asyncio.to_thread(read, model)
    counts = await asyncio.to_thread(count, record)
    timing = _timing(model)
    found = {}
    for number, module in enumerate(record.modules):
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)
        path = module.path
        found[path] = _info(path, module, counts[module.id], timing.get(path))
    return found


def lazy_parameter_analysis(model: Any) -> Callable[[str], ModuleInfo]:
    """A function that describes the module at a path on demand.

    Args:
        model: The model.

    Returns:
        A function from module path to `ModuleInfo`.

    Example:
        >>> import torch
        >>> get_module_info = lazy_parameter_analysis(torch.nn.Sequential(torch.nn.Linear(2, 3)))
        >>> info = get_module_info("0")
        >>> info.name, info.parameter_count
        ('0', 9)
    """

    def get_module_info(module_path: str) -> ModuleInfo:
        found = analyze_module_detailed(get_module_by_path(model, module_path))
        return replace(found, name=module_path)

    return get_module_info


def get_module_by_path(model: Any, path: str) -> Any:
    """The module at a dotted path.

    Args:
        model: The model.
        path: Dotted path. "" is the model itself.

    Returns:
        The module.

    Raises:
        LookupFailedError: The model has no such module.

    Example:
        >>> import torch
        >>> get_module_by_path(torch.nn.Sequential(torch.nn.ReLU()), "0")
        ReLU()
    """
    from torchglass.capture.model.structure import modules_in

    modules = dict(modules_in(model)) if path else {"": model}
    if path not in modules:
        raise LookupFailedError(f"the model has no module {path!r}{near(path, modules)}")
    return modules[path]


def _info(
    name: str, module: Module, counts: ModuleCounts, timing: dict[str, float] | None
) -> ModuleInfo:
    return ModuleInfo(
        name=name,
        module_type=module.kind,
        parameter_count=counts.total.parameters,
        shapes=_shapes(module),
        timing_stats=timing,
        memory_usage=counts.total.parameter_bytes,
    )


def _shapes(module: Module) -> dict[str, tuple[int, ...]]:
    return {slot.name: tuple(slot.spec.shape or ()) for slot in module.slots}


def _timing(model: Any) -> dict[str, dict[str, float]]:
    """Seconds of the recorded forwards of each module, by path."""
    found = {}
    for path, calls in get_forward_stats(model).items():
        seconds = [call.runtime for call in calls]
        total = sum(seconds)
        found[path] = {"last": seconds[-1], "mean": total / len(seconds), "total": total}
    return found


Graph = dict[str, list[Any]]


def extract_model_graph(model: object) -> Graph:
    """How the modules of a model are nested, as lists of nodes and edges.

    Equal neighbors are one node, with their count and the name of the last one.

    Args:
        model: The model.

    Returns:
        A dict with "nodes" and "edges".

    Example:
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
    """Draw nodes and edges as SVG.

    Args:
        graph: The result of `extract_model_graph`.
        path: Also write the SVG to this file.

    Returns:
        The SVG text.

    Raises:
        ViewError: `graph` has no nodes and edges, or Graphviz is not installed.

    Example:
        >>> import torch
        >>> plot_network_graph(extract_model_graph(torch.nn.ReLU())).startswith("<?xml")
        True
    """
    from torchglass.views.graph.graphviz import DotGraph, graphviz
    from torchglass.views.graph.style import LIGHT

    if not {"nodes", "edges"} <= graph.keys():
        raise ViewError('graph must be {"nodes": …, "edges": …}, as extract_model_graph returns it')
    font = {"fontname": "Helvetica,Arial,sans-serif", "fontcolor": LIGHT.text}
    look = {"shape": "box", "style": "rounded,filled", "fontsize": "11", **font}
    drawing = DotGraph(
        {"rankdir": "LR", "bgcolor": LIGHT.ground, "nodesep": "0.12", "ranksep": "0.5"}
    )
    for node in graph["nodes"]:
        ink = LIGHT.parameters if node.get("parameters") else LIGHT.op
        inked = {"label": "\n".join(_lines(node)), "fillcolor": ink.fill, "color": ink.line}
        drawing.nodes.append((f"/{node['id']}", None, {**look, **inked}))
    for source, target in graph["edges"]:
        line = {"color": LIGHT.edge, "arrowsize": "0.6"}
        drawing.edges.append((f"/{source}", f"/{target}", line))
    with graphviz(f"{len(drawing.nodes):,} modules") as drawer:
        picture = drawer.draw(drawing, "svg", engine="dot").decode()
    if path is not None:
        in_its_folder(path).write_text(picture, encoding="utf-8")
    return picture


def generate_architecture_diagram(model: object) -> str:
    """Draw how the modules of a model are nested, as SVG.

    Args:
        model: The model.

    Returns:
        The SVG text.

    Raises:
        ViewError: Graphviz is not installed.

    Example:
        >>> import torch
        >>> "ReLU" in generate_architecture_diagram(torch.nn.Sequential(torch.nn.ReLU()))
        True
    """
    return plot_network_graph(extract_model_graph(model))


def _runs(record: Model) -> Iterator[tuple[ModuleId, ...]]:
    """Runs of equal neighbors, from the root down."""
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
    # In a label of Graphviz a backslash starts an escape.
    return harmless(text).replace("\\", "\\\\")


def generate_model_summary(model: object) -> str:
    """The summary of a model as text.

    Args:
        model: The model.

    Returns:
        The text.

    Example:
        >>> import torch
        >>> print(generate_model_summary(torch.nn.ReLU()).splitlines()[3])
        ReLU    ReLU            0
    """
    return str(summary(model))


def generate_text_summary(model: object) -> str:
    """The summary of a model as text. Same as `generate_model_summary`.

    Args:
        model: The model.

    Returns:
        The text.

    Example:
        >>> import torch
        >>> print(generate_text_summary(torch.nn.ReLU()).splitlines()[3])
        ReLU    ReLU            0
    """
    return generate_model_summary(model)


def generate_json_summary(model: object) -> str:
    """The summary of a model as JSON.

    Args:
        model: The model.

    Returns:
        The JSON text.

    Example:
        >>> import json, torch
        >>> json.loads(generate_json_summary(torch.nn.Linear(2, 3)))["totals"]["parameters"]
        9
    """
    return summary(model).to_json()


def generate_html_summary(model: object) -> str:
    """The summary of a model as an HTML page.

    Args:
        model: The model.

    Returns:
        The HTML text.

    Example:
        >>> import torch
        >>> generate_html_summary(torch.nn.ReLU())[:15]
        '<!doctype html>'
    """
    return summary(model).to_html()

"""Runs for the browser tests: a small transformer with all that a page has to show."""

from __future__ import annotations

import base64
import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests import make
from torchglass.records.calls import CallTensor, ForwardStats, ModuleStatistics, Statistics, Totals
from torchglass.records.findings import Finding, Findings
from torchglass.records.measures import (
    BlockId,
    Footprint,
    Measures,
    MemoryBlock,
    MemoryChange,
    ModuleMeasure,
    StepPart,
)
from torchglass.records.model import (
    Activations,
    ClassSource,
    FeatureMap,
    Histogram,
    Model,
    Stats,
    TensorSpec,
)
from torchglass.records.run import Frame, RunRecord, SeriesId, Sink
from torchglass.records.step_points import Point
from torchglass.records.trace import Edge, Graph, Node, NodeId, NodeKind
from torchglass.store.readers import MemoryStore
from torchglass.store.writer import FileSink

RUN = RunRecord(name="tiny-gpt", created_ns=0, command="python train.py")
BLOCKS = 4
SPEC = make.spec(2, 16, 8)


def transformer(blocks: int = BLOCKS) -> Model:
    """An embedding that the head is tied to, and blocks of attention and mlp."""
    linear = "torch.nn.modules.linear.Linear"
    block = {
        "class": "shop.Block",
        "children": {
            "attention": {"class": linear, "weight": (24, 8), "bias": (24,), "extra": "8, 24"},
            "mlp": {
                "children": {
                    "0": {"class": linear, "weight": (32, 8)},
                    "1": {"class": "torch.nn.modules.activation.GELU"},
                }
            },
        },
    }
    return make.model(
        {
            "children": {
                "embed": {"class": "torch.nn.modules.sparse.Embedding", "weight": (100, 8)},
                "blocks": {"children": {str(at): block for at in range(blocks)}},
                "head": {
                    "class": linear,
                    "weight": (100, 8),
                    "tied": {"weight": "embed.weight"},
                    "problem": "extra_repr: ValueError: no",
                },
            }
        },
        name="Gpt",
    )


class _Drawing:
    """A graph that grows node by node."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.edges: list[Edge] = []

    def add(
        self,
        kind: NodeKind,
        path: str,
        parent: NodeId | None = None,
        name: str = "",
        number: int = 1,
    ) -> NodeId:
        own = NodeId(len(self.nodes))
        self.nodes.append(
            Node(
                id=own,
                kind=kind,
                parent=parent,
                path=path,
                name=name,
                number=number,
                inputs=() if kind == "input" else (SPEC,),
                outputs=() if kind == "output" else (SPEC,),
            )
        )
        return own

    def chain(self, *nodes: NodeId, spec: TensorSpec = SPEC) -> None:
        for source, target in itertools.pairwise(nodes):
            self.edges.append(Edge(source=source, target=target, spec=spec))


def graph(blocks: int = BLOCKS) -> Graph:
    """The calls of the transformer; attention is bypassed, and each mlp has two layers inside."""
    drawing = _Drawing()
    root = drawing.add("call", "")
    ways = [drawing.add("input", "", root, "0"), drawing.add("call", "embed", root)]
    for at in range(blocks):
        path = f"blocks.{at}"
        block = drawing.add("call", path, root)
        entry = drawing.add("input", path, block, "0")
        attention = drawing.add("call", f"{path}.attention", block)
        mlp = drawing.add("call", f"{path}.mlp", block)
        drawing.chain(entry, attention, mlp, drawing.add("output", path, block))
        drawing.chain(entry, mlp)
        layers = [drawing.add("call", f"{path}.mlp.{layer}", mlp) for layer in range(2)]
        drawing.chain(*layers)
        drawing.chain(drawing.add("op", f"{path}.mlp.0", layers[0], "linear", number=10 * at))
        ways.append(block)
    drawing.chain(*ways, drawing.add("call", "head", root), drawing.add("output", "", root))
    return Graph(nodes=tuple(drawing.nodes), edges=tuple(drawing.edges))


def put_steps(sink: Sink, steps: range) -> None:
    """A falling loss, and the statistics of the embedding's weight."""
    loss = sink.series("", "loss")
    weight = sink.series("embed", "weight", "stats")
    for step in steps:
        points: dict[SeriesId, Point] = {
            loss: math.exp(-step / 20),
            weight: stats(count=800, reach=1.0 + step),
        }
        sink.put_frame(Frame(step=step, time_ns=step, points=points))


def put_training(sink: Sink, steps: range, blocks: int = BLOCKS) -> None:
    """What a watched training brings: the loss, and histograms of outputs, weights, gradients."""
    loss = sink.series("", "loss")
    places = [("embed", "output"), ("embed", "weight"), ("embed", "weight.grad")]
    for at in range(blocks):
        attention = f"blocks.{at}.attention"
        places += [(f"blocks.{at}", "output"), (attention, "output"), (attention, "output.grad")]
        places += [(attention, "weight"), (attention, "weight.grad")]
    spread = {sink.series(path, name, "histogram"): name for path, name in places}
    for step in steps:
        points: dict[SeriesId, Point] = {loss: math.exp(-step / 20)}
        for series, name in spread.items():
            points[series] = bell(step / 10 if name == "output" else 0.0, exponent=-4)
        sink.put_frame(Frame(step=step, time_ns=step, points=points))


def bell(middle: float, *, exponent: int, bins: int = 32) -> Histogram:
    """Numbers that lie around a middle, most of them close to it."""
    heights = [math.exp(-(((at - bins / 2 + 0.5) / 6) ** 2)) for at in range(bins)]
    counts = tuple(round(100 * height) for height in heights)
    first = round(middle * 2**-exponent) - bins // 2
    reach = bins * 2**exponent / 2
    return Histogram(
        exponent=exponent,
        first=first,
        counts=counts,
        stats=stats(count=sum(counts), reach=reach, mean=middle),
    )


def stats(*, count: int, reach: float, mean: float = 0.25) -> Stats:
    """The numbers of a tensor, as far as they matter here."""
    return Stats(count=count, min=mean - reach, max=mean + reach, mean=mean, std=reach / 2)


def findings() -> Findings:
    """A NaN that comes from one attention, and a layer that learns nothing."""
    return Findings(
        findings=(
            Finding(
                severity="warning",
                kind="vanishing",
                message="hardly any gradient reaches embed",
                path="embed",
                facts={"series": "embed.weight.grad"},
                step=20,
            ),
            Finding(
                severity="error",
                kind="nan",
                message="softmax produced 3 NaN out of finite numbers",
                path="blocks.2.attention",
                op="softmax",
                step=12,
            ),
        )
    )


def measures(blocks: int = BLOCKS) -> Measures:
    """Times and sizes: each block takes longer than the one before."""
    rows = [ModuleMeasure(path="", calls=1, total_forward_ns=10_000_000)]
    rows += [
        ModuleMeasure(
            path=f"blocks.{at}",
            calls=1,
            total_forward_ns=1_000_000 * (at + 1),
            total_forward_flops=2_000_000,
            total_activation_bytes=4096,
        )
        for at in range(blocks)
    ]
    return Measures(rows=tuple(rows))


def run_named(name: str, created_ns: int = 1, **facts: Any) -> RunRecord:
    """A run beside `RUN`, which a page tells apart by its name."""
    return RunRecord(name=name, created_ns=created_ns, **facts)


def run_of(
    model: Model | None, *documents: Any, run: RunRecord = RUN, ends: bool = True
) -> MemoryStore:
    """A run in memory of a model; one that does not end can be written on."""
    store = MemoryStore(run)
    if model is not None:
        store.put_model(model)
    for document in documents:
        store.put_document(document)
    if ends:
        store.close()
    return store


def file_of(path: Path, model: Model | None, *documents: Any, run: RunRecord = RUN) -> FileSink:
    """A run file that is being written, until `.close()`."""
    sink = FileSink(path, run)
    if model is not None:
        sink.put_model(model)
    for document in documents:
        sink.put_document(document)
    return sink


def training(steps: int = 40, *, run: RunRecord = RUN, blocks: int = BLOCKS) -> MemoryStore:
    """A finished run with a graph, histograms, findings and measures."""
    documents = graph(blocks), findings(), measures(blocks)
    store = run_of(transformer(blocks), *documents, run=run, ends=False)
    put_training(store, range(steps), blocks)
    store.close()
    return store


def scalars(values: Mapping[str, Mapping[int, float]], *, run: RunRecord = RUN) -> MemoryStore:
    """A finished run of numbers of the whole model: by their names, by steps."""
    store = run_of(transformer(), run=run, ends=False)
    series = {name: store.series("", name) for name in values}
    for step in sorted({step for each in values.values() for step in each}):
        points: dict[SeriesId, Point] = {
            series[name]: each[step] for name, each in values.items() if step in each
        }
        store.put_frame(Frame(step=step, time_ns=0, points=points))
    store.close()
    return store


def put_histogram(store: MemoryStore, step: int, bins: Histogram) -> None:
    """A step at which the weight of the embedding was measured."""
    series = store.series("embed", "weight", "histogram")
    store.put_frame(Frame(step=step, time_ns=step, points={series: bins}))


def histograms(counts: tuple[int, ...], first: int, nan: int = 0) -> MemoryStore:
    """Three steps at which the same numbers were seen, in bins as wide as one."""
    store = run_of(transformer(), ends=False)
    numbers = replace(stats(count=sum(counts) + nan, reach=1.5), nan=nan)
    for step in range(3):
        put_histogram(store, step, Histogram(exponent=0, first=first, counts=counts, stats=numbers))
    store.close()
    return store


def long_training(steps: int) -> MemoryStore:
    """A loss and one histogram at many steps."""
    model = make.model({"children": {"a": {"weight": (2, 3)}}})
    store = run_of(model, ends=False)
    series, loss = store.series("a", "weight", "histogram"), store.series("", "loss")
    same = bell(0.0, exponent=-3)
    for step in range(steps):
        store.put_frame(Frame(step=step, time_ns=0, points={series: same, loss: float(step % 7)}))
    store.close()
    return store


def called_twice() -> MemoryStore:
    """An embedding that is called twice, and findings about an op and a series of call two."""
    root = Node(id=NodeId(0), kind="call")
    first = Node(id=NodeId(1), kind="call", path="embed", parent=NodeId(0))
    again = Node(id=NodeId(2), kind="call", path="embed", parent=NodeId(0), number=2)
    op = Node(id=NodeId(3), kind="op", path="embed", parent=NodeId(2), name="embedding")
    finding = Finding(
        severity="error", kind="nan", message="NaN", path="embed", op="embedding", call=2
    )
    series = replace(finding, op="", call=0, facts={"series": "embed.2:output"})
    nodes = Graph(nodes=(root, first, again, op))
    store = run_of(transformer(), nodes, Findings(findings=(finding, series)), ends=False)
    store.series("embed", "2:output", "histogram")
    store.close()
    return store


def pictures() -> Activations:
    """A picture of what the embedding put out: a black and a white pixel."""
    picture = FeatureMap(
        path="embed",
        name="output",
        step=3,
        spec=make.spec(2, 2),
        low=-1.0,
        high=1.0,
        rows=1,
        columns=2,
        pixels=base64.b64encode(bytes([0, 255])).decode(),
    )
    return Activations(maps=(picture,))


def footprint() -> Footprint:
    """One activation of a kilobyte, taken in the forward and freed in the backward."""
    block = MemoryBlock(
        id=BlockId(0),
        kind="activation",
        spec=make.spec(256),
        bytes=1024,
        path="embed",
        op="add",
        phase="forward",
    )
    taken = MemoryChange(
        time_ns=5, block=BlockId(0), bytes=1024, phase="forward", path="embed", op="add"
    )
    freed = replace(taken, time_ns=9, bytes=-1024, phase="backward")
    parts = (
        StepPart(phase="forward", start=0, start_ns=0),
        StepPart(phase="backward", start=1, start_ns=7),
    )
    return Footprint(blocks=(block,), changes=(taken, freed), parts=parts)


def statistics() -> Statistics:
    """The second call of the first block, with three NaN."""
    numbers = Stats(count=4, min=-1.0, max=2.5, mean=0.5, std=0.1, nan=3)
    tensor = CallTensor(place="", spec=make.spec(2, 3), stats=numbers)
    call = ForwardStats(path="blocks.0", number=2, forward=1, outputs=(tensor,), total_ns=5000)
    calls = ModuleStatistics(
        path="blocks.0", class_name="Block", calls=(call,), totals=Totals(calls=2)
    )
    return Statistics(modules=(calls,))


def with_source(model: Model, class_name: str, file: Path, forward_line: int) -> Model:
    """The model with the place of a class's code."""
    return replace(
        model, classes={class_name: ClassSource(file=str(file), forward_line=forward_line)}
    )

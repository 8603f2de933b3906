"""Runs for the browser tests: a small transformer with all that a page has to show."""

from __future__ import annotations

import itertools
import math

from tests import make
from torchglass.records.findings import Finding, Findings
from torchglass.records.graph import Edge, Graph, Node, NodeId, NodeKind
from torchglass.records.measures import Measures, ModuleMeasure
from torchglass.records.model import Model
from torchglass.records.reader import Sink
from torchglass.records.run import RunRecord
from torchglass.records.series import Frame, Point, SeriesId
from torchglass.records.tensors import Histogram, Stats, TensorSpec
from torchglass.store.memory import MemoryStore

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
                message="softmax made 3 NaN out of finite numbers",
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


def training(steps: int = 40, *, run: RunRecord = RUN, blocks: int = BLOCKS) -> MemoryStore:
    """A finished run with a graph, histograms, findings and measures."""
    store = MemoryStore(run)
    store.put_model(transformer(blocks))
    store.put_document(graph(blocks))
    store.put_document(findings())
    store.put_document(measures(blocks))
    put_training(store, range(steps), blocks)
    store.close()
    return store

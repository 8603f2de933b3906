"""A small run that the explorer's tests look at, made without torch."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

from textual.pilot import Pilot

from tests import make
from tests.textual_pilot import run_app
from torchglass.records.calls import CallTensor, ForwardStats, ModuleStatistics, Statistics, Totals
from torchglass.records.measures import Measures, ModuleMeasure
from torchglass.records.model import Model, Module, Slot, Stats
from torchglass.records.run import Document, Frame, RunRecord, SeriesId
from torchglass.records.step_points import Point
from torchglass.store.readers import MemoryStore
from torchglass.views.tui.app import ExplorerApp, settle

LINEAR = "torch.nn.modules.linear.Linear"
SEQUENTIAL = "torch.nn.modules.container.Sequential"


def linear(rows: int, columns: int) -> make.Tree:
    """A linear layer as `make.model` takes it."""
    extra = f"in_features={columns}, out_features={rows}, bias=True"
    return {"class": LINEAR, "extra": extra, "weight": (rows, columns), "bias": (rows,)}


def block() -> make.Tree:
    """A block with a fold inside a fold."""
    return {
        "class": "tiny.Block",
        "children": {
            "attention": {
                "class": "tiny.Attention",
                "children": {"qkv": linear(192, 64), "out": linear(64, 64)},
            },
            "mlp": {
                "class": SEQUENTIAL,
                "children": {
                    "0": linear(256, 64),
                    "1": {"class": "torch.nn.modules.activation.GELU"},
                    "2": linear(64, 256),
                },
            },
        },
    }


def tiny() -> Model:
    """A model with what can be out of the ordinary: tied, shared, frozen, broken."""
    embedding = "torch.nn.modules.sparse.Embedding"
    norm = "torch.nn.modules.normalization.LayerNorm"
    model = make.model(
        {
            "children": {
                "embed": {"class": embedding, "extra": "100, 64", "weight": (100, 64)},
                "blocks": {
                    "class": "torch.nn.modules.container.ModuleList",
                    "children": {"0": block(), "1": block()},
                },
                "norm": {
                    "class": norm,
                    "extra": "(64,), eps=1e-05",
                    "weight": (64,),
                    "bias": (64,),
                },
                "last_norm": {"class": norm, "weight": (64,), "bias": (64,)},
                "broken": {"class": "tiny.Broken", "problem": "RuntimeError: [/red] extra_repr"},
                "head": {
                    "class": LINEAR,
                    "extra": "in_features=64, out_features=100, bias=False",
                    "weight": (100, 64),
                    "tied": {"weight": "embed.weight"},
                },
            }
        },
        name="TinyGPT",
    )
    model = shared(model, "last_norm", "norm")
    return changed(model, "norm", lambda module: replace(module, slots=_frozen(module.slots)))


def two_models() -> tuple[Model, Model]:
    """A model before and after someone changed it: a layer more, one less, one of another shape."""
    before = make.model(
        {
            "children": {
                "embed": {"class": "torch.nn.Embedding", "weight": (100, 64)},
                "blocks": {"class": SEQUENTIAL, "children": {"0": block(), "1": block()}},
                "head": linear(100, 64),
            }
        },
        name="TinyGPT",
    )
    after = make.model(
        {
            "children": {
                "embed": {"class": "torch.nn.Embedding", "weight": (100, 64)},
                "blocks": {"class": SEQUENTIAL, "children": {"0": block()}},
                "head": linear(120, 64),
                "probe": linear(2, 64),
            }
        },
        name="TinyGPT",
    )
    return before, after


def changed(model: Model, path: str, change: Callable[[Module], Module]) -> Model:
    """The model with one of its modules changed."""
    modules = (change(module) if module.path == path else module for module in model.modules)
    return replace(model, modules=tuple(modules))


def shared(model: Model, path: str, first: str) -> Model:
    """The model with the module at one path standing for the one at another."""
    target = model.find(first)
    assert target is not None
    alias = target.id
    return changed(
        model,
        path,
        lambda module: replace(module, alias_of=alias, extra=target.extra, slots=(), children=()),
    )


def _frozen(slots: tuple[Slot, ...]) -> tuple[Slot, ...]:
    return tuple(replace(slot, trainable=False) for slot in slots)


class Training:
    """A run that goes on as far as a test wants it to."""

    def __init__(
        self, model: Model | None = None, *, name: str = "demo", documents: Iterable[Document] = ()
    ) -> None:
        self.model = model or tiny()
        self.store = MemoryStore(RunRecord(name=name, created_ns=0))
        self.store.put_model(self.model)
        for document in documents:
            self.store.put_document(document)
        self.loss = self.store.series("", "loss")
        self.gradients: list[SeriesId] = [
            self.store.series(module.path, f"{slot.name}.grad", "stats")
            for module in self.model.modules
            for slot in module.slots
        ]
        self.steps = 0

    def train(self, steps: int, *, is_spoiled: bool = False) -> Training:
        """Go on for some steps, in which loss and gradients may be NaN."""
        for step in range(self.steps, self.steps + steps):
            loss = math.nan if is_spoiled else 4 * math.exp(-step / 15)
            points: dict[SeriesId, Point] = {self.loss: loss}
            for number, series in enumerate(self.gradients, start=5):
                std = math.exp(-step / number)
                nan = 3 * is_spoiled
                points[series] = Stats(count=64, min=-1.0, max=1.0, mean=0.0, std=std, nan=nan)
            self.store.put_frame(Frame(step=step, time_ns=step, points=points))
        self.steps += steps
        return self

    def finish(self) -> MemoryStore:
        """End the run."""
        self.store.close()
        return self.store


def documents(model: Model | None = None) -> list[Document]:
    """What a forward of a model left: what went through its modules, and what that took."""
    modules = (model or tiny()).modules
    statistics = [
        ModuleStatistics(
            path=module.path,
            class_name=module.kind,
            calls=(
                ForwardStats(
                    path=module.path,
                    number=1,
                    forward=1,
                    inputs=(CallTensor(place="0", spec=make.spec(8, 16, 64)),),
                    outputs=(CallTensor(place="", spec=make.spec(8, 16, 64)),),
                ),
            ),
            totals=Totals(calls=1),
        )
        for module in modules
    ]
    measures = [
        ModuleMeasure(
            path=module.path,
            calls=1,
            total_forward_ns=2_400_000 // (1 + module.id),
            self_forward_ns=120_000 // (1 + module.id),
            total_forward_flops=50_000_000 // (1 + module.id),
            total_activation_bytes=3_000_000 // (1 + module.id),
            total_peak_bytes=9_000_000 // (1 + module.id),
        )
        for module in modules
    ]
    return [Statistics(modules=tuple(statistics)), Measures(rows=tuple(measures))]


def still(model: Model) -> MemoryStore:
    """A model that is not trained."""
    store = MemoryStore(RunRecord(name=model.name, created_ns=0))
    store.put_model(model)
    store.close()
    return store


def drive(
    app: ExplorerApp,
    story: Callable[[Pilot[None]], Awaitable[None]],
    *,
    size: tuple[int, int] = (120, 40),
) -> None:
    """Run the explorer without a terminal, and a story with it once all is shown."""

    run_app(app, settle, story, size)


def paths(app: ExplorerApp) -> list[str]:
    """The paths that can be seen in the tree."""
    return [module.path for module in app.explorer.tree_panel.on_screen()]

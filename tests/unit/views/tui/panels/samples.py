"""Records that the panels' tests look at, made without torch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tests import make
from torchglass.analyse.failure.failure import Failure
from torchglass.records.calls import CallTensor, ForwardStats, ModuleStatistics, Statistics, Totals
from torchglass.records.findings import Evidence, Finding, Findings
from torchglass.records.measures import Measures, ModuleMeasure
from torchglass.records.model import Ancestor, ClassSource, Model, Module, Stats
from torchglass.records.run import Document, Frame, RunRecord
from torchglass.records.step_points import Point
from torchglass.records.trace import CallId, Operand, OpId, OpRecord, SourceLine, TraceRecord
from torchglass.store.readers import MemoryStore

HOSTILE = ("[b]bold[/b]", "[/red]", "a\nb\x1b[31m", "שלום", "🦜🦜", "x" * 300, "$primary", "")

CODE = '''\
"""A file with a net in it."""

import torch


class Parent(torch.nn.Module):
    """What the net is made from."""

    def forward(self, x):
        return self.layer(x)


@torch.no_grad
class Net(Parent):
    """A net."""

    def __init__(self):
        self.layer = torch.nn.Linear(3, 4)  # [b]not markup[/b]

    def forward(self, x):
        y = self.layer(x)
        return torch.relu(y) + 1.5


class Heir(Net):
    pass
'''


def net() -> Model:
    """A model of two blocks with a tied head, a shared and a broken module."""
    linear = "torch.nn.modules.linear.Linear"
    model = make.model(
        {
            "children": {
                "embed": {"class": linear, "weight": (10, 4)},
                "blocks": {
                    "children": {
                        name: {
                            "class": "net.Block",
                            "children": {
                                "fc": {
                                    "class": linear,
                                    "extra": "4, 4",
                                    "weight": (4, 4),
                                    "bias": (4,),
                                }
                            },
                        }
                        for name in "01"
                    }
                },
                "norm": {"class": "net.Norm", "weight": (4,)},
                "again": {"class": "net.Norm"},
                "broken": {"class": "net.Broken", "problem": "RuntimeError: [/red] extra_repr"},
                "head": {
                    "class": linear,
                    "weight": (10, 4),
                    "tied": {"weight": "embed.weight"},
                },
            }
        }
    )
    norm = model.find("norm")
    assert norm is not None
    return _changed(model, "again", alias_of=norm.id)


def _changed(model: Model, path: str, **fields: object) -> Model:
    def change(module: Module) -> Module:
        return replace(module, **fields) if module.path == path else module  # type: ignore[arg-type]

    return replace(model, modules=tuple(map(change, model.modules)))


def hostile() -> Model:
    """A model whose names, classes and arguments are made to break screens."""
    children = {
        name: {"class": f"evil.{name}", "extra": name, "problem": name, "weight": (2, 2)}
        for name in HOSTILE
    }
    return make.model({"children": children}, name="[b]Net\x07")


def coded(folder: Path) -> Model:
    """A model whose classes are written in a file."""
    file = str(folder / "net.py")
    Path(file).write_text(CODE, encoding="utf-8")
    parent = Ancestor(class_name="net.Parent", file=file)
    module = Ancestor(class_name="torch.nn.modules.module.Module", file="/gone.py")
    own = Ancestor(class_name="net.Net", file=file)
    model = make.model(
        {
            "class": "net.Net",
            "children": {"layer": {"class": "gone.Linear"}, "heir": {"class": "net.Heir"}},
        }
    )
    return replace(
        model,
        classes={
            "net.Net": ClassSource(file=file, forward_line=20, ancestors=(parent, module)),
            "net.Heir": ClassSource(file=file, forward_line=20, ancestors=(own, parent, module)),
        },
    )


def traced(file: str = "net.py") -> TraceRecord:
    """A pass through `net()`: two blocks, and the head's use of a weight."""
    calls = [
        make.call(0, outputs=[(2, 4)]),
        make.call(1, "blocks.0", parent=0),
        make.call(2, "blocks.0.fc", parent=1),
        make.call(3, "blocks.1", parent=0),
        make.call(4, "blocks.1.fc", parent=3),
    ]
    ops = [
        make.op(0, "x", kind="input", call=None),
        make.op(
            1,
            "linear",
            0,
            parameters={"blocks.0.fc.weight": (4, 4)},
            call=CallId(2),
            source=SourceLine(file=file, line=21, function="forward"),
            start_ns=0,
            end_ns=1500,
            settings=(("2", "None"),),
        ),
        make.op(2, "relu_", 1, call=CallId(1), writes=True, grad_fn="ReluBackward0"),
        make.op(3, "linear", 2, call=CallId(4)),
        make.op(
            4,
            "__add__",
            1,
            3,
            call=CallId(0),
            source=SourceLine(file=file, line=22, function="forward"),
        ),
        make.op(5, "", 4, kind="output", call=None),
    ]
    return make.trace(ops, calls)


def failed() -> Failure:
    """The same pass, which ended in its second block."""
    error = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x4 and 3x4)"
    op = make.op(4, "linear", 2, parameters={"blocks.1.fc.weight": (4, 3)}, call=CallId(4))
    trace = traced()
    return Failure(replace(trace, ops=trace.ops[:3], error=error, failed=op), net())


def long_pass(count: int) -> TraceRecord:
    """A chain of so many ops, all in the model itself."""
    operand = make.op(0, "relu", 0).operands[0]

    def op(at: int) -> OpRecord:
        operands: tuple[Operand, ...] = (replace(operand, op=OpId(at - 1)),) if at else ()
        return replace(make.op(at, "relu"), operands=operands, call=CallId(0))

    return make.trace([op(at) for at in range(count)], [make.call(0)])


def stats(mean: float = 0.0, std: float = 1.0, **fields: float) -> Stats:
    """Statistics with a range of two deviations."""
    values = {"count": 8, "min": mean - 2 * std, "max": mean + 2 * std, "mean": mean, "std": std}
    return Stats(**{**values, **fields})  # type: ignore[arg-type]


def measures() -> Measures:
    """What `net()` took, its first block most of it."""
    return Measures(
        rows=(
            ModuleMeasure(
                path="",
                calls=1,
                total_forward_ns=4_000_000,
                self_forward_ns=500_000,
                total_backward_ns=8_000_000,
                total_forward_flops=2_000_000,
                total_activation_bytes=4096,
            ),
            ModuleMeasure(
                path="blocks.0.fc",
                calls=2,
                total_forward_ns=3_000_000,
                self_forward_ns=3_000_000,
                total_forward_flops=1_000_000,
                total_activation_bytes=1024,
            ),
        ),
        notes=("the lowest of 5 runs",),
    )


def statistics() -> Statistics:
    """Two calls of a layer, the second with larger numbers, and a third that raised."""
    calls = tuple(
        ForwardStats(
            path="blocks.0.fc",
            number=number,
            forward=number,
            inputs=(CallTensor(place="0", spec=make.spec(2, 4), stats=stats(0.0, number)),),
            outputs=(CallTensor(place="", spec=make.spec(number, 4), stats=stats(1.0, number)),),
            total_ns=number * 1_000_000,
            error="ValueError" if number == 3 else "",
        )
        for number in (1, 2, 3)
    )
    totals = Totals(calls=7, failed=1, total_ns=9_000_000)
    part = ModuleStatistics(path="blocks.0.fc", class_name="Linear", calls=calls, totals=totals)
    return Statistics(modules=(part,))


def findings(file: str = "net.py") -> Findings:
    """One problem of each severity."""
    spec = make.spec(2, 4)
    return Findings(
        findings=(
            Finding(
                severity="error",
                kind="nan",
                message="sqrt produced 3 NaN [/red]",
                path="blocks.0.fc",
                op="sqrt",
                call=2,
                step=7,
                source=SourceLine(file=file, line=21, function="forward"),
                tensors=(
                    Evidence(name="input", role="argument", spec=spec, stats=stats(-1.0)),
                    Evidence(name="result", role="result", spec=spec, stats=stats(1.0, nan=3)),
                ),
            ),
            Finding(
                severity="warning",
                kind="dead",
                message=f"half of the units are dead, {'and so are others ' * 8}",
                path="blocks.1",
            ),
            Finding(severity="info", kind="large", message="a large gradient", phase="backward"),
        )
    )


def store(model: Model | None = None, *documents: Document) -> MemoryStore:
    """A run of a model with some documents."""
    found = MemoryStore(RunRecord(name="demo", created_ns=0))
    found.put_model(model or net())
    for document in documents:
        found.put_document(document)
    return found


def train(run: MemoryStore, steps: Iterable[int]) -> None:
    """Put losses, gradients and updates of all parameters of `net()` into a run."""
    for step in steps:
        points: dict[object, Point] = {run.series("", "loss"): math.exp(-step / 10)}
        for depth, module in enumerate(run.model().modules):
            for slot in module.slots:
                scale = 10.0**-depth
                gradient = run.series(module.path, f"{slot.name}.grad", "stats")
                points[gradient] = stats(0.0, scale * math.exp(-step / 20), count=16)
                points[run.series(module.path, f"{slot.name}.update")] = scale
        run.put_frame(Frame(step=step, time_ns=step, points=points))  # type: ignore[arg-type]
